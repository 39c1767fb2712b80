"""The best plans so far: what a search has to beat, and when it has to end."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from funcpipe.partitioner.backend import Deadline, Problem
from funcpipe.partitioner.cost import evaluate
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.plan import Plan
from funcpipe.partitioner.rows import Floats
from funcpipe.partitioner.verify import faults

__all__ = ["TOLERANCE", "Best", "Candidates", "Lowest", "OutOfTime", "checker"]

TOLERANCE = 1e-9
TOO_MANY = 1 << 12  # plans waiting to be simulated


class OutOfTime(Exception):
    """The deadline has passed, or Ctrl-C was pressed."""


def checker(deadline: Deadline) -> Callable[[], None]:
    def check() -> None:
        if deadline.over:
            raise OutOfTime

    return check


@dataclass
class Best:
    """The best plan so far, for one goal."""

    value: float = math.inf
    plan: Plan | None = None
    spread = False

    @property
    def bar(self) -> float:
        """What a plan must be below to be better."""
        return self.value * (1 - TOLERANCE)

    def limit(self, time_s: Floats) -> Floats:
        return np.full(np.shape(time_s), self.bar)

    def offer(self, time_s: float, dollars: float, value: float, plan: Callable[[], Plan]) -> None:
        self.value, self.plan = value, plan()

    def consider(self, problem: Problem, goal: Goal, plan: Plan) -> bool:
        """Whether a plan is allowed and better; then it is the best one."""
        estimate = evaluate(problem.setting, plan)
        value = goal.value(estimate.step_s, estimate.dollars)
        if value >= self.bar or faults(problem, goal, plan, estimate):
            return False
        self.value, self.plan = value, plan
        return True


@dataclass
class Candidates:
    """Plans whose lower bound is below the best value: those that must be simulated."""

    best: Best
    found: list[tuple[float, Callable[[], Plan]]] = field(default_factory=list)
    overflow: float = math.inf
    spread = False

    def limit(self, time_s: Floats) -> Floats:
        return self.best.limit(time_s)

    def offer(self, time_s: float, dollars: float, value: float, plan: Callable[[], Plan]) -> None:
        if len(self.found) < TOO_MANY:
            self.found.append((value, plan))
        else:
            self.overflow = min(self.overflow, value)


@dataclass
class Lowest:
    """The lowest bound that any plan has, as far as it is below the best value."""

    best: Best
    value: float = math.inf
    plan: Plan | None = None
    spread = False

    def limit(self, time_s: Floats) -> Floats:
        return np.full(np.shape(time_s), min(self.best.bar, self.value * (1 - TOLERANCE)))

    def offer(self, time_s: float, dollars: float, value: float, plan: Callable[[], Plan]) -> None:
        self.value, self.plan = value, plan()
