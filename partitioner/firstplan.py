"""A good plan at once, for others to beat: shortest paths under simple prices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from funcpipe.partitioner.columns import Bools, Floats
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.rowbounds import Limits, row_bounds
from funcpipe.partitioner.table import Table
from funcpipe.partitioner.waits import waits_s

__all__ = ["first_rows", "measure"]

# Shares of the value given to time, and of the rows that are slowest to be left out.
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
CAPS = (1.0, 0.6, 0.35, 0.2, 0.1)


def measure(table: Table, rows: Sequence[int]) -> tuple[float, float]:
    """Seconds and dollars of a step of a path under `gpipe`, as `cost.evaluate` has them."""
    chosen = list(rows)
    degrees = [int(d) for d in table.degree[chosen]]
    lanes_b = table.lane_b[chosen].tolist()
    budget = table.num_micro_batches - 1
    fills = np.cumsum(table.fill_b[chosen][::-1])[::-1]
    ends = [
        fills[s] + waits_s(lanes_b[s:], degrees[s:], budget) + table.tail[row]
        for s, row in enumerate(chosen)
    ]
    forward = float(table.fill_f[chosen].sum())
    forward += waits_s(table.lane_f[chosen].tolist(), degrees, budget)
    time_s = float(forward + max(ends))
    return time_s, float(time_s * table.per_s[chosen].sum() + table.per_step[chosen].sum())


def first_rows(
    table: Table, goal: Goal, limits: Limits, check: Callable[[], None] = lambda: None
) -> list[int] | None:
    """The rows of a plan that keeps to all limits, or None if none is found so quickly.

    check: called often; what it raises ends it.

    Under a price for each second and each dollar, and without rows whose lanes are slow, the best
    plan of every number of stages is a shortest path. limits.value: only a plan below it is of use.
    """
    best, best_value = None, limits.value
    for rows in _candidates(table, goal, limits):
        check()
        time_s, dollars = measure(table, rows)
        value = goal.value(time_s, dollars)
        functions = int(table.degree[rows].sum())
        if limits.max_functions is not None and functions > limits.max_functions:
            continue
        if value < best_value and goal.allows(time_s, dollars):
            best, best_value = rows, value
    return best


def _candidates(table: Table, goal: Goal, limits: Limits) -> Iterator[list[int]]:
    bounds = row_bounds(table, goal, limits)
    if not bounds.alive.any():
        return
    most = table.num_layers if limits.max_stages is None else limits.max_stages
    time_s, dollars = bounds.time_s or 1.0, bounds.dollars or 1.0
    seconds = (table.fill_f + table.fill_b) / time_s
    money = (time_s * table.per_s + table.per_step) / dollars
    lanes = ((table.num_micro_batches - 1) // table.degree) * (table.lane_f + table.lane_b)
    for weight, cap, degree in product(WEIGHTS, CAPS, table.combination.degrees):
        allowed = bounds.alive & (table.degree <= degree)
        if not allowed.any():
            continue
        allowed &= lanes <= np.quantile(lanes[allowed], cap)
        costs = weight * seconds + (1 - weight) * money
        yield from _shortest(table, allowed, costs, limits.min_stages, most)


def _shortest(
    table: Table, allowed: Bools, costs: Floats, least: int, most: int
) -> Iterator[list[int]]:
    """The cheapest path of each number of rows from `least` to `most`."""
    layers = table.num_layers
    sums: Floats = np.full((most + 1, layers + 1), math.inf)
    sums[0, 0] = 0.0
    came: NDArray[np.int64] = np.full((most + 1, layers + 1), -1)
    rows = np.flatnonzero(allowed)
    edges = np.searchsorted(table.stop[rows], np.arange(layers + 2))
    for stop in range(1, layers + 1):
        here = rows[edges[stop] : edges[stop + 1]]
        if not len(here):
            continue
        reached = sums[:-1, table.start[here]] + costs[here]
        chosen = np.argmin(reached, axis=1)
        sums[1:, stop] = reached[np.arange(most), chosen]
        came[1:, stop] = here[chosen]
    for number in range(least, most + 1):
        if math.isfinite(sums[number, layers]):
            path, stop = [], layers
            for left in range(number, 0, -1):
                row = int(came[left, stop])
                path.append(row)
                stop = int(table.start[row])
            yield path[::-1]
