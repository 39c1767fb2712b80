from __future__ import annotations

import pytest

from funcpipe.errors import ObjectMissing, Stopped, StoreDenied, WaitTimeout
from funcpipe.store.memory import MemoryStore
from funcpipe.store.wait import Backoff, wait_for

from .clock import FakeClock


class Slow(MemoryStore):
    """Holds back what it has for a number of gets, each of which takes 0.5 s."""

    def __init__(self, clock: FakeClock, misses: int) -> None:
        super().__init__()
        self.clock = clock
        self.left = misses

    def get(self, key: str, **options: object) -> memoryview:
        self.clock.advance(0.5)
        self.left -= 1
        if self.left >= 0:
            raise ObjectMissing("not yet")
        return super().get(key)


BACKOFF = Backoff(first_s=1.0, factor=2.0, cap_s=3.0)


def test_polls_move_apart_up_to_the_cap() -> None:
    clock = FakeClock()
    store = Slow(clock, misses=4)
    store.put("k", b"body")

    arrival = wait_for(
        store, "k", deadline_s=100.0, backoff=BACKOFF, clock=clock, sleep=clock.sleep
    )

    assert clock.sleeps == [1.0, 2.0, 3.0, 3.0]
    assert bytes(arrival.data) == b"body"
    assert (arrival.misses, arrival.waited_s, arrival.transfer_s) == (4, 11.0, 0.5)


def test_the_first_get_comes_at_the_planned_arrival() -> None:
    clock = FakeClock()
    store = Slow(clock, misses=0)
    store.put("k", b"")

    arrival = wait_for(store, "k", deadline_s=100.0, delay_s=7.0, clock=clock, sleep=clock.sleep)

    assert clock.sleeps == [7.0]
    assert (arrival.waited_s, arrival.transfer_s, arrival.misses) == (7.0, 0.5, 0)


def test_the_last_get_is_made_at_the_deadline() -> None:
    clock = FakeClock()
    store = Slow(clock, misses=99)

    with pytest.raises(WaitTimeout, match=r"'k' did not appear within 5 s \(looked 4 times\)"):
        wait_for(store, "k", deadline_s=5.0, backoff=BACKOFF, clock=clock, sleep=clock.sleep)

    # gets end at 0.5, 2.0, 4.5 and 5.5; the third sleep is cut to what was left
    assert clock.sleeps == [1.0, 2.0, 0.5]


def test_a_planned_arrival_after_the_deadline_is_not_waited_for() -> None:
    clock = FakeClock()
    store = Slow(clock, misses=99)

    with pytest.raises(WaitTimeout):
        wait_for(store, "k", deadline_s=2.0, delay_s=50.0, clock=clock, sleep=clock.sleep)

    assert clock.sleeps == [2.0]


def test_what_happens_between_polls_can_end_the_wait() -> None:
    clock = FakeClock()
    store = Slow(clock, misses=99)
    calls = []

    def watch() -> None:
        calls.append(clock.now_s)
        if len(calls) == 3:
            raise Stopped("the world has moved on")

    with pytest.raises(Stopped):
        wait_for(store, "k", deadline_s=99.0, between=watch, clock=clock, sleep=clock.sleep)

    assert clock.sleeps == [0.002, 0.003]


def test_other_failures_end_the_wait() -> None:
    class Denying(MemoryStore):
        def get(self, key: str, **options: object) -> memoryview:
            raise StoreDenied("no")

    with pytest.raises(StoreDenied):
        wait_for(Denying(), "k", deadline_s=99.0)


@pytest.mark.parametrize("fields", [{"first_s": 0.0}, {"factor": 0.5}, {"cap_s": 0.0001}])
def test_a_backoff_that_would_not_back_off_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="back-off needs"):
        Backoff(**fields)
