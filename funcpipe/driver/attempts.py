"""What to measure next when a function was too small for what it was to measure. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

__all__ = ["Attempt", "halved", "smaller"]


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """With one memory size: micro-batch `sizes`, growing, of each range of layers, in order."""

    memory_mb: int
    sizes: tuple[int, ...]
    ranges: tuple[tuple[int, int], ...]


def smaller(
    attempt: Attempt, failed: int, reached: int, *, complete: bool, costs: Sequence[float]
) -> Attempt | None:
    """The attempt after one whose range number `failed` did not fit; None: nothing fits.

    reached: the micro-batch size at which it ended. complete: whether all sizes
    are wanted here, because no other memory size has been measured yet: then layers are spread
    over more functions first, and sizes are only left out when a single layer is too large. Where
    they are known from elsewhere, they are left out first. costs: of each layer, by which a range
    is halved.
    """
    halves = halved(attempt.ranges[failed], costs)
    split = replace(
        attempt, ranges=(*attempt.ranges[:failed], *halves, *attempt.ranges[failed + 1 :])
    )
    kept = tuple(size for size in attempt.sizes if size < reached)
    fewer = replace(attempt, sizes=kept) if kept else None
    wanted = (split, fewer) if complete else (fewer, split)
    for one in wanted:
        if one is not None and one != attempt:
            return one
    return None


def halved(layers: tuple[int, int], costs: Sequence[float]) -> tuple[tuple[int, int], ...]:
    """Two ranges of about the same cost, or the same one if it is a single layer."""
    first, stop = layers
    if stop - first < 2:
        return (layers,)
    half = sum(costs[first:stop]) / 2
    cut = min(range(first + 1, stop), key=lambda cut: abs(sum(costs[first:cut]) - half))
    return ((first, cut), (cut, stop))
