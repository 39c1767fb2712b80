"""From many measurements to one figure: pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

__all__ = ["Block", "Line", "line", "mid", "scaled", "spread", "stretched"]


@dataclass(frozen=True, kw_only=True)
class Block:
    """A stretch of measuring: seconds of the platform, CPU seconds in all and of what is asked.

    parts: CPU seconds of each kind of action in it, counts: how many of these there were.
    """

    wall_s: float
    cpu_s: float
    parts: tuple[float, ...]
    counts: tuple[int, ...]

    @property
    def stretch(self) -> float:
        return self.wall_s / self.cpu_s if self.cpu_s > 0 else 1.0


def mid(blocks: Sequence[Block]) -> list[Block]:
    """The middle half by stretch, at least one: what interrupted the others is left out."""
    cut = len(blocks) // 4
    ordered = sorted(blocks, key=lambda block: block.stretch)
    return ordered[cut : len(ordered) - cut]


def stretched(blocks: Sequence[Block]) -> tuple[float, ...]:
    """Seconds of the platform that an action of each kind takes.

    A quota of CPU time lets a process run, then stops it for a while: short actions meet a whole
    pause or none. So it is CPU time that is told apart, and stretched as all of it was.
    """
    chosen = mid(blocks)
    wall_s = sum(block.wall_s for block in chosen)
    cpu_s = sum(block.cpu_s for block in chosen)
    stretch = wall_s / cpu_s if cpu_s > 0 else 1.0
    kinds = range(len(blocks[0].parts))
    counts = [sum(block.counts[kind] for block in chosen) for kind in kinds]
    return tuple(
        stretch * sum(block.parts[kind] for block in chosen) / max(1, counts[kind])
        for kind in kinds
    )


def spread(values: Sequence[float]) -> float:
    """Interquartile range / median; 0 for fewer than two values."""
    if len(values) < 2 or median(values) <= 0:
        return 0.0
    low, _, high = quantiles(values, n=4, method="inclusive")
    return (high - low) / median(values)


def scaled(shares: Sequence[Sequence[float]], total: float) -> list[float]:
    """`total`, split by the median of several measured shares of each; it is their sum."""
    medians = [max(0.0, median(column)) for column in zip(*shares, strict=True)]
    whole = math.fsum(medians)
    if whole <= 0:
        return [total / len(medians)] * len(medians)
    return [total * one / whole for one in medians]


@dataclass(frozen=True)
class Line:
    """fixed + slope x size."""

    fixed: float
    slope: float


def line(sizes: Sequence[int], values: Sequence[float]) -> Line:
    """Through the values at the first and the last size, neither part of it below 0.

    It is nowhere below one of the two values. One size alone: all in proportion.
    """
    if len(sizes) == 1:
        return Line(0.0, values[0] / sizes[0])
    slope = max(0.0, (values[-1] - values[0]) / (sizes[-1] - sizes[0]))
    fixed = values[0] - slope * sizes[0]
    if fixed < 0:
        return Line(0.0, max(v / s for v, s in zip(values, sizes, strict=True)))
    return Line(max(v - slope * s for v, s in zip(values, sizes, strict=True)), slope)
