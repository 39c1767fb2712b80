"""Every plan there is, one after the other: the oracle for small models.

Nothing is left out by reasoning: every path of rows of every combination is evaluated by `cost` and
judged by `verify`. It is the only back-end beside `search` that knows `1f1b`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from funcpipe.errors import SolverError
from funcpipe.partitioner.backend import Deadline, Outcome, Problem, Status
from funcpipe.partitioner.cost import Estimate, evaluate
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.plan import Plan
from funcpipe.partitioner.table import Table
from funcpipe.partitioner.verify import faults

__all__ = ["MOST_PLANS", "Exhaustive", "count_plans"]

MOST_PLANS = 300_000


class Exhaustive:
    """`Backend` that tries everything; SolverError for more than `most_plans` plans."""

    name = "exhaustive"

    def __init__(self, most_plans: int = MOST_PLANS) -> None:
        self._most_plans = most_plans

    def solve(
        self, problem: Problem, goal: Goal, *, deadline: Deadline, incumbent: Plan | None = None
    ) -> Outcome:
        """The best plan; among equals the one with the fewest functions, then the first."""
        best = _Best(problem, goal, deadline)
        if incumbent is not None:
            best.offer(incumbent)
        try:
            self._check_number(problem)
            for tried, plan in enumerate(_plans(problem)):
                if deadline.over:
                    notes = (f"stopped after {tried} plans, by the time limit",)
                    return best.outcome(whole=False, notes=notes)
                best.offer(plan)
        except KeyboardInterrupt:
            if best.plan is None:
                raise
            stopped = best.outcome(whole=False, notes=("stopped by Ctrl-C",))
            return replace(stopped, interrupted=True)
        return best.outcome(whole=True, notes=())

    def _check_number(self, problem: Problem) -> None:
        number = 0
        for combination in problem.combinations():
            number += count_plans(
                problem.table(combination), problem.max_stages, most=self._most_plans
            )
            if number > self._most_plans:
                raise SolverError(
                    f"exhaustive would have to try more than {self._most_plans:,} plans; choose "
                    "the solver search, or leave less to choose"
                )


class _Best:
    def __init__(self, problem: Problem, goal: Goal, deadline: Deadline) -> None:
        self._problem, self._goal, self._deadline = problem, goal, deadline
        self._began_s = deadline.passed_s
        self.plan: Plan | None = None
        self._estimate: Estimate | None = None
        self._rank = (math.inf, 0)

    def offer(self, plan: Plan) -> None:
        estimate = evaluate(self._problem.setting, plan)
        rank = (self._goal.value(estimate.step_s, estimate.dollars), plan.num_functions)
        if rank < self._rank and not faults(self._problem, self._goal, plan, estimate):
            self.plan, self._estimate, self._rank = plan, estimate, rank

    def outcome(self, *, whole: bool, notes: tuple[str, ...]) -> Outcome:
        value = self._rank[0]
        found = self.plan is not None
        if whole:
            status = Status.OPTIMAL if found else Status.INFEASIBLE
        else:
            status = Status.FEASIBLE if found else Status.TIMED_OUT
        return Outcome(
            plan=self.plan,
            estimate=self._estimate,
            value=value,
            bound=value if whole else 0.0,
            status=status,
            seconds=self._deadline.passed_s - self._began_s,
            solver=Exhaustive.name,
            notes=notes,
        )


def count_plans(table: Table, max_stages: int, *, most: float = math.inf) -> int:
    """How many paths of at most `max_stages` rows there are, whatever else they break.

    most: counts no further than that.
    """
    # counts[layer]: paths from that layer to the end; whole numbers of Python never overflow.
    counts = [0] * table.num_layers + [1]
    total = 0
    for from_end in range(1, max_stages + 1):
        grown = [0] * (table.num_layers + 1)
        for row in np.flatnonzero(table.fits(from_end)):
            grown[int(table.start[row])] += counts[int(table.stop[row])]
        counts = grown
        total += counts[0]
        if total > most:
            break
    return total


def _plans(problem: Problem) -> Iterator[Plan]:
    for combination in problem.combinations():
        table = problem.table(combination)
        for rows in _paths(table, _rows_by_place(table, problem.max_stages), []):
            if len(rows) >= problem.min_stages:
                yield table.plan(rows)


def _rows_by_place(table: Table, max_stages: int) -> list[list[list[int]]]:
    """For the last stage, the last but one, ...: for each layer the rows that fit and end there."""
    places = []
    for from_end in range(1, max_stages + 1):
        fits = table.fits(from_end)
        places.append(
            [np.flatnonzero(fits & (table.stop == k)).tolist() for k in range(table.num_layers + 1)]
        )
    return places


def _paths(table: Table, places: list[list[list[int]]], behind: list[int]) -> Iterator[list[int]]:
    """All paths that end with `behind`: memory depends on the place counted from the end."""
    reached = int(table.start[behind[0]]) if behind else table.num_layers
    if reached == 0:
        yield behind
    elif len(behind) < len(places):
        for row in places[len(behind)][reached]:
            yield from _paths(table, places, [row, *behind])
