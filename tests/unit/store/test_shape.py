"""Sleeps of a shaped store, computed by hand and compared exactly."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from funcpipe.clock import Clock
from funcpipe.errors import ObjectMissing, WaitTimeout
from funcpipe.store.base import Pace
from funcpipe.store.memory import MemoryStore
from funcpipe.store.shape import Link, LinkSpec, Shaped

from .clock import FakeClock

KIB = 1 << 10
RATE = 1024.0 * KIB  # a chunk is 16 KiB (the least), and takes 1/64 s


class Busy(MemoryStore):
    """A store whose own transfer takes `real_s` per chunk before it is paced."""

    def __init__(self, clock: FakeClock, real_s: float) -> None:
        super().__init__()
        self.clock = clock
        self.real_s = real_s

    def put(
        self, key: str, data: object, *, if_absent: bool = False, pace: Pace | None = None
    ) -> None:
        super().put(key, data, if_absent=if_absent, pace=self._slowed(pace))  # type: ignore[arg-type]

    def get(
        self, key: str, *, start: int = 0, stop: int | None = None, pace: Pace | None = None
    ) -> memoryview:
        return super().get(key, start=start, stop=stop, pace=self._slowed(pace))

    def _slowed(self, pace: Pace | None) -> Pace:
        assert pace is not None
        return Slowed(pace, lambda: self.clock.advance(self.real_s))


class Slowed:
    def __init__(self, pace: Pace, work: Callable[[], None]) -> None:
        self.pace = pace
        self.work = work
        self.chunk_bytes = pace.chunk_bytes

    def __call__(self, num_bytes: int) -> None:
        self.work()
        self.pace(num_bytes)


def link_of(clock: FakeClock, **options: float) -> Link:
    return Link(
        up_bytes_per_s=RATE,
        down_bytes_per_s=2 * RATE,
        clock=clock,
        sleep=clock.sleep,
        **options,  # type: ignore[arg-type]
    )


def test_bytes_go_at_the_rate_of_their_direction_after_one_latency() -> None:
    clock = FakeClock()
    store = Shaped(MemoryStore(), link_of(clock, latency_s=0.25))

    store.put("k", [bytes(20 * KIB), bytes(16 * KIB)])
    store.get("k")

    assert clock.sleeps == [
        *(0.25, 1 / 64, 1 / 256, 1 / 64),  # up: 16, 4 and 16 KiB
        *(0.25, 1 / 128, 1 / 128, 1 / 512),  # down: 16, 16 and 4 KiB
    ]


def test_real_time_passes_inside_the_emulated_time() -> None:
    clock = FakeClock()
    store = Shaped(Busy(clock, real_s=1 / 256), link_of(clock, latency_s=0.25))

    store.put("k", bytes(48 * KIB))

    assert clock.sleeps == [0.25 - 1 / 256, 1 / 64, 3 / 256, 3 / 256]
    assert clock.now_s == 1000 + 0.25 + 3 / 64


def test_a_store_slower_than_the_link_is_not_slowed_further() -> None:
    clock = FakeClock()
    store = Shaped(Busy(clock, real_s=1.0), link_of(clock, latency_s=0.25))

    store.put("k", bytes(48 * KIB))

    assert clock.sleeps == []
    assert clock.now_s == 1003.0


def test_bytes_held_up_by_the_store_catch_up_with_the_link() -> None:
    clock = FakeClock()
    passage = link_of(clock).upload()

    clock.advance(3 / 64)  # the real transfer of the first chunk was that slow
    for _ in range(4):
        passage(16 * KIB)

    assert clock.sleeps == [1 / 64]
    assert clock.now_s == 1000 + 4 / 64


def test_an_object_appears_when_its_last_byte_has_passed() -> None:
    clock = FakeClock()
    inner = MemoryStore()
    seen: list[bool] = []

    def sleep(seconds: float) -> None:
        seen.append("k" in set(inner.list("")))
        clock.sleep(seconds)

    link = Link(up_bytes_per_s=RATE, latency_s=0.25, clock=clock, sleep=sleep)
    Shaped(inner, link).put("k", bytes(32 * KIB))

    assert seen == [False, False, False]
    assert list(inner.list("")) == ["k"]


class Finishing(MemoryStore):
    """A store that works on an object for `tail_s` after its last byte."""

    def __init__(self, clock: FakeClock, tail_s: float) -> None:
        super().__init__()
        self.clock = clock
        self.tail_s = tail_s

    def put(
        self, key: str, data: object, *, if_absent: bool = False, pace: Pace | None = None
    ) -> None:
        assert pace is not None
        for _ in range(3):
            pace(16 * KIB)
        self.clock.advance(self.tail_s)


def puts(clock: FakeClock, tail_s: float, *, latency_s: float, count: int) -> list[float]:
    """What puts of three chunks take, one after another."""
    store = Shaped(Finishing(clock, tail_s), link_of(clock, latency_s=latency_s))
    seconds = []
    for number in range(count):
        began = clock.now_s
        store.put(str(number), bytes(48 * KIB))
        seconds.append(clock.now_s - began)
    return seconds


def test_what_the_store_takes_for_an_object_lies_inside_the_latency_once_it_is_known() -> None:
    nominal = 0.25 + 3 / 64

    assert puts(FakeClock(), 0.125, latency_s=0.25, count=3) == [nominal + 0.125, nominal, nominal]


def test_no_more_than_the_latency_is_made_up_for() -> None:
    nominal = 0.25 + 3 / 64

    assert puts(FakeClock(), 1.0, latency_s=0.25, count=2) == [nominal + 1.0, nominal + 0.75]


def test_a_rest_earns_a_burst_and_no_more() -> None:
    clock = FakeClock()
    store = Shaped(MemoryStore(), link_of(clock, burst_bytes=32 * KIB))

    store.put("k", bytes(48 * KIB))
    assert clock.sleeps == [1 / 64]
    clock.sleeps.clear()

    clock.advance(100.0)
    store.put("k", bytes(64 * KIB))
    assert clock.sleeps == [1 / 64, 1 / 64]


def test_a_burst_passes_at_its_own_rate() -> None:
    # given 48 KiB of burst at four times the rate: the slower of 4 R t and 48 KiB + R t
    clock = FakeClock()
    store = Shaped(MemoryStore(), link_of(clock, burst_bytes=48 * KIB, burst_bytes_per_s=4 * RATE))

    store.put("k", bytes(96 * KIB))
    # 16, 32, 48 and 64 KiB at the burst's rate, where both meet, and on at the link's
    assert clock.sleeps == [*[1 / 256] * 4, 1 / 64, 1 / 64]
    clock.sleeps.clear()

    # when half of it has come back
    clock.advance(1.5 / 64)
    store.put("k", bytes(48 * KIB))
    assert clock.sleeps == [1 / 256, 1 / 256, 1 / 64]


def test_transfers_at_once_share_a_burst_s_rate() -> None:
    clock = FakeClock()
    link = link_of(clock, burst_bytes=1 << 20, burst_bytes_per_s=4 * RATE)
    first, second = link.upload(), link.upload()

    for _ in range(2):
        first(16 * KIB)
        second(16 * KIB)

    assert clock.sleeps == [1 / 256] * 4


@pytest.mark.parametrize("burst_rate", [RATE / 2, RATE])
def test_a_direction_faster_than_bursts_has_none(burst_rate: float) -> None:
    clock = FakeClock()
    link = link_of(clock, burst_bytes=1 << 20, burst_bytes_per_s=burst_rate)

    Shaped(MemoryStore(), link).put("k", bytes(48 * KIB))

    assert clock.sleeps == [1 / 64] * 3


def test_a_spec_survives_json_and_opens_a_link_in_the_seconds_of_a_clock() -> None:
    fake = FakeClock()

    class Manual(Clock):
        def now(self) -> float:
            return fake()

        def sleep(self, seconds: float) -> None:
            fake.sleep(seconds)

    spec = LinkSpec(
        up_bytes_per_s=RATE, latency_s=0.25, burst_bytes=16 * KIB, burst_bytes_per_s=2 * RATE
    )
    assert LinkSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    store = Shaped(MemoryStore(), spec.open(Manual()))

    store.put("k", bytes(48 * KIB))
    assert fake.sleeps == [0.25, 1 / 128, 1 / 128, 1 / 64]
    fake.sleeps.clear()

    with pytest.raises(WaitTimeout):
        store.wait("absent", deadline_s=3600.0)
    assert sum(fake.sleeps) == pytest.approx(3600.25)  # a look each at the deadline


def test_requests_that_share_a_link_share_its_rate_in_turns() -> None:
    clock = FakeClock()
    link = link_of(clock)
    first, second = link.upload(), link.upload()

    first(16 * KIB)
    second(16 * KIB)
    first(16 * KIB)

    assert clock.sleeps == [1 / 64] * 3


def test_the_directions_do_not_share() -> None:
    clock = FakeClock()
    link = link_of(clock)
    up, down = link.upload(), link.download()

    up(16 * KIB)
    down(16 * KIB)

    assert clock.sleeps == [1 / 64]  # by then the download has passed as well


def test_a_request_in_its_latency_does_not_hold_up_another() -> None:
    clock = FakeClock()
    link = link_of(clock, latency_s=0.25)
    early = link.upload()
    early(16 * KIB)
    late = link.upload()

    early(16 * KIB)
    late(16 * KIB)

    assert clock.sleeps == [0.25, 1 / 64, 1 / 64, 0.25 - 1 / 64, 1 / 64]


def test_requests_without_a_body_take_the_latency() -> None:
    clock = FakeClock()
    store = Shaped(MemoryStore(), link_of(clock, latency_s=0.25))

    store.put("empty", b"")
    store.get("empty")
    with pytest.raises(ObjectMissing):
        store.get("absent")
    store.delete(["empty"])
    assert list(store.list("")) == []

    assert clock.sleeps == [0.25] * 5


def test_latency_is_per_thousand_keys() -> None:
    clock = FakeClock()
    inner = MemoryStore()
    keys = [f"k{number}" for number in range(1001)]
    for key in keys:
        inner.put(key, b"")
    store = Shaped(inner, link_of(clock, latency_s=0.25))

    assert len(list(store.list(""))) == 1001
    store.delete(keys)

    assert clock.sleeps == [0.25] * 4
    assert list(inner.list("")) == []


def test_a_direction_without_a_rate_is_not_paced() -> None:
    clock = FakeClock()
    store = Shaped(MemoryStore(), Link(clock=clock, sleep=clock.sleep))

    store.put("k", bytes(8 << 20))
    store.get("k")

    assert clock.sleeps == []


def test_a_link_behind_a_link_takes_the_slower_one() -> None:
    clock = FakeClock()
    inner = Shaped(MemoryStore(), link_of(clock))
    slower = Link(up_bytes_per_s=RATE / 2, clock=clock, sleep=clock.sleep)

    Shaped(inner, slower).put("k", bytes(32 * KIB))

    assert clock.now_s == 1000 + 4 / 64


@pytest.mark.parametrize(
    "options",
    [
        {"up_bytes_per_s": 0.0},
        {"down_bytes_per_s": -1.0},
        {"up_bytes_per_s": float("nan")},
        {"latency_s": -0.1},
        {"latency_s": float("nan")},
        {"burst_bytes": -1},
        {"burst_bytes_per_s": 0.0},
    ],
)
def test_links_that_cannot_be_are_refused(options: dict[str, float]) -> None:
    for make in (Link, LinkSpec):
        with pytest.raises(ValueError, match="must be"):
            make(**options)  # type: ignore[arg-type]
