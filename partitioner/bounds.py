"""Least dollars of plans, which is what makes the search exact and short.

Dollars are a product: seconds x dollars per second, + fees. Plans are told apart by *cells*: the
plan's time lies in [t_low, t_high], and its waits in [w_low, w_high]. There the product is at
least its McCormick envelope t_low P + p (T - t_low), where p is the least P there. That is
linear in what stages add, so the least over all completions of a label is a shortest path. A price
on the time of fills, for several prices, brings in that the plan must end by t_high (Lagrangian
relaxation), and rows that no plan of the cell can have are left out. Cells that cannot win are
dropped, others are split: the relaxation gets as tight as the cells are small.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass

import numpy as np

from funcpipe.partitioner.columns import Bools
from funcpipe.partitioner.labels import Ahead, Pipeline
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.rows import Floats, Ints

__all__ = ["Alive", "Bounds", "Cells"]

PRICES = 5
SLACK = 1 + 1e-9


@dataclass(frozen=True)
class Cells:
    """Arrays of one entry a cell: seconds."""

    t_low: Floats
    t_high: Floats
    w_low: Floats
    w_high: Floats

    def __len__(self) -> int:
        return len(self.t_low)

    @staticmethod
    def grid(times: Floats, waits: Floats) -> Cells:
        """Cells between neighbouring times and waits."""
        t, w = (index.ravel() for index in np.indices((len(times) - 1, len(waits) - 1)))
        return Cells(times[t], times[t + 1], waits[w], waits[w + 1])

    def take(self, which: np.ndarray) -> Cells:
        return Cells(self.t_low[which], self.t_high[which], self.w_low[which], self.w_high[which])

    def split(self) -> Cells:
        """Each cut in two, in the direction in which it is wider."""
        middle_t = np.sqrt(self.t_low * self.t_high)
        middle_w = (self.w_low + self.w_high) / 2
        by_time = self.t_high - self.t_low >= self.w_high - self.w_low
        low = Cells(
            self.t_low, np.where(by_time, middle_t, self.t_high),
            self.w_low, np.where(by_time, self.w_high, middle_w),
        )  # fmt: skip
        high = Cells(
            np.where(by_time, middle_t, self.t_low), self.t_high,
            np.where(by_time, self.w_low, middle_w), self.w_high,
        )  # fmt: skip
        return Cells(
            *(np.concatenate(pair) for pair in zip(_arrays(low), _arrays(high), strict=True))
        )


def _arrays(cells: Cells) -> tuple[Floats, ...]:
    return cells.t_low, cells.t_high, cells.w_low, cells.w_high


@dataclass(frozen=True)
class Alive:
    """Pairs of a label and a cell in which it could win: the least value that it could have there,
    and the value that it must be below. Ordered by label.
    """

    label: Ints
    cell: Ints
    value: Floats
    limit: Floats

    def by_label(self, num: int) -> Floats:
        """Of each of `num` labels: the least value, the least share of what would win, and the cell
        that has it. Infinite for labels without a pair. Array [3, label].
        """
        found = np.full((3, num), np.inf)
        if len(self.label):
            edges = np.flatnonzero(np.diff(self.label, prepend=-1))
            with np.errstate(invalid="ignore"):
                shares = np.where(np.isfinite(self.limit), self.value / self.limit, 0.0)
            best = np.lexsort((shares, self.label))[edges]
            labels = self.label[edges]
            found[0, labels] = np.minimum.reduceat(self.value, edges)
            found[1, labels], found[2, labels] = shares[best], self.cell[best]
        return found


@dataclass(frozen=True)
class _Pairs:
    """Of pairs of a label and a cell. start: the least time; used: what is certain of it."""

    cell: Ints
    start: Floats
    used: Floats
    per_s: Floats
    per_step: Floats


class Bounds:
    """Shortest paths over completions, by cell, price and cut.

    value: least of t_low p + fees + price x fills; per_s: least of p + price x fills. allowed:
    which rows a plan of each cell may have.
    """

    def __init__(self, pipeline: Pipeline, cells: Cells) -> None:
        rows, least = pipeline.rows, pipeline.least
        self.cells, self.least = cells, least
        table = rows.table
        # Prices of a second of fills: around the dollars per second that plans have.
        self.prices = least.per_s[-1] * np.geomspace(0.5, 24.0, PRICES)
        self.prices_per_s = self.prices / cells.t_low.mean()
        shape = (len(cells), PRICES, rows.num_layers + 1)
        self.value, self.per_s = np.full(shape, np.inf), np.full(shape, np.inf)
        self.value[:, :, 0] = self.per_s[:, :, 0] = 0.0
        self.allowed = allowed = _allowed(pipeline, cells)
        for cut in range(1, rows.num_layers + 1):
            here = rows.at(cut)
            used = np.flatnonzero(allowed[:, here].any(axis=0)) + here.start
            if not len(used):
                continue
            start, fill = table.start[used], rows.fill[used]
            shut = np.where(allowed[:, used], 0.0, np.inf)
            own = cells.t_low[:, None] * table.per_s[used] + table.per_step[used] + shut
            self.value[:, :, cut] = _shortest(self.value, start, own, self.prices, fill)
            own = table.per_s[used] + shut
            self.per_s[:, :, cut] = _shortest(self.per_s, start, own, self.prices_per_s, fill)

    def only(self, alive: np.ndarray) -> Bounds:
        """Of these cells alone."""
        few = copy(self)
        few.cells = self.cells.take(alive)
        few.value, few.per_s = self.value[alive], self.per_s[alive]
        few.allowed = self.allowed[alive]
        return few

    def alive(self, goal: Goal, cut: int, ahead: Ahead, limit: Callable[[Floats], Floats]) -> Alive:
        """In which cells labels at `cut` could still win: get below the `limit` of their time."""
        own, wait, total = ahead.own, ahead.wait, ahead.total
        cells, least = self.cells, self.least
        start = np.maximum(cells.t_low, total[:, None])
        used = own[:, None] + np.maximum(cells.w_low, wait[:, None])
        open_ = (start <= cells.t_high * SLACK) & (wait[:, None] <= cells.w_high * SLACK)
        open_ &= used + least.fill[cut] <= cells.t_high * SLACK
        open_ &= np.isfinite(self.per_s[:, 0, cut])
        if goal.cost_weight:
            # A quick look first: most pairs end here.
            dollars = start * (ahead.per_s + least.per_s[cut])[:, None]
            dollars += (ahead.per_step + least.per_step[cut])[:, None]
            quick = goal.time_weight * start + goal.cost_weight * dollars
            open_ &= (quick < limit(start)) & (dollars <= goal.max_cost * SLACK)
        label, cell = np.nonzero(open_)
        start, used = start[label, cell], used[label, cell]
        if not goal.cost_weight and goal.max_cost == np.inf:
            values = goal.time_weight * start
        else:
            pairs = _Pairs(cell, start, used, ahead.per_s[label], ahead.per_step[label])
            envelope = self._envelope(cut, pairs)
            extra = goal.time_weight / goal.cost_weight if goal.cost_weight else 0.0
            values = goal.cost_weight * envelope(extra)
            if not goal.cost_weight:
                values = goal.time_weight * start
            if goal.max_cost < np.inf:
                values = np.where(envelope(0.0) > goal.max_cost * SLACK, np.inf, values)
        bars = limit(start)
        wins = values < bars
        return Alive(label[wins], cell[wins], values[wins], bars[wins])

    def _envelope(self, cut: int, pairs: _Pairs) -> Callable[[float], Floats]:
        """The least of extra x T + T P + fees, by `extra`."""
        cell, start, used, per_s = pairs.cell, pairs.start, pairs.used, pairs.per_s
        least = self.least
        t_low = self.cells.t_low[cell]
        room = np.maximum(self.cells.t_high[cell] * SLACK - used, 0.0)  # for the fills to come
        more = self.per_s[cell, :, cut] - self.prices_per_s * room[:, None]
        slope = per_s + np.maximum(more.max(axis=1), least.per_s[cut])
        paths = self.value[cell, :, cut]

        def envelope(extra: float) -> Floats:
            # T >= used + the fills to come.
            over = (slope + extra)[:, None] - self.prices
            span = np.where(over >= 0, least.fill[cut], room[:, None])
            completion = (paths + over * span).max(axis=1)
            linear = t_low * (per_s - slope) + (slope + extra) * used + completion
            plain = start * (slope + extra) + least.per_step[cut]
            least_of_both: Floats = np.maximum(linear, plain) + pairs.per_step
            return least_of_both

        return envelope


def _shortest(
    known: Floats, start: np.ndarray, own: Floats, prices: Floats, fill: Floats
) -> Floats:
    least: Floats = (known[:, :, start] + own[:, None, :] + prices[:, None] * fill).min(axis=2)
    return least


def _allowed(pipeline: Pipeline, cells: Cells) -> Bools:
    """Which rows a plan of each cell may have."""
    rows, least = pipeline.rows, pipeline.least
    table = rows.table
    others = least.fill[table.start] + rows.fill + least.behind[table.stop] + least.tail[-1]
    by_waits: Bools = (
        others + np.maximum(rows.wait, cells.w_low[:, None]) <= cells.t_high[:, None] * SLACK
    )
    by_waits &= rows.wait <= cells.w_high[:, None] * SLACK
    by_waits &= pipeline.fastest() <= cells.t_high[:, None] * SLACK
    return by_waits
