"""How long a pipeline waits for its slowest lanes, when stages have different degrees.

A micro-batch passes every stage once: the fill. Whoever comes after it waits for the replica that
it shares with an earlier one. Micro-batch k of a stage of degree d follows micro-batch k - d on
the same lanes, so the longest chain of waits to micro-batch M - 1 takes n_s steps of stage s with
sum n_s d_s <= M - 1, and lasts max(sum n_s lane_s): an unbounded knapsack of budget M - 1. With
one degree d for all that is (ceil(M / d) - 1) x the slowest lane.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from funcpipe.errors import PlanError

__all__ = ["check_chain", "counts_of", "waits_s"]


def waits_s(lanes_s: Sequence[float], degrees: Sequence[int], budget: int) -> float:
    """Seconds of the longest chain of waits. lanes_s: the busiest lane of each stage of `degrees`.

    budget: M - 1 for M micro-batches.
    """
    best: dict[int, float] = {}
    for lane, degree in zip(lanes_s, degrees, strict=True):
        best[degree] = max(best.get(degree, 0.0), lane)
    if len(best) == 1:
        ((degree, lane),) = best.items()
        return (budget // degree) * lane
    chain = sorted(best)
    if all(high % low == 0 for low, high in pairwise(chain)):
        return _of_chain([best[degree] for degree in chain], chain, budget)
    return _knapsack(best, budget)


def _of_chain(lanes_s: Sequence[float], degrees: Sequence[int], budget: int) -> float:
    """As `counts_of` says."""
    total = block = 0.0
    before = 1
    for lane, degree, count in zip(lanes_s, degrees, counts_of(degrees, budget), strict=True):
        block = max(lane, degree // before * block)
        total += count * block
        before = degree
    return total


def _knapsack(best: Mapping[int, float], budget: int) -> float:
    """By every budget from 0 on: takes as long as there are micro-batches."""
    items = list(best.items())
    reached = [0.0] * (budget + 1)
    for load in range(1, budget + 1):
        steps = [reached[load - degree] + lane for degree, lane in items if degree <= load]
        reached[load] = max([reached[load - 1], *steps])
    return reached[budget]


def check_chain(degrees: Sequence[int]) -> tuple[int, ...]:
    """Degrees that stages may choose from: growing, each a divisor of the next.

    Then the knapsack has a closed form, which is linear (`counts_of`); PlanError otherwise.
    """
    chosen = tuple(sorted(set(degrees)))
    for low, high in pairwise(chosen):
        if high % low:
            raise PlanError(
                f"degrees {', '.join(map(str, chosen))} per stage: {low} does not divide {high}; "
                "choose degrees that each divide the next, such as 1,2,4"
            )
    return chosen


def counts_of(degrees: Sequence[int], budget: int) -> tuple[int, ...]:
    """The knapsack of a chain of divisors in closed form: how often each degree's block occurs.

    With v_1 = lane_1 and v_i = max(lane_i, (d_i / d_(i-1)) v_(i-1)), the waits are sum c_i v_i for
    the c_i returned here: what is left over by the blocks of d_(i+1) is cut into blocks of d_i.
    """
    counts = []
    for index, degree in enumerate(degrees):
        left = budget % degrees[index + 1] if index + 1 < len(degrees) else budget
        counts.append(left // degree)
    return tuple(counts)
