"""Measuring with a host that makes results up: what is asked of it, and what follows a failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from funcpipe.driver.attempts import Attempt, halved, smaller
from funcpipe.driver.measuring import Bench, measure
from funcpipe.driver.profile_options import ProfileOptions, default_sizes, default_tiers
from funcpipe.emulator.dilation import Dilation
from funcpipe.errors import (
    FunctionLost,
    OutOfMemory,
    PlanError,
    PlatformError,
    Stopped,
    StoreError,
    UserCodeError,
)
from funcpipe.partitioner.platform import load_platform
from funcpipe.profiles import Point
from funcpipe.profiletask import ProfileTask
from funcpipe.store.memory import MemoryStore
from funcpipe.store.open import StoreSpec
from tests.unit.made_up import MadeUpHost

LAMBDA = load_platform("aws-lambda")
Fate = Callable[[ProfileTask, int], tuple[str, int | None] | None]


class Rig:
    def __init__(self, fate: Fate | None = None, *, layers: int = 4, copies: int = 1) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        store = MemoryStore()
        self.host = MadeUpHost(store, fate)
        self.bench = Bench(
            store=store,
            spec=StoreSpec(url="memory:"),
            root="runs/x",
            entry="job:job",
            digest="0" * 64,
            costs=[1.0] * layers,
            platform=LAMBDA,
            copies=copies,
            repeats=3,
            dilation=lambda memory_mb, copies: Dilation(factor=2.0, why="a test"),
            hosts=self.host.opens,
            tell=lambda kind, fields: self.events.append((kind, dict(fields))),
        )

    def measure(self, tiers: tuple[int, ...], sizes: tuple[int, ...]) -> list[Point]:
        try:
            return measure(self.bench, tiers, sizes)
        finally:
            assert self.host.opened == self.host.closed

    @property
    def asked(self) -> list[tuple[int, tuple[int, int], tuple[int, ...]]]:
        return [(mb, (t.first_layer, t.stop_layer), t.sizes) for t, mb in self.host.tasks]

    @property
    def notes(self) -> list[str]:
        return [fields["text"] for kind, fields in self.events if kind == "note"]


def test_the_largest_memory_comes_first_and_alone_tells_of_bytes_and_requests() -> None:
    # Given a machine that runs two functions at once
    rig = Rig(copies=2)
    # When
    points = rig.measure((884, 3538), (1, 8))
    # Then
    assert rig.asked == [(3538, (0, 4), (1, 8))] * 2 + [(884, (0, 4), (1, 8))] * 2
    assert [(t.memory, t.transport) for t, _ in rig.host.tasks] == [(True, True)] * 2 + [
        (False, False)
    ] * 2
    assert len({t.token for t, _ in rig.host.tasks}) == 4
    assert [point.memory_mb for point in points] == [3538, 884]
    assert [len(copies) for point in points for copies in point.ranges] == [2, 2]
    # and half a second of this machine is a quarter of a platform that is twice as slow
    assert {t.least_s for t, _ in rig.host.tasks} == {0.25}


def test_smaller_functions_leave_out_the_sizes_that_they_cannot_hold() -> None:
    def fate(task: ProfileTask, memory_mb: int) -> tuple[str, int | None] | None:
        return ("out-of-memory", 8) if memory_mb < 1769 and 8 in task.sizes else None

    rig = Rig(fate)
    points = rig.measure((512, 1024, 1769), (1, 4, 8))
    # Then the smallest does not even try what the next larger one could not hold
    assert rig.asked == [
        (1769, (0, 4), (1, 4, 8)),
        (1024, (0, 4), (1, 4, 8)),
        (1024, (0, 4), (1, 4)),
        (512, (0, 4), (1, 4)),
    ]
    assert [point.sizes for point in points] == [(1, 4, 8), (1, 4), (1, 4)]
    assert rig.notes == ["1024 MB: not enough memory, micro-batches of 8 are left out there"]


def test_a_model_that_fits_no_function_is_measured_in_parts() -> None:
    def fate(task: ProfileTask, _: int) -> tuple[str, int | None] | None:
        return ("out-of-memory", None) if task.stop_layer - task.first_layer > 2 else None

    rig = Rig(fate, layers=4)
    points = rig.measure((512, 1769), (1, 4))
    assert rig.asked == [
        (1769, (0, 4), (1, 4)),
        (1769, (0, 2), (1, 4)),
        (1769, (2, 4), (1, 4)),
        (512, (0, 2), (1, 4)),
        (512, (2, 4), (1, 4)),
    ]
    assert [t.transport for t, _ in rig.host.tasks] == [True, True, False, False, False]
    assert [len(point.ranges) for point in points] == [2, 2]


def test_memory_sizes_without_room_for_a_layer_are_left_out() -> None:
    def fate(_: ProfileTask, memory_mb: int) -> tuple[str, int | None] | None:
        return ("out-of-memory", None) if memory_mb < 1769 else None

    rig = Rig(fate, layers=1)
    points = rig.measure((512, 1024, 1769), (1, 4))
    assert [point.memory_mb for point in points] == [1769]
    assert rig.notes == ["not even one layer fits into 1024 MB; not measured: 512, 1024 MB"]


def test_requests_are_measured_where_the_network_is_emulated_fastest() -> None:
    rig = Rig()
    rig.measure((512, 1769, 7076), (1,))
    assert [(mb, t.memory, t.transport) for t, mb in rig.host.tasks] == [
        (7076, True, False), (1769, False, True), (512, False, False)
    ]  # fmt: skip


def test_requests_are_measured_with_more_memory_if_those_functions_are_too_small() -> None:
    def fate(_: ProfileTask, memory_mb: int) -> tuple[str, int | None] | None:
        return ("out-of-memory", None) if memory_mb < 7076 else None

    rig = Rig(fate, layers=1)
    points = rig.measure((1769, 7076), (1,))
    assert [point.memory_mb for point in points] == [7076]
    assert points[0].results[0]["transport"] is not None


def test_a_layer_that_fits_nowhere_is_an_error_that_says_what_to_do() -> None:
    rig = Rig(lambda task, memory_mb: ("out-of-memory", None), layers=1)
    with pytest.raises(OutOfMemory, match=r"layer 0 cannot be measured with 1769 MB.*--tiers"):
        rig.measure((1769,), (1, 4))


@pytest.mark.parametrize(
    ("reason", "kind", "text"),
    [("failed", UserCodeError, "the model raised"), ("crashed", FunctionLost, "exit code 7")],
)
def test_the_error_of_a_function_is_raised_without_a_stage(
    reason: str, kind: type[Exception], text: str
) -> None:
    rig = Rig(lambda task, memory_mb: (reason, None))
    with pytest.raises(kind, match=text) as caught:
        rig.measure((1769,), (1,))
    assert "stage" not in str(caught.value)


def test_where_the_machine_has_no_memory_for_several_one_function_measures() -> None:
    started = []

    def fate(task: ProfileTask, _: int) -> tuple[str, int | None] | None:
        started.append(task)
        return ("killed", None) if len(started) == 1 else None

    rig = Rig(fate, copies=2)
    points = rig.measure((1024, 1769), (1,))
    assert [len(copies) for point in points for copies in point.ranges] == [1, 1]


def test_an_interrupt_ends_it_and_closes_the_host() -> None:
    rig = Rig()
    rig.host.exits = list  # type: ignore[method-assign]
    rig.bench.interrupted.set()
    with pytest.raises(Stopped):
        rig.measure((1769,), (1,))
    assert rig.host.closed == 1


def test_a_store_that_fails_closes_the_host_too(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()

    def refuse(*_: object) -> bytes:
        raise StoreError("gone")

    monkeypatch.setattr(rig.bench.store, "get", refuse)
    with pytest.raises(StoreError, match="gone"):
        rig.measure((1769,), (1,))


# -- attempts --------------------------------------------------------------------------------


def test_a_range_is_halved_by_what_its_layers_cost() -> None:
    assert halved((0, 4), [1, 1, 1, 9]) == ((0, 3), (3, 4))
    assert halved((1, 4), [9, 5, 1, 1]) == ((1, 2), (2, 4))
    assert halved((2, 3), [1, 1, 1]) == ((2, 3),)


def test_without_a_smaller_attempt_there_is_none() -> None:
    one = Attempt(memory_mb=512, sizes=(1,), ranges=((0, 1),))
    for complete in (True, False):
        assert smaller(one, 0, 1, complete=complete, costs=[1.0]) is None


# -- options ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "sizes"),
    [
        (1, (1,)),
        (2, (1, 2)),
        (32, (1, 4, 8, 16, 32)),
        (128, (1, 4, 16, 32, 128)),
        (6, (1, 2, 3, 6)),
    ],
)
def test_default_sizes_reach_from_one_to_the_batch(batch: int, sizes: tuple[int, ...]) -> None:
    found = default_sizes(batch)
    assert (found[0], found[-1], len(found)) == (1, batch, len(sizes))
    assert found == tuple(sorted(set(found)))


def test_default_tiers_are_those_of_the_platform_nearest_to_the_shares() -> None:
    assert default_tiers(LAMBDA) == (1024, 1769, 3538, 7076, 10240)
    chosen = default_tiers(load_platform("aws-lambda", changes={"cpu.vcpu": "2"}))
    assert chosen == (10240,)


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"emulate": "none"}, PlatformError, "`none` is none"),
        ({"repeat": 3}, PlanError, "did you mean repeats"),
        ({"repeats": 0}, PlanError, "repeats is 0"),
        ({"tiers_mb": (0,)}, PlanError, "tiers_mb is"),
        ({"micro_batch_sizes": ()}, PlanError, "micro_batch_sizes is"),
        ({"store": "mino"}, StoreError, "did you mean 'minio'"),
    ],
)
def test_wrong_options_are_refused(
    fields: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        ProfileOptions.of(fields)


def test_sizes_above_the_batch_and_tiers_that_do_not_exist_are_refused() -> None:
    options = ProfileOptions.of({"tiers_mb": [64], "micro_batch_sizes": 64})
    with pytest.raises(PlanError, match="64 MB is no memory size of aws-lambda"):
        options.tiers(LAMBDA)
    with pytest.raises(PlanError, match="the job's batch has 32 samples"):
        options.sizes(32)
    assert ProfileOptions.of({"tiers_mb": [1769, 512, 512]}).tiers(LAMBDA) == (512, 1769)
