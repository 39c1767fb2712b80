"""What all baselines share: their result, the stages they choose from, and the choice of the best.

A baseline proposes paths of rows of a `Table`, many at once. What they take is computed with
arrays; the figures of the one that is chosen come from `cost.evaluate`, as everybody's do.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from funcpipe.partitioner.backend import Problem
from funcpipe.partitioner.cost import evaluate
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.plan import Plan
from funcpipe.partitioner.space import Combination
from funcpipe.partitioner.table import Table
from funcpipe.partitioner.verify import faults

__all__ = ["Baseline", "Choice", "Grid", "figures", "grids", "outside", "stage_counts"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Under 1f1b the arrays know only gpipe's time, which orders the plans to be simulated.
SIMULATED = 40


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What another method chooses. time_s, dollars, value: of a step; infinite if it finds nothing.

    plan: None if it finds nothing, or if this runtime has no such plan. why: the reason for either,
    and for a plan that is not in the space.
    """

    name: str
    plan: Plan | None = None
    time_s: float = math.inf
    dollars: float = math.inf
    value: float = math.inf
    why: str = ""

    @property
    def found(self) -> bool:
        return math.isfinite(self.time_s)


class Grid:
    """Which row of a combination's table a stage is. degrees, tiers: counted from 0."""

    def __init__(self, problem: Problem, combination: Combination) -> None:
        self.table = problem.table(combination)
        self.tiers_mb = problem.space.tiers(problem.setting)
        table, layers = self.table, self.table.num_layers
        shape = (2, len(combination.degrees), len(self.tiers_mb), layers, layers + 1)
        self._rows: Ints = np.full(shape, -1)
        tier = np.searchsorted(np.array(self.tiers_mb), table.memory_mb)
        place = (table.recompute.astype(int), table.class_of(), tier, table.start, table.stop)
        self._rows[place] = np.arange(len(table))
        self._stages: dict[int, Ints] = {}

    def stages(self, from_end: int) -> Ints:
        """Rows as the last stage but (from_end - 1), as (degree, tier, start, stop); -1 for none.

        A stage recomputes where it has to, and where it would not fit otherwise.
        """
        key = from_end if self.table.combination.schedule == "1f1b" else 1
        if key not in self._stages:
            fits = np.append(self.table.fits(key), False)  # the last one is that of row -1
            plain, again = np.where(fits[self._rows], self._rows, -1)
            self._stages[key] = np.where(plain >= 0, plain, again)
        return self._stages[key]

    def uniform(self, degree: int, cuts: Ints) -> Ints:
        """Rows of the plans with one tier for all that fit, one plan a line.

        cuts: for each tier those of its plan, from 0 to the number of layers.
        """
        num_stages = cuts.shape[1] - 1
        tiers = np.arange(len(self.tiers_mb))
        columns = [
            self.stages(num_stages - k)[degree, tiers, cuts[:, k], cuts[:, k + 1]]
            for k in range(num_stages)
        ]
        rows = np.stack(columns, axis=1)
        return rows[(rows >= 0).all(axis=1)]

    def row(
        self, *, from_end: int, start: int, stop: int, tier: int, degree: int, recompute: bool
    ) -> int:
        """Row of one stage that fits, or -1. degree: itself, not its number."""
        number = self.table.combination.degrees.index(degree)
        row = int(self._rows[int(recompute), number, tier, start, stop])
        return row if row >= 0 and self.table.fits(from_end)[row] else -1


