"""One combination searched: labels from the last layer to the first, pruned by bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from funcpipe.partitioner.backend import Problem
from funcpipe.partitioner.bounds import SLACK, Bounds, Cells
from funcpipe.partitioner.incumbent import Best
from funcpipe.partitioner.labels import Labels, Pipeline, nondominated
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.oneforward import pipeline_of
from funcpipe.partitioner.plan import Plan
from funcpipe.partitioner.rows import Floats, Ints, Least, Rows
from funcpipe.partitioner.space import Combination
from funcpipe.partitioner.table import Table

__all__ = ["Incumbent", "Sweep"]

MOST_CELLS = 48
MANY_ROWS = 20_000
TINY_S = 1e-30  # for plans that take no time at all
CHUNK = 1 << 17  # grown labels at a time: bounds memory


class Incumbent(Protocol):
    """What is known already. Only plans whose value is below `limit` at their time can matter.

    spread: whether labels that promise plans of all times are wanted, and not only the best.
    """

    spread: bool

    def limit(self, time_s: Floats) -> Floats: ...

    def offer(self, time_s: float, dollars: float, value: float, plan: Callable[[], Plan]) -> None:
        """A plan that is below the limit."""


class _Pass(NamedTuple):
    """compares: whether a label makes another one superfluous. pools: labels that wait at their
    cut. kept: those that were grown, which are parents.
    """

    incumbent: Incumbent
    check: Callable[[], None]
    width: int | None
    compares: bool
    pools: dict[int, list[Labels]]
    kept: dict[int, Labels]


class Sweep:
    """The search in one combination, in several passes that share what `narrow` found out."""

    def __init__(self, problem: Problem, combination: Combination, goal: Goal) -> None:
        self.problem, self.goal = problem, goal
        self.combination = combination
        self.is_1f1b = combination.schedule == "1f1b"
        self._max_functions = problem.max_functions or math.inf
        self._pipeline: Pipeline | None = None
        self._bounds: Bounds | None = None
        self.proven = not self.least.possible
        self.bound = math.inf if self.proven else -math.inf

    @property
    def pipeline(self) -> Pipeline:
        """Made when it is asked for, and again after `release`."""
        if self._pipeline is None:
            rows = Rows(self.problem.table(self.combination))
            self._pipeline = pipeline_of(rows, Least.of(rows))
        return self._pipeline

    @property
    def rows(self) -> Rows:
        return self.pipeline.rows

    @property
    def least(self) -> Least:
        return self.pipeline.least

    @property
    def table(self) -> Table:
        return self.rows.table

    def is_done(self, best: Best) -> bool:
        """Whether nothing in the combination can be better than the best plan."""
        if self.bound >= best.bar:
            self.proven = True
        return self.proven

    def release(self) -> None:
        """Give back the memory of a long chain until it is its turn again."""
        if self._pipeline is not None and len(self.table) > MANY_ROWS:
            self._pipeline = self._bounds = None

    # -- bounds of the whole combination -----------------------------------------------------

    def narrow(self, incumbent: Incumbent, *, rounds: int = 8) -> float:
        """Split cells and drop those that cannot win; the least value that is left."""
        if self.proven:
            return self.bound
        root = self.pipeline.root()
        num = self.rows.num_layers
        ahead = self.pipeline.ahead(num, root)
        cells = self._first_cells(float(ahead.total[0]))
        for _ in range(rounds):
            if not len(cells):
                break
            bounds = Bounds(self.pipeline, cells)
            alive = bounds.alive(self.goal, num, ahead, incumbent.limit)
            self._bounds = bounds.only(alive.cell)
            least = float(alive.value.min(initial=math.inf))
            cells = self._bounds.cells
            if 2 * len(cells) > MOST_CELLS:
                break
            cells = cells.split()
        if not len(cells):
            self.proven, least = True, math.inf
        self.bound = max(self.bound, least)
        return self.bound

    def _first_cells(self, low: float) -> Cells:
        table, rows = self.table, self.rows
        high = rows.num_layers * (rows.fill.max() + rows.busy.max())
        # Forward and backward, the longest waits may be those of two rows.
        high += 2 * len(rows.counts) * rows.wait.max() + max(table.tail.max(), 0.0)
        high = max(min(high, self.goal.max_time_s) * SLACK, low, TINY_S)
        if low > self.goal.max_time_s * SLACK:
            return Cells.grid(np.empty(1), np.empty(1))
        times = np.geomspace(max(low, 1e-12 * high), max(high, low * SLACK), 9)
        if self.is_1f1b:
            return Cells.grid(times, np.zeros(2))
        waits = np.geomspace(max(self.least.wait[-1], 1e-9 * high), high * SLACK, 4)
        waits[0] = self.least.wait[-1]
        return Cells.grid(times, waits)

    @property
    def bounds(self) -> Bounds:
        """Those that `narrow` came to."""
        if self._bounds is None:
            raise RuntimeError("narrow comes before run")
        return self._bounds

    # -- passes ------------------------------------------------------------------------------

    def run(
        self,
        incumbent: Incumbent,
        *,
        width: int | None = None,
        check: Callable[[], None],
        every: bool = False,
    ) -> float:
        """Offer the incumbent what is found; the least value that anything else could have.

        width: keep only so many labels at each cut, the most promising (None: all). check: called
        often; what it raises ends the pass. every: offer every plan below the limit, and not only
        those than which no other is as good. Of 1f1b nothing is proven by it: values are lower
        bounds, and plans are still to be simulated.
        """
        num = self.rows.num_layers
        one = _Pass(incumbent, check, width, not every, {num: [self.pipeline.root()]}, {})
        dropped = math.inf
        for cut in range(num, 0, -1):
            check()
            labels, left_out = self._survivors(cut, one)
            dropped = min(dropped, left_out)
            if len(labels):
                one.kept[cut] = labels
                self._grow(cut, labels, one)
        if dropped == math.inf and not self.is_1f1b:
            self.proven = True
        return dropped

    def _survivors(self, cut: int, one: _Pass) -> tuple[Labels, float]:
        """Labels that wait at the cut, can still win and are not made superfluous by others, at
        most `width` of them; and the least value that one beyond the width could come to.
        """
        pool, incumbent, width = one.pools.pop(cut, []), one.incumbent, one.width
        if not pool:
            return self.pipeline.root().take(slice(0, 0)), math.inf
        labels = Labels.join(pool)
        values, shares, cells = self._promise(cut, labels, incumbent)
        chosen = np.flatnonzero(np.isfinite(shares))
        # Without an incumbent all shares are equal.
        chosen = chosen[np.lexsort((values[chosen], shares[chosen]))]
        if incumbent.spread and width is not None:
            chosen = chosen[_in_turns(cells[chosen])]
        # Few are compared with each other if few are kept anyway.
        first, left_out = _cut(chosen, values, None if width is None else 8 * width)
        if len(first) > 1 and one.compares:
            some = labels.take(first)
            first = first[np.sort(nondominated(self._columns(cut, some)))]
        chosen, more = _cut(first, values, width)
        left_out = min(left_out, more)
        return labels.take(chosen), left_out

    def _promise(self, cut: int, labels: Labels, incumbent: Incumbent) -> Floats:
        """`Alive.by_label` of all labels."""
        found = np.full((3, len(labels)), math.inf)
        for first in range(0, len(labels), 1 << 13):
            part = slice(first, first + (1 << 13))
            some = labels.take(part)
            ahead = self.pipeline.ahead(cut, some)
            alive = self.bounds.alive(self.goal, cut, ahead, incumbent.limit)
            found[:, part] = alive.by_label(len(some))
        return found

    def _columns(self, cut: int, labels: Labels) -> Floats:
        """What a label must be no worse in than another one to make it superfluous."""
        columns = [self.pipeline.columns(cut, labels.state)]
        goal, least_s = self.goal, float(self.bounds.cells.t_low.min())
        if goal.cost_weight or goal.max_cost < math.inf:
            # Dollars are T P + fees, for some T that is at least the least of all plans.
            columns.append(labels.per_step + least_s * labels.per_s)
        num, degrees = self.rows.num_layers, self.table.combination.degrees
        if self.problem.max_stages < num:
            columns.append(labels.stages.astype(np.float64))
        if self.problem.min_stages > 1:
            columns.append(-labels.stages.astype(np.float64))
        if degrees[-1] * num > self._max_functions:
            columns.append(labels.functions.astype(np.float64))
        if goal.cost_weight or goal.max_cost < math.inf:
            columns.append(labels.per_s)
        return np.column_stack(columns)

    def _grow(self, cut: int, labels: Labels, one: _Pass) -> None:
        """All labels at `cut` with each stage that stops there, into the pools of their cuts."""
        rows = self._useful(cut)
        if not len(rows):
            return
        step = max(1, CHUNK // len(rows))
        for first in range(0, len(labels), step):
            one.check()
            some = labels.take(slice(first, first + step))
            which = np.repeat(np.arange(len(some)), len(rows))
            chosen = np.tile(rows, len(some))
            keep = self._may_grow(some, which, chosen)
            keep[keep] = self._may_win(cut, some, which[keep], chosen[keep], one.incumbent)
            new = self.pipeline.grown(some, which[keep], chosen[keep], first)
            starts = self.table.start[new.row]
            order = np.argsort(starts, kind="stable")
            edges = np.searchsorted(starts[order], np.arange(cut + 1))
            for start in np.flatnonzero(np.diff(edges)):
                group = new.take(order[edges[start] : edges[start + 1]])
                if start:
                    self._add(int(start), group, one)
                else:
                    self._complete(group, one)

    def _useful(self, cut: int) -> Ints:
        """Rows that stop there and that a plan of some cell may have."""
        here = self.rows.at(cut)
        rows = np.arange(here.start, here.stop)
        fine = np.isfinite(self.least.fill[self.table.start[rows]])
        return rows[fine & self.bounds.allowed[:, rows].any(axis=0)]

    def _may_win(
        self, cut: int, labels: Labels, which: Ints, rows: Ints, incumbent: Incumbent
    ) -> np.ndarray:
        """A quick look at labels with a stage in front, before they are made."""
        least, goal, table = self.least, self.goal, self.table
        start = table.start[rows]
        own, wait, total = self.pipeline.certain(cut, labels.state)
        begun = (own + wait)[which] + self.rows.fill[rows] + least.fill[start]
        time = np.maximum(total[which], begun)
        dollars = time * (labels.per_s[which] + table.per_s[rows] + least.per_s[start])
        dollars += labels.per_step[which] + table.per_step[rows] + least.per_step[start]
        values = goal.time_weight * time + goal.cost_weight * dollars
        fine = (values < incumbent.limit(time)) & (time <= goal.max_time_s * SLACK)
        return fine & (dollars <= goal.max_cost * SLACK)

    def _may_grow(self, labels: Labels, which: Ints, rows: Ints) -> np.ndarray:
        table, problem = self.table, self.problem
        stages = labels.stages[which] + 1
        functions = labels.functions[which] + table.degree[rows]
        unfinished = table.start[rows] > 0
        fine = stages + unfinished <= problem.max_stages
        fine &= unfinished | (stages >= problem.min_stages)
        fine &= functions + unfinished * table.combination.degrees[0] <= self._max_functions
        if self.is_1f1b:
            for place in np.unique(stages):
                there = stages == place
                fine[there] &= table.fits(int(place))[rows[there]]
        return fine

    def _add(self, start: int, group: Labels, one: _Pass) -> None:
        """What a quick look does not rule out."""
        least, goal = self.least, self.goal
        total = self.pipeline.certain(start, group.state)[2]
        dollars = total * (group.per_s + least.per_s[start])
        dollars += group.per_step + least.per_step[start]
        values = goal.time_weight * total + goal.cost_weight * dollars
        fine = (values < one.incumbent.limit(total)) & (total <= goal.max_time_s * SLACK)
        fine &= dollars <= goal.max_cost * SLACK
        if fine.any():
            one.pools.setdefault(start, []).append(group.take(fine))

    def _complete(self, group: Labels, one: _Pass) -> None:
        incumbent = one.incumbent
        total = self.pipeline.total_s(group.state)
        dollars = total * group.per_s + group.per_step
        goal = self.goal
        values = goal.time_weight * total + goal.cost_weight * dollars
        fine = (total <= goal.max_time_s * SLACK) & (dollars <= goal.max_cost * SLACK)
        fine &= values < incumbent.limit(total)
        order = np.flatnonzero(fine)
        for label in order[np.argsort(values[order], kind="stable")]:
            if values[label] >= incumbent.limit(total[label : label + 1])[0]:
                continue
            incumbent.offer(
                float(total[label]), float(dollars[label]), float(values[label]),
                partial(self._plan, group, int(label), one.kept),
            )  # fmt: skip

    def _plan(self, group: Labels, label: int, kept: dict[int, Labels]) -> Plan:
        rows, parent = [int(group.row[label])], int(group.parent[label])
        while (cut := int(self.table.stop[rows[-1]])) != self.rows.num_layers:
            rows.append(int(kept[cut].row[parent]))
            parent = int(kept[cut].parent[parent])
        return self.table.plan(rows)


def _cut(chosen: Ints, values: Floats, most: int | None) -> tuple[Ints, float]:
    """The first `most`, and the least value of the others."""
    if most is None:
        return chosen, math.inf
    return chosen[:most], float(values[chosen[most:]].min(initial=math.inf))


def _in_turns(groups: Floats) -> Ints:
    """The first of each group, then the second of each, and so on."""
    order = np.argsort(groups, kind="stable")
    _, first, size = np.unique(groups[order], return_index=True, return_counts=True)
    rank = np.empty(len(groups), dtype=np.int64)
    rank[order] = np.arange(len(groups)) - np.repeat(first, size)
    return np.argsort(rank, kind="stable")
