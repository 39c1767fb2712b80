"""What a planner may choose, and how far it may go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from funcpipe.errors import PlanError
from funcpipe.partitioner.limits import MOST_COUNT, is_count, shown
from funcpipe.partitioner.plan import METHODS, SCHEDULES
from funcpipe.partitioner.setting import MOST_MICRO_BATCHES, Setting
from funcpipe.partitioner.waits import check_chain

__all__ = ["RECOMPUTE", "Combination", "Space"]

MOST_DEPTH = 10**6  # times the stages of a plan it is a number that a plan can have
RECOMPUTE = ("never", "always", "choose")
MOST_SIMULATED = 1 << 12
"""Micro-batches of a step under 1f1b."""


@dataclass(frozen=True, kw_only=True)
class Combination:
    """What holds for all stages of a plan. degrees: those that each stage chooses from.

    depth: under `1f1b`, micro-batches in flight at the first stage for each stage of the plan.
    """

    micro_batch_size: int
    degrees: tuple[int, ...]
    schedule: str = "gpipe"
    depth: int = 1
    sync: str = "pipelined"


@dataclass(frozen=True, kw_only=True)
class Space:
    """None lets the planner choose, within the platform.

    micro_batch_sizes: samples (None: 1, 2, 4 ... and the batch). degrees: replicas of a stage.
    per_stage: whether stages may differ in it. schedules: `gpipe`, `1f1b`. depths: under `1f1b`,
    micro-batches in flight at the first stage for each stage of the plan. recompute: `never`,
    `always`, or each stage's choice. sync: methods. tiers_mb: memory sizes. max_functions: of the
    plan (None: as many as the platform runs at once). max_stages, min_stages: cuts.
    """

    micro_batch_sizes: tuple[int, ...] | None = None
    degrees: tuple[int, ...] = (1, 2, 4, 8, 16)
    per_stage: bool = False
    schedules: tuple[str, ...] = ("gpipe",)
    depths: tuple[int, ...] = (1, 2)
    recompute: str = "never"
    sync: tuple[str, ...] = ("pipelined",)
    tiers_mb: tuple[int, ...] | None = None
    max_functions: int | None = None
    min_stages: int = 1
    max_stages: int | None = None

    def __post_init__(self) -> None:
        for name in ("micro_batch_sizes", "degrees", "depths", "tiers_mb"):
            values = getattr(self, name)
            if values is not None or name in ("degrees", "depths"):
                object.__setattr__(self, name, _counts(name, values))
        for name, known in (("schedules", SCHEDULES), ("sync", METHODS)):
            object.__setattr__(self, name, _choices(name, getattr(self, name), known))
        _choices("recompute", (self.recompute,), RECOMPUTE)
        for name in ("max_functions", "min_stages", "max_stages"):
            value = getattr(self, name)
            if not is_count(value) and (value is not None or name == "min_stages"):
                raise PlanError(
                    f"{name} is {shown(value)}; expected a whole number from 1 to {MOST_COUNT:,}"
                )
        if self.max_stages is not None and self.max_stages < self.min_stages:
            raise PlanError(
                f"min_stages is {self.min_stages} and max_stages {self.max_stages}; expected the "
                "first to be the smaller one"
            )
        if not isinstance(self.per_stage, bool):
            raise PlanError(f"per_stage is {shown(self.per_stage)}; expected True or False")
        if self.per_stage:
            check_chain(self.degrees)

    def sizes(self, setting: Setting) -> tuple[int, ...]:
        """Micro-batch sizes to try, growing; none above the batch."""
        batch = setting.batch_size
        if self.micro_batch_sizes is None:
            least = -(-batch // MOST_MICRO_BATCHES)
            if self.schedules == ("1f1b",):
                least = -(-batch // MOST_SIMULATED)
            powers = {1 << i for i in range(batch.bit_length()) if least <= 1 << i <= batch}
            return tuple(sorted(powers | {batch}))
        for size in self.micro_batch_sizes:
            num = setting.num_micro_batches(size)
            if self.schedules == ("1f1b",) and num > MOST_SIMULATED:
                raise PlanError(
                    f"{num} micro-batches of {size} samples; steps of 1f1b are simulated, of at "
                    f"most {MOST_SIMULATED}: choose larger micro-batches"
                )
            if size > batch:
                raise PlanError(
                    f"a micro-batch of {size} samples is larger than the batch of {batch}; choose "
                    f"at most {batch}"
                )
        return self.micro_batch_sizes

    def tiers(self, setting: Setting) -> tuple[int, ...]:
        """Memory sizes to try, growing; PlanError for one that the platform does not have."""
        if self.tiers_mb is None:
            return setting.tiers_mb
        for size in self.tiers_mb:
            setting.platform.check_memory(size, "memory to choose from")
        return self.tiers_mb

    def most_functions(self, setting: Setting) -> int | None:
        """None: without a bound."""
        limits = (self.max_functions, setting.platform.invocation.concurrency)
        return min((limit for limit in limits if limit is not None), default=None)

    def most_stages(self, setting: Setting) -> int:
        """Never more than layers; PlanError for a least number that cannot be."""
        layers = setting.profile.num_layers
        if self.min_stages > layers:
            raise PlanError(
                f"at least {self.min_stages} stages were asked for, but the model has {layers} "
                f"layers; ask for at most {layers}"
            )
        return layers if self.max_stages is None else min(layers, self.max_stages)

    def combinations(self, setting: Setting) -> Iterator[Combination]:
        """All that a plan has in common, in a fixed order. Degrees above M would idle.

        1f1b is simulated, so steps of more than `MOST_SIMULATED` micro-batches are left out.
        """
        for size in self.sizes(setting):
            num = setting.num_micro_batches(size)
            useful = [degree for degree in self.degrees if degree <= num]
            schedules = [s for s in self.schedules if s == "gpipe" or num <= MOST_SIMULATED]
            groups = [tuple(useful)] if self.per_stage else [(d,) for d in useful]
            for degrees in filter(None, groups):
                for sync in self.sync:
                    for schedule in schedules:
                        for depth in (1,) if schedule == "gpipe" else self.depths:
                            yield Combination(
                                micro_batch_size=size,
                                degrees=degrees,
                                schedule=schedule,
                                depth=depth,
                                sync=sync,
                            )


def _counts(name: str, values: Sequence[int]) -> tuple[int, ...]:
    most = MOST_DEPTH if name == "depths" else MOST_COUNT
    good = isinstance(values, list | tuple) and all(is_count(value, most=most) for value in values)
    if not (good and values):
        raise PlanError(
            f"{name} is {shown(values)}; expected whole numbers from 1 to {most:,}, at least one"
        )
    return tuple(sorted(set(values)))


def _choices(name: str, values: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    good = isinstance(values, list | tuple) and values and all(value in known for value in values)
    if not good:
        raise PlanError(f"{name}: {shown(values)}; known: {', '.join(known)}")
    return tuple(dict.fromkeys(values))
