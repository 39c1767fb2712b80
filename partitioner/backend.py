"""What every solver is given and gives back."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from funcpipe.errors import PlanError
from funcpipe.partitioner.cost import Estimate
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.plan import Plan
from funcpipe.partitioner.setting import Setting
from funcpipe.partitioner.space import Combination, Space
from funcpipe.partitioner.table import Table, make_table

__all__ = ["Backend", "Deadline", "Outcome", "Problem", "Status"]

MOST_ROWS_KEPT = 1 << 20


class Status(StrEnum):
    """optimal: proven. feasible: a plan, and a bound on what a better one could reach. infeasible:
    proven that there is no plan. timed-out: no plan was found in time, and there may be one.
    """

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    TIMED_OUT = "timed-out"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """value: the goal's, as `cost.evaluate` gives it; bound: no plan can have less.

    seconds: that the search took. notes: what a user should know of how it was found.
    interrupted: whether Ctrl-C ended it. gpipe_proven: whether no gpipe plan is better, though one
    of 1f1b may be.
    """

    plan: Plan | None
    estimate: Estimate | None
    value: float
    bound: float
    status: Status
    seconds: float
    solver: str
    notes: tuple[str, ...] = ()
    interrupted: bool = False
    gpipe_proven: bool = False

    @property
    def found(self) -> tuple[Plan, Estimate]:
        """The plan and what it takes, where there is one."""
        if self.plan is None or self.estimate is None:
            raise ValueError(f"{self.solver} found no plan: {self.status}")
        return self.plan, self.estimate

    @property
    def gap(self) -> float:
        """(value - bound) / value: how much less a better plan could have at most."""
        if self.plan is None:
            return math.inf
        return max(0.0, self.value - self.bound) / self.value if self.value > 0 else 0.0


class Deadline:
    """A time limit that began when it was made. limit_s: None for none."""

    def __init__(
        self, limit_s: float | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        is_number = isinstance(limit_s, int | float)
        if limit_s is not None and not (is_number and 0 < limit_s < math.inf):
            raise PlanError(f"the time limit is {limit_s!r:.60}; expected seconds above 0")
        self._clock = clock
        self._began_s = clock()
        self._limit_s = limit_s

    @property
    def passed_s(self) -> float:
        return self._clock() - self._began_s

    @property
    def left_s(self) -> float:
        """Never negative; infinite without a limit."""
        return math.inf if self._limit_s is None else max(0.0, self._limit_s - self.passed_s)

    def part(self, share: float) -> Deadline:
        """Of the time left; itself if that is all of it, or without a limit."""
        if share >= 1 or self._limit_s is None or self.over:
            return self
        return Deadline(self.left_s * share, clock=self._clock)

    @property
    def over(self) -> bool:
        return self.left_s <= 0


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A setting and what may be chosen in it. Tables are made when first asked for, and kept
    unless they are too many."""

    setting: Setting
    space: Space
    _tables: dict[Combination, Table] = field(default_factory=dict, repr=False, compare=False)

    def combinations(self) -> list[Combination]:
        return list(self.space.combinations(self.setting))

    def table(self, combination: Combination) -> Table:
        """The rows that fit. Bounds on stages and functions are left to the solver."""
        if combination in self._tables:
            return self._tables[combination]
        table = make_table(
            self.setting,
            combination,
            tiers_mb=self.space.tiers(self.setting),
            recompute=self.space.recompute,
        )
        if sum(map(len, self._tables.values())) + len(table) <= MOST_ROWS_KEPT:
            self._tables[combination] = table
        return table

    @property
    def max_functions(self) -> int | None:
        return self.space.most_functions(self.setting)

    @property
    def min_stages(self) -> int:
        return self.space.min_stages

    @property
    def max_stages(self) -> int:
        return self.space.most_stages(self.setting)


class Backend(Protocol):
    """A solver. It prints nothing, leaves no file or process, and on a time limit or Ctrl-C returns
    the best plan so far (`KeyboardInterrupt` is noted and not raised again, if there is one).
    """

    name: str

    def solve(
        self, problem: Problem, goal: Goal, *, deadline: Deadline, incumbent: Plan | None = None
    ) -> Outcome:
        """The best plan for `goal`. incumbent: a plan known to be allowed, to start from."""
        ...
