"""What a plan takes at least if it has a certain row: bounds that need no solver.

Everything here is about `gpipe`. A plan is a path of rows, so the least sum of anything additive
over all paths through a row comes from one pass from either end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from funcpipe.partitioner.columns import Bools, Floats
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.table import Table

__all__ = ["Limits", "RowBounds", "row_bounds"]

# Sums over the same rows in another order differ in their last digits.
SLACK = 1e-9


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What restricts a plan beside the goal's bounds. value: that a plan may have at most."""

    min_stages: int = 1
    max_stages: int | None = None
    max_functions: int | None = None
    value: float = math.inf


@dataclass(frozen=True, kw_only=True)
class RowBounds:
    """Of every row. alive: whether a plan within all limits may have it. least_s, least_dollars,
    least_value: of any such plan, seconds, dollars and the goal's value. most_s: seconds that such
    a plan can take without breaking a limit.
    """

    table: Table
    alive: Bools
    least_s: Floats
    least_dollars: Floats
    least_value: Floats
    most_s: Floats

    @property
    def value(self) -> float:
        """No plan of this combination has less; infinite if there is none."""
        return self._over_layers(self.least_value)

    @property
    def time_s(self) -> float:
        return self._over_layers(self.least_s)

    @property
    def dollars(self) -> float:
        return self._over_layers(self.least_dollars)

    @property
    def latest_s(self) -> float:
        """No plan of use takes longer."""
        return -self._over_layers(-self.most_s)

    def _over_layers(self, values: Floats) -> float:
        return float(np.max(_least_covering(self.table, np.where(self.alive, values, math.inf))))


def row_bounds(table: Table, goal: Goal, limits: Limits) -> RowBounds:
    """Bounds of all rows. Rows that no plan can have make others impossible: until none does."""
    alive = np.ones(len(table), dtype=bool)
    while True:
        found = _bounds(table, goal, limits, alive)
        if not found.alive.any() or (found.alive == alive).all():
            return found
        alive = found.alive


def _bounds(table: Table, goal: Goal, limits: Limits, alive: Bools) -> RowBounds:
    paths = _Paths(table, alive)
    least_s = _least_s(table, paths)
    per_s, per_step = paths.through(table.per_s), paths.through(table.per_step)
    fastest = float(np.min(least_s, initial=math.inf))
    together = paths.through(
        np.where(alive, min(fastest, 1e300) * table.per_s + table.per_step, math.inf)
    )
    with np.errstate(invalid="ignore"):
        dollars = np.maximum(least_s * per_s + per_step, together)
        value = goal.time_weight * least_s + goal.cost_weight * dollars
    most_s = _most_s(goal, limits, paths, per_s, per_step)
    keeps = alive & np.isfinite(least_s) & (least_s <= most_s * (1 + SLACK))
    keeps &= dollars <= goal.max_cost * (1 + SLACK)
    keeps &= value <= limits.value * (1 + SLACK)
    keeps &= _counted(table, limits, paths)
    return RowBounds(
        table=table,
        alive=keeps,
        least_s=least_s,
        least_dollars=dollars,
        least_value=value,
        most_s=most_s,
    )


def _counted(table: Table, limits: Limits, paths: _Paths) -> Bools:
    ones = np.ones(len(table))
    most = table.num_layers if limits.max_stages is None else limits.max_stages
    fine = (paths.through(ones) <= most) & (-paths.through(-ones) >= limits.min_stages)
    if limits.max_functions is not None:
        fine &= paths.through(table.degree.astype(np.float64)) <= limits.max_functions
    return fine


