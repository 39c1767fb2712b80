"""All plans that are best for somebody: none is both faster and cheaper."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from funcpipe.errors import PlanError
from funcpipe.partitioner.backend import Deadline, Problem
from funcpipe.partitioner.cost import evaluate
from funcpipe.partitioner.incumbent import OutOfTime, checker
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.plan import Plan
from funcpipe.partitioner.rows import Floats
from funcpipe.partitioner.search import FIRST_WIDTH, sweeps_of
from funcpipe.partitioner.verify import faults

__all__ = ["Found", "find_front"]

TIE = 1e-9
WIDTHS: tuple[int | None, ...] = (40, 300, None)


@dataclass(frozen=True, kw_only=True)
class Found:
    """plans: by growing time. complete: whether none is missing, but for those that would save
    less than `spacing` of the dollars of a plan that is at least as fast.
    """

    plans: tuple[Plan, ...]
    complete: bool
    spacing: float
    seconds: float
    notes: tuple[str, ...] = ()


@dataclass
class _Front:
    """Times that grow and dollars that fall. A plan must save `spacing` of the dollars to count.

    Times that differ by rounding are equal.
    """

    spacing: float
    times: list[float] = field(default_factory=list)
    dollars: list[float] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    spread = True

    def limit(self, time_s: Floats) -> Floats:
        """Dollars below which a plan of that time would be a new one."""
        bars = np.array([math.inf, *self.dollars])
        limit: Floats = bars[np.searchsorted(self.times, time_s * (1 + TIE), side="right")]
        return limit * (1 - self.spacing)

    def offer(self, time_s: float, dollars: float, value: float, plan: Callable[[], Plan]) -> None:
        made = plan()
        last = first = bisect_left(self.times, time_s * (1 - TIE))
        while last < len(self.times) and self.dollars[last] >= dollars:
            last += 1
        self.times[first:last] = [time_s]
        self.dollars[first:last] = [dollars]
        self.plans[first:last] = [made]

    def consider(self, problem: Problem, goal: Goal, plan: Plan) -> bool:
        """Whether a plan is allowed; then it is one of the front, unless others are as good."""
        told = evaluate(problem.setting, plan)
        if plan.schedule != "gpipe" or faults(problem, goal, plan, told):
            return False
        if told.dollars < self.limit(np.array([told.step_s]))[0]:
            self.offer(told.step_s, told.dollars, told.dollars, lambda: plan)
        return True

    def thinned(self) -> Iterator[Plan]:
        """Without those that save less than `spacing` of the dollars of a faster one."""
        least = math.inf
        for dollars, plan in zip(self.dollars, self.plans, strict=True):
            if dollars < least * (1 - self.spacing):
                least = dollars
                yield plan


def find_front(problem: Problem, goal: Goal, *, deadline: Deadline, spacing: float = 1e-3) -> Found:
    """The Pareto front within the goal's bounds, of gpipe plans.

    Each plan on it is a true optimum up to `spacing`: no plan that is as fast costs less than
    (1 - spacing) of its dollars. After Ctrl-C what was found; `KeyboardInterrupt` if nothing was.
    """
    if not isinstance(spacing, int | float) or not 0 <= spacing < 1:
        raise PlanError(f"spacing is {spacing!r:.60}; expected a share of the dollars, below 1")
    # Thinning gives away as much as the search does: together the spacing.
    half = 1 - math.sqrt(1 - spacing)
    front = _Front(half)
    check = checker(deadline)
    began_s = deadline.passed_s
    notes: list[str] = []
    complete = False
    goal = Goal(
        time_weight=0.0, cost_weight=1.0, max_time_s=goal.max_time_s, max_cost=goal.max_cost
    )
    try:
        sweeps = sweeps_of(
            problem, goal, front, check, offer=lambda plan: front.consider(problem, goal, plan)
        )
        for width in (FIRST_WIDTH, *WIDTHS):
            for sweep in sorted(sweeps, key=lambda one: one.bound):
                check()
                if not sweep.proven:
                    sweep.narrow(front, rounds=3 if width == FIRST_WIDTH else 8)
                if not sweep.proven:
                    sweep.run(front, width=width, check=check)
                sweep.release()
        complete = True
    except OutOfTime:
        notes.append("the time limit ended the search: plans may be missing")
    except KeyboardInterrupt:
        if not front.plans:
            raise
        notes.append("Ctrl-C ended the search: plans may be missing")
    return Found(
        plans=tuple(front.thinned()),
        complete=complete,
        spacing=spacing,
        seconds=deadline.passed_s - began_s,
        notes=tuple(notes),
    )
