"""Strategies: stages with any times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from funcpipe.partitioner.lanes import StageTimes

# Small whole numbers make ties, and zero is a time too.
SECONDS = st.one_of(st.integers(0, 4).map(float), st.floats(1e-3, 5.0))
SCHEDULES = st.sampled_from(["gpipe", "1f1b"])
METHODS = st.sampled_from(["pipelined", "three-phase"])
HOPS = st.one_of(st.just(0.0), SECONDS)


@dataclass(frozen=True)
class Case:
    """A simulation's input."""

    times: list[StageTimes]
    num_micro_batches: int
    schedule: str
    in_flight: int | None
    sync: str

    @property
    def options(self) -> dict[str, object]:
        return {
            "num_micro_batches": self.num_micro_batches,
            "schedule": self.schedule,
            "in_flight": self.in_flight,
            "sync": self.sync,
        }


@st.composite
def stage_times(
    draw: st.DrawFn, degrees: Sequence[int], *, hop_s: float | None = None
) -> list[StageTimes]:
    """Stages of these degrees, some without parameters."""
    hop = draw(HOPS) if hop_s is None else hop_s
    stages = []
    for s, degree in enumerate(degrees):
        is_first, is_last = s == 0, s == len(degrees) - 1
        synchronises = degree > 1 and draw(st.integers(0, 3)) > 0
        stages.append(
            StageTimes(
                degree=degree,
                down_f=None if is_first else draw(SECONDS),
                compute_f=draw(SECONDS),
                up_f=None if is_last else draw(SECONDS),
                down_b=None if is_last else draw(SECONDS),
                compute_b=draw(SECONDS),
                up_b=None if is_first else draw(SECONDS),
                hop_s=hop,
                synchronises=synchronises,
                part_up_s=draw(SECONDS) if synchronises else 0.0,
                part_down_s=draw(SECONDS) if synchronises else 0.0,
                step_s=draw(SECONDS),
            )
        )
    return stages


def equal_degrees(most_stages: int = 4, most: int = 4) -> st.SearchStrategy[list[int]]:
    return st.builds(
        lambda num, degree: [degree] * num, st.integers(1, most_stages), st.integers(1, most)
    )


def any_degrees(most_stages: int = 4, most: int = 4) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(1, most), min_size=1, max_size=most_stages)


@st.composite
def cases(
    draw: st.DrawFn,
    degrees: st.SearchStrategy[list[int]],
    *,
    schedules: st.SearchStrategy[str] = SCHEDULES,
    most_micro_batches: int = 8,
    divisible: bool = False,
    hop_s: float | None = None,
) -> Case:
    """divisible: into equally many micro-batches for all replicas."""
    chosen = draw(degrees)
    num = draw(st.integers(1, most_micro_batches))
    return Case(
        times=draw(stage_times(chosen, hop_s=hop_s)),
        num_micro_batches=num * chosen[0] if divisible else num,
        schedule=draw(schedules),
        in_flight=draw(st.one_of(st.none(), st.integers(1, 12))),
        sync=draw(METHODS),
    )


def smaller(times: Sequence[StageTimes], share: float) -> list[StageTimes]:
    """The times of a micro-batch with a share of the samples."""

    def part(seconds: float | None) -> float | None:
        return None if seconds is None else seconds * share

    return [
        replace(
            one,
            down_f=part(one.down_f),
            compute_f=one.compute_f * share,
            up_f=part(one.up_f),
            down_b=part(one.down_b),
            compute_b=one.compute_b * share,
            up_b=part(one.up_b),
        )
        for one in times
    ]