def _least_s(table: Table, paths: _Paths) -> Floats:
    """Least seconds of a step with each row, by the two ends that are easiest to bound.

    The first stage ends after all fills and the waits of all; the row's own after the fills from it
    on, and its tail. Waits last at least as long as those of the row alone, or of the best row of
    any layer.
    """
    steps = (table.num_micro_batches - 1) // table.degree
    lane_f, lane_b = steps * table.lane_f, steps * table.lane_b
    if not paths.alive.any():
        return np.full(len(table), math.inf)
    floor_f = float(np.max(_least_covering(table, np.where(paths.alive, lane_f, math.inf))))
    floor_b = float(np.max(_least_covering(table, np.where(paths.alive, lane_b, math.inf))))
    waits_f = np.maximum(lane_f, floor_f)
    fill_f = paths.through(table.fill_f)
    first = (table.start == 0) & paths.alive
    tail = np.where(table.start == 0, table.tail, np.min(table.tail[first], initial=math.inf))
    whole = paths.through(table.fill_f + table.fill_b) + np.maximum(lane_b, floor_b) + tail
    own = fill_f + table.fill_b + paths.behind(table.fill_b)[table.stop] + lane_b + table.tail
    return np.asarray(waits_f + np.maximum(whole, own))


def _most_s(goal: Goal, limits: Limits, paths: _Paths, per_s: Floats, per_step: Floats) -> Floats:
    """Seconds that a plan with each row can take within the bounds on time, dollars and value.

    Without any bound: the longest fills, and as many waits as the least degree allows, each for the
    slowest lane. per_s, per_step: least dollars of a plan with the row.
    """
    table, alive = paths.table, paths.alive
    if not alive.any():
        return np.full(len(table), -math.inf)
    longest = -paths.through(-(table.fill_f + table.fill_b))
    reached = np.isfinite(longest)
    longest = np.where(reached, longest, 0.0)
    steps = (table.num_micro_batches - 1) // int(table.degree[alive].min())
    slowest = float(table.lane_f[alive].max() + table.lane_b[alive].max())
    most = longest + steps * slowest + max(0.0, float(table.tail[alive].max()))
    most = np.minimum(most, goal.max_time_s)
    for bound, weight, rate in (
        (limits.value, goal.time_weight, goal.cost_weight),
        (goal.max_cost, 0.0, 1.0),
    ):
        if math.isfinite(bound):
            left = bound - rate * np.where(reached, per_step, 0.0)
            rates = weight + rate * np.where(reached, per_s, 0.0)
            times = np.divide(left, rates, out=np.full(len(table), math.inf), where=rates > 0)
            most = np.minimum(most, times)
    return np.where(reached, most + SLACK * np.abs(most), -math.inf)


class _Paths:
    """Least sums over paths of the rows that are alive. costs: one a row, infinite for none."""

    def __init__(self, table: Table, alive: Bools) -> None:
        self.alive = alive
        self.table = table
        layers = np.arange(table.num_layers + 1)
        self._by_stop = np.searchsorted(table.stop, layers)
        self._order = np.argsort(table.start, kind="stable")
        self._by_start = np.searchsorted(table.start[self._order], layers)

    def through(self, costs: Floats) -> Floats:
        """Over paths through each row; infinite where there is none."""
        costs = np.where(self.alive, costs, math.inf)
        return self._before(costs)[self.table.start] + costs + self.behind(costs)[self.table.stop]

    def _before(self, costs: Floats) -> Floats:
        """From layer 0 to each layer."""
        sums = np.full(self.table.num_layers + 1, math.inf)
        sums[0] = 0.0
        for stop in range(1, len(sums)):
            low = self._by_stop[stop]
            high = self._by_stop[stop + 1] if stop + 1 < len(sums) else len(costs)
            reached = sums[self.table.start[low:high]] + costs[low:high]
            sums[stop] = np.min(reached, initial=math.inf)
        return sums

    def behind(self, costs: Floats) -> Floats:
        """From each layer to the end."""
        costs = np.where(self.alive, costs, math.inf)
        sums = np.full(self.table.num_layers + 1, math.inf)
        sums[-1] = 0.0
        for start in reversed(range(len(sums) - 1)):
            rows = self._order[self._by_start[start] : self._by_start[start + 1]]
            sums[start] = np.min(sums[self.table.stop[rows]] + costs[rows], initial=math.inf)
        return sums


def _least_covering(table: Table, values: Floats) -> Floats:
    """For each layer the least value of the rows that cover it."""
    least = np.full(table.num_layers, math.inf)
    for layer in range(table.num_layers):
        covers = (table.start <= layer) & (table.stop > layer)
        least[layer] = np.min(values[covers], initial=math.inf)
    return least
