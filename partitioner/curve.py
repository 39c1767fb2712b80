"""Curves over memory: what a platform gives a function by its memory size."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

from funcpipe.errors import PlatformError
from funcpipe.partitioner.limits import shown

__all__ = ["BETWEEN", "Curve"]

BETWEEN = ("linear", "step")


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A value for every memory size, from some points ``(memory_mb, value)`` in order of memory.

    between: `linear` draws a straight line from point to point; `step` keeps a point's value until
    the next point. Below the first and above the last point their values hold, either way.
    """

    points: tuple[tuple[float, float], ...]
    between: str = "linear"

    def __post_init__(self) -> None:
        if self.between not in BETWEEN:
            raise PlatformError(f"`between` is {shown(self.between)}; known: {', '.join(BETWEEN)}")
        if not self.points:
            raise PlatformError("a curve needs at least one point [memory_mb, value]")
        if not all(math.isfinite(number) for point in self.points for number in point):
            raise PlatformError("a curve's points are finite numbers")
        sizes = [size for size, _ in self.points]
        if any(later <= size for size, later in pairwise(sizes)):
            raise PlatformError(
                f"a curve's memory sizes must grow from point to point: {shown(sizes)}"
            )

    @staticmethod
    def flat(value: float) -> Curve:
        """The same value everywhere."""
        return Curve(points=((0.0, value),))

    @property
    def least(self) -> float:
        return min(value for _, value in self.points)

    def at(self, memory_mb: float) -> float:
        index = bisect_right([size for size, _ in self.points], memory_mb)
        if index == 0:
            return self.points[0][1]
        size, value = self.points[index - 1]
        if self.between == "step" or index == len(self.points):
            return value
        next_size, next_value = self.points[index]
        return value + (next_value - value) * (memory_mb - size) / (next_size - size)
