"""What a user may choose about measuring a job, checked before anything is started."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from funcpipe.driver.options import RunOptions
from funcpipe.errors import PlanError, PlatformError
from funcpipe.partitioner.figures import as_text, near
from funcpipe.partitioner.limits import is_count, shown
from funcpipe.partitioner.platform import PlatformSpec, load_platform

__all__ = ["VCPUS", "ProfileOptions", "default_sizes", "default_tiers", "evenly"]

VCPUS = (0.5, 1.0, 2.0, 4.0, math.inf)
"""Shares of CPUs at about which times are taken, unless the user names memory sizes."""
MOST_SIZES = 5
MOST_REPEATS = 1000


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """emulate, set, store, endpoint, region, threads: as in `RunOptions`. tiers_mb: memory sizes to
    measure with (None: those whose share of CPUs is about 0.5, 1, 2, 4, and the largest one).
    micro_batch_sizes: samples of a micro-batch (None: the batch, and parts of it). repeats: passes
    of each size, at least.
    """

    emulate: str = "aws-lambda"
    set: Mapping[str, str] = field(default_factory=dict)
    tiers_mb: tuple[int, ...] | None = None
    micro_batch_sizes: tuple[int, ...] | None = None
    repeats: int = 5
    store: str = "auto"
    endpoint: str | None = None
    region: str | None = None
    threads: int | None = None

    @staticmethod
    def of(fields: Mapping[str, Any]) -> ProfileOptions:
        """From keywords: an unknown one is named; lists, and single values of them, are taken."""
        known = ProfileOptions.__dataclass_fields__
        for name in fields:
            if name not in known:
                raise PlanError(f"unknown option {shown(name)}{near(str(name), known)}")
        chosen = dict(fields)
        for name in ("tiers_mb", "micro_batch_sizes"):
            value = chosen.get(name)
            if value is not None:
                chosen[name] = tuple(value) if isinstance(value, list | tuple) else (value,)
        if isinstance(chosen.get("set"), Mapping):
            chosen["set"] = {path: as_text(value) for path, value in chosen["set"].items()}
        return ProfileOptions(**chosen)

    def __post_init__(self) -> None:
        if self.emulate == "none":
            raise PlatformError(
                "a profile is measured on a platform, with its shares of CPUs, and `none` is none; "
                "`funcpipe platforms` lists those there are"
            )
        for name in ("tiers_mb", "micro_batch_sizes"):
            values = getattr(self, name)
            if values is not None and not (values and all(is_count(value) for value in values)):
                raise PlanError(f"{name} is {shown(values)}; expected whole numbers from 1")
            if values is not None:
                object.__setattr__(self, name, tuple(sorted(set(values))))
        if not is_count(self.repeats, most=MOST_REPEATS):
            raise PlanError(
                f"repeats is {shown(self.repeats)}; expected a whole number from 1 to "
                f"{MOST_REPEATS:,}"
            )
        self.run_options(1)

    def run_options(self, micro_batch_size: int) -> RunOptions:
        """Of a run that this is to tell of, on one stage; checks what the two have in common."""
        return RunOptions(
            stages=1,
            micro_batch_size=micro_batch_size,
            emulate=self.emulate,
            set=self.set,
            store=self.store,
            endpoint=self.endpoint,
            region=self.region,
            threads=self.threads,
        )

    def platform(self) -> PlatformSpec:
        return load_platform(self.emulate, changes=self.set)

    def tiers(self, platform: PlatformSpec) -> tuple[int, ...]:
        """Memory sizes to measure with, growing; PlanError for one that the platform has not."""
        if self.tiers_mb is None:
            return default_tiers(platform)
        for size in self.tiers_mb:
            platform.check_memory(size, "tiers_mb")
        return _distinct(self.tiers_mb, platform)

    def sizes(self, batch_size: int) -> tuple[int, ...]:
        """Micro-batch sizes, growing; PlanError for one above the batch."""
        if self.micro_batch_sizes is None:
            return default_sizes(batch_size)
        for size in self.micro_batch_sizes:
            if size > batch_size:
                raise PlanError(
                    f"micro_batch_sizes has {size:,}; the job's batch has {batch_size:,} samples, "
                    "and a micro-batch is a part of it"
                )
        return self.micro_batch_sizes


def default_sizes(batch_size: int) -> tuple[int, ...]:
    """The batch divided by powers of two, down to 1: evenly chosen ones if they are many."""
    sizes = sorted({-(-batch_size // 2**power) for power in range(batch_size.bit_length() + 1)})
    return evenly(sizes, MOST_SIZES)


def evenly(values: Sequence[int], most: int) -> tuple[int, ...]:
    """At most so many, the first and the last among them."""
    if len(values) <= most:
        return tuple(values)
    step = (len(values) - 1) / (most - 1)
    return tuple(values[round(number * step)] for number in range(most))


def default_tiers(platform: PlatformSpec) -> tuple[int, ...]:
    """Of the sizes that are planned with, those whose shares of CPUs are nearest to `VCPUS`."""
    tiers = _distinct(platform.memory.tiers_mb, platform)
    shares = {size: platform.vcpu(size) for size in tiers}
    most = max(shares.values())
    chosen = {
        min(tiers, key=lambda size: abs(math.log(shares[size] / min(vcpu, most)))) for vcpu in VCPUS
    }
    return tuple(sorted(chosen))


def _distinct(tiers: Sequence[int], platform: PlatformSpec) -> tuple[int, ...]:
    """One for each share of CPUs, with the most memory."""
    largest = {platform.vcpu(size): size for size in sorted(tiers)}
    return tuple(sorted(largest.values()))
