"""What a plan is judged in: a model's profile, a platform, a batch, and how transfers behave."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from funcpipe.errors import PlanError
from funcpipe.partitioner.limits import MOST_COUNT, MOST_SAMPLES, is_count, shown
from funcpipe.partitioner.platform import PlatformSpec
from funcpipe.partitioner.profile import ModelProfile

__all__ = ["MOST_MICRO_BATCHES", "Setting"]

MOST_MICRO_BATCHES = 1 << 16
"""Of a step. Each is a request or more at every stage: nobody wants as many."""

# In steady steps of the examples, missed GETs were 0.3 to 2.4 times the others, mostly fewer.
MISSED_PER_GET = 1.0


@dataclass(frozen=True, kw_only=True)
class Setting:
    """batch_size: samples of a training step. num_steps: of the run, over which starts are spread;
    None leaves them out.

    latency_on_lane: whether a transfer occupies its direction during its latency too, as with one
    transfer at a time; otherwise latencies of successive transfers overlap. missed_per_get: how
    many billed GETs come too early for each that finds its object.
    """

    profile: ModelProfile
    platform: PlatformSpec
    batch_size: int
    num_steps: int | None = None
    latency_on_lane: bool = True
    missed_per_get: float = MISSED_PER_GET

    def __post_init__(self) -> None:
        for name in ("batch_size", "num_steps"):
            value = getattr(self, name)
            if name == "num_steps" and value is None:
                continue
            most = MOST_SAMPLES if name == "batch_size" else MOST_COUNT
            if not is_count(value, most=most):
                raise PlanError(
                    f"{name} is {shown(value)}; a whole number of at least 1 and at most {most:,} "
                    "is needed"
                )
        missed = self.missed_per_get
        if not isinstance(missed, int | float) or not 0 <= missed <= 1000:
            raise PlanError(f"missed_per_get is {shown(missed)}; expected 0 to 1000")
        if not self.platform.limited:
            raise PlanError(
                "`none` is no platform to plan for: it has neither limits nor prices; "
                "`funcpipe platforms` lists those that have"
            )

    @property
    def hop_s(self) -> float:
        """What delays a transfer at each of its ends without occupying their directions.

        Latency, unless that does occupy them; and half of what a message is noticed late by, which
        its sending and its receiving share.
        """
        latency = 0.0 if self.latency_on_lane else self.platform.network.latency_s
        return latency + self.profile.late_s / 2

    @property
    def lane_latency_s(self) -> float:
        """Latency for which a transfer occupies its direction."""
        return self.platform.network.latency_s if self.latency_on_lane else 0.0

    @cached_property
    def tiers_mb(self) -> tuple[int, ...]:
        return self.platform.memory.tiers_mb

    def num_micro_batches(self, micro_batch_size: int) -> int:
        """PlanError for more than `MOST_MICRO_BATCHES`."""
        num = -(-self.batch_size // micro_batch_size)
        if num > MOST_MICRO_BATCHES:
            least = -(-self.batch_size // MOST_MICRO_BATCHES)
            raise PlanError(
                f"a batch of {self.batch_size} samples is {num} micro-batches of "
                f"{micro_batch_size}; at most {MOST_MICRO_BATCHES} can be planned for, which takes "
                f"micro-batches of at least {least} samples"
            )
        return num