def stage_counts(problem: Problem, degree: int) -> range:
    """How many stages of this degree a plan may have."""
    most = problem.max_stages
    if problem.max_functions is not None:
        most = min(most, problem.max_functions // degree)
    return range(problem.min_stages, most + 1)


def figures(table: Table, rows: Ints) -> tuple[Floats, Floats]:
    """Seconds and dollars of a step of each plan under gpipe, as `cost.evaluate` gives them.

    rows: one plan a line, all of the same number of stages.
    """
    kind = table.class_of()[rows]
    fill_f, fill_b = table.fill_f[rows], table.fill_b[rows]
    waits_f = _waits_from(table, kind, table.lane_f[rows])[:, 0]
    waits_b = _waits_from(table, kind, table.lane_b[rows])
    ends = _from_behind(np.cumsum, fill_b) + waits_b + table.tail[rows]
    seconds = fill_f.sum(axis=1) + waits_f + ends.max(axis=1)
    dollars = seconds * table.per_s[rows].sum(axis=1) + table.per_step[rows].sum(axis=1)
    return seconds, dollars


def _from_behind(function: Callable[..., Floats], values: Floats) -> Floats:
    return function(values[:, ::-1], axis=1)[:, ::-1]


def _waits_from(table: Table, kind: Ints, lanes: Floats) -> Floats:
    """For each stage the chain of waits of those from it on: `waits.counts_of` says how."""
    waits, block, before = np.zeros_like(lanes), np.zeros_like(lanes), 1
    pairs = zip(table.combination.degrees, table.counts, strict=True)
    for number, (degree, times) in enumerate(pairs):
        own = _from_behind(np.maximum.accumulate, np.where(kind == number, lanes, 0.0))
        block = np.maximum(own, degree // before * block)
        waits += times * block
        before = degree
    return waits


class Choice:
    """The best, by the goal, of all plans that are added."""

    def __init__(self, problem: Problem, goal: Goal) -> None:
        self._problem, self._goal = problem, goal
        self._order = count()
        self._best: tuple[float, Table, list[int]] | None = None
        self._simulated: list[tuple[bool, float, int, Table, list[int]]] = []
        self._least_s = self._least_dollars = math.inf

    def add(self, table: Table, rows: Ints) -> None:
        """Plans of rows that fit, one a line, within the bounds on stages and functions."""
        if not len(rows):
            return
        seconds, dollars = figures(table, rows)
        self._least_s = min(self._least_s, float(seconds.min()))
        self._least_dollars = min(self._least_dollars, float(dollars.min()))
        values = self._goal.time_weight * seconds + self._goal.cost_weight * dollars
        pairs = zip(seconds, dollars, strict=True)
        wrong = np.array([not self._goal.allows(time_s, cost) for time_s, cost in pairs])
        if table.combination.schedule != "gpipe":
            self._keep(table, rows, values, wrong)
            return
        values[wrong] = math.inf
        line = int(values.argmin())
        if values[line] < (math.inf if self._best is None else self._best[0]):
            self._best = (float(values[line]), table, rows[line].tolist())

    def _keep(self, table: Table, rows: Ints, values: Floats, wrong: NDArray[np.bool_]) -> None:
        for line in np.lexsort((values, wrong))[:SIMULATED]:
            rank = (bool(wrong[line]), float(values[line]), next(self._order))
            self._simulated.append((*rank, table, rows[line].tolist()))
        self._simulated = heapq.nsmallest(SIMULATED, self._simulated, key=lambda one: one[:3])

    def candidates(self) -> list[Plan]:
        """Those that may be the best: of 1f1b a simulation is to say."""
        found = [one[3].plan(one[4]) for one in self._simulated]
        if self._best is not None:
            found.insert(0, self._best[1].plan(self._best[2]))
        return found

    def result(self, name: str) -> Baseline:
        best: Baseline | None = None
        for plan in self.candidates():
            estimate = evaluate(self._problem.setting, plan)
            if faults(self._problem, self._goal, plan, estimate):
                self._least_s = min(self._least_s, estimate.step_s)
                self._least_dollars = min(self._least_dollars, estimate.dollars)
                continue
            value = self._goal.value(estimate.step_s, estimate.dollars)
            if best is None or value < best.value:
                best = Baseline(
                    name=name, plan=plan, time_s=estimate.step_s, dollars=estimate.dollars,
                    value=value,
                )  # fmt: skip
        return best or Baseline(name=name, why=self._why())

    def _why(self) -> str:
        if math.isfinite(self._least_s):
            return outside(self._goal, self._least_s, self._least_dollars)
        return "none of its plans fits in memory within the bounds on stages and functions"


def outside(goal: Goal, least_s: float, least_dollars: float) -> str:
    """Why plans that fit are none for the goal."""
    bounds = {"s": goal.max_time_s, "dollars": goal.max_cost}
    asked = " and ".join(f"{b:.4g} {unit}" for unit, b in bounds.items() if math.isfinite(b))
    return (
        f"its fastest plan takes {least_s:.4g} s, its cheapest {least_dollars:.4g} dollars; none "
        f"keeps to {asked}"
    )


def grids(problem: Problem) -> Iterator[Grid]:
    """Of every combination of the space."""
    for combination in problem.combinations():
        yield Grid(problem, combination)
