"""Looking for messages when they are due: fewer looks in vain, and never long behind the peers."""

from __future__ import annotations

import pytest

from funcpipe.errors import ObjectMissing
from funcpipe.store.wait import Arrival, Backoff, wait_for
from funcpipe.worker.arrivals import Arrivals

PLACE = "1RECV_F0"


class World:
    """A clock that only sleeping moves, and a store whose one object comes at a set time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.due_s = 0.0

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def get(self, key: str) -> memoryview:
        if self.now_s < self.due_s:
            raise ObjectMissing(key)
        return memoryview(b"here")


def receive(world: World, arrivals: Arrivals, after_s: float) -> Arrival:
    """Wait for an object that comes `after_s` seconds from now, as a worker does."""
    began_s, absent_s = world.now_s, None
    world.due_s = began_s + after_s
    delay_s, backoff = arrivals.plan(PLACE)

    def missed() -> None:
        nonlocal absent_s
        absent_s = world.now_s - began_s

    arrival = wait_for(
        world,  # type: ignore[arg-type]
        "key",
        deadline_s=1000.0,
        delay_s=delay_s,
        backoff=backoff,
        between=missed,
        clock=world.clock,
        sleep=world.sleep,
    )
    arrivals.learn(PLACE, delay_s=delay_s, absent_s=absent_s)
    return arrival


def test_the_first_steps_look_at_once() -> None:
    world, arrivals = World(), Arrivals()
    for _ in range(3):
        assert arrivals.plan(PLACE) == (0.0, Backoff())
        receive(world, arrivals, 1.0)
    assert arrivals.plan(PLACE)[0] > 0


@pytest.mark.parametrize(
    ("after_s", "before", "least", "most"),
    [(0.05, 7, 2, 3), (0.3, 13, 3, 4), (1.0, 27, 3, 4), (20.0, 407, 21, 21)],
)
def test_a_steady_peer_is_looked_for_a_few_times_only(
    after_s: float, before: int, least: int, most: int
) -> None:
    # given a message that each step waits equally long for
    world, arrivals = World(), Arrivals()
    assert [receive(world, arrivals, after_s).misses for _ in range(3)] == [before] * 3
    # then the looks in vain become fewer, none is far from the arrival, and it stays like this
    steady = [receive(world, arrivals, after_s) for _ in range(20)][4:]
    assert all(least <= one.misses <= most for one in steady)
    assert all(one.waited_s - after_s <= 0.05 + 1e-9 for one in steady)


def test_a_slower_peer_is_followed() -> None:
    world, arrivals = World(), Arrivals()
    for _ in range(6):
        receive(world, arrivals, 0.1)
    for _ in range(3):
        receive(world, arrivals, 2.0)
    assert 1.8 <= arrivals.plan(PLACE)[0] < 2.0


def test_a_faster_peer_is_kept_waiting_for_some_steps_only() -> None:
    # given a plan for a message that takes a second
    world, arrivals = World(), Arrivals()
    for _ in range(6):
        receive(world, arrivals, 1.0)
    # when it comes in a tenth of that
    behind_s = [receive(world, arrivals, 0.1).waited_s - 0.1 for _ in range(12)]
    # then the time behind it at least halves until there is nothing left but a look's distance
    assert behind_s[0] > 0.5
    assert all(behind_s[n] <= 0.5 * behind_s[n - 1] + 0.05 for n in range(1, 12))
    assert max(behind_s[5:]) <= 0.05


def test_what_is_always_there_is_never_waited_for() -> None:
    world, arrivals = World(), Arrivals()
    for _ in range(8):
        assert receive(world, arrivals, 0.0) == Arrival(memoryview(b"here"), 0.0, 0.0, 0)


def test_one_early_arrival_sets_the_plan_and_one_late_does_not() -> None:
    world, arrivals = World(), Arrivals()
    for after_s in (1.0, 0.4, 1.0):
        receive(world, arrivals, after_s)
    assert arrivals.plan(PLACE)[0] < 0.45
    world, arrivals = World(), Arrivals()
    for after_s in (1.0, 3.0, 1.0):
        receive(world, arrivals, after_s)
    assert 0.9 <= arrivals.plan(PLACE)[0] < 1.0


def test_places_are_told_apart() -> None:
    world, arrivals = World(), Arrivals()
    for _ in range(4):
        receive(world, arrivals, 1.0)
    assert arrivals.plan("another") == (0.0, Backoff())


def test_pauses_between_looks_fit_the_plan_within_the_usual_ones() -> None:
    world, arrivals = World(), Arrivals()
    for _ in range(4):
        receive(world, arrivals, 1.0)
    delay_s, backoff = arrivals.plan(PLACE)
    assert backoff.first_s == pytest.approx(delay_s / 50)
    for _ in range(4):
        receive(world, arrivals, 100.0)
    assert arrivals.plan(PLACE)[1].first_s == Backoff().cap_s
