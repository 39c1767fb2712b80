"""The exact search of funcpipe's own: no solver needed, proven optimal for gpipe.

Combinations (micro-batch size, degree, ...) share one incumbent, so that most are ruled out by
their bound alone. The others are swept with few labels first, for a good incumbent, then with more,
and at last with all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from funcpipe.partitioner.backend import Deadline, Outcome, Problem, Status
from funcpipe.partitioner.cost import evaluate
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.plan import Plan
from funcpipe.partitioner.rows import Floats
from funcpipe.partitioner.sweep import Incumbent, Sweep
from funcpipe.partitioner.verify import faults

__all__ = ["OutOfTime", "Search", "checker", "sweeps_of"]

FIRST_WIDTH = 8
WIDTHS: tuple[int | None, ...] = (40, 250, 1500, None)
TOLERANCE = 1e-9
# 1f1b has no closed form: how many labels are kept at a cut, and plans simulated, a combination.
WIDTH_1F1B = MOST_SIMULATED = 400
TOO_MANY = 1 << 12  # plans waiting to be simulated


class OutOfTime(Exception):
    """The deadline has passed, or Ctrl-C was pressed."""


@dataclass
class Best:
    """The best plan so far, for one goal."""

    value: float = math.inf
    plan: Plan | None = None
    spread = False

    def limit(self, time_s: Floats) -> Floats:
        return np.full(np.shape(time_s), self.value * (1 - TOLERANCE))

    def offer(self, time_s: float, dollars: float, value: float, plan: Callable[[], Plan]) -> None:
        self.value, self.plan = value, plan()


@dataclass
class Candidates:
    """Plans whose lower bound is below the best value: those that must be simulated."""

    best: Best
    found: list[tuple[float, Plan]] = field(default_factory=list)
    overflow: float = math.inf
    spread = False

    def limit(self, time_s: Floats) -> Floats:
        return self.best.limit(time_s)

    def offer(self, time_s: float, dollars: float, value: float, plan: Callable[[], Plan]) -> None:
        if len(self.found) < TOO_MANY:
            self.found.append((value, plan()))
        else:
            self.overflow = min(self.overflow, value)


class Search:
    """The default back-end."""

    name = "search"

    def solve(
        self, problem: Problem, goal: Goal, *, deadline: Deadline, incumbent: Plan | None = None
    ) -> Outcome:
        began_s = deadline.passed_s
        best = Best()
        if incumbent is not None:
            _start_from(best, problem, goal, incumbent)
        notes: list[str] = []
        interrupted = False
        sweeps: list[Sweep] = []
        try:
            check = checker(deadline)
            sweeps = sweeps_of(problem, goal, best, check)
            order = sorted(sweeps, key=lambda sweep: sweep.bound)
            first_look(order, problem, goal, best, check)
            solve_gpipe([sweep for sweep in order if not sweep.is_1f1b], best, check)
            for sweep in order:
                if sweep.is_1f1b and not _is_done(sweep, best):
                    solve_1f1b(sweep, problem, goal, best, check)
                    sweep.release()
        except OutOfTime:
            notes.append("the time limit ended the search")
        except KeyboardInterrupt:
            if best.plan is None:
                raise
            interrupted = True
            notes.append("Ctrl-C ended the search")
        bounds = [sweep.bound for sweep in sweeps if not sweep.proven]
        if len(sweeps) < len(problem.combinations()):
            bounds.append(0.0)
        if not notes and any(s.is_1f1b and not _is_done(s, best) for s in sweeps):
            notes.append(
                "1f1b has no closed form: its most promising plans were simulated, and better ones "
                "are not ruled out"
            )
            gpipe = [sweep for sweep in sweeps if not sweep.is_1f1b]
            if gpipe and all(_is_done(sweep, best) for sweep in gpipe):
                notes.append("no gpipe plan is better: that is proven")
        found = outcome(
            problem, goal, best.plan, min(bounds, default=math.inf), solver=self.name,
            seconds=deadline.passed_s - began_s, notes=tuple(notes),
        )  # fmt: skip
        return replace(found, interrupted=interrupted)


def outcome(
    problem: Problem, goal: Goal, plan: Plan | None, bound: float, *, solver: str,
    seconds: float, notes: tuple[str, ...] = (),
) -> Outcome:  # fmt: skip
    """The answer that `plan` is, if all other plans have at least `bound`."""
    if plan is None:
        status = Status.INFEASIBLE if bound == math.inf else Status.TIMED_OUT
        return Outcome(
            plan=None, estimate=None, value=math.inf, bound=bound, status=status,
            seconds=seconds, solver=solver, notes=notes,
        )  # fmt: skip
    estimate = evaluate(problem.setting, plan)
    value = goal.value(estimate.step_s, estimate.dollars)
    proven = bound >= value * (1 - 2 * TOLERANCE)
    return Outcome(
        plan=plan,
        estimate=estimate,
        value=value,
        bound=value if proven else bound,
        status=Status.OPTIMAL if proven else Status.FEASIBLE,
        seconds=seconds,
        solver=solver,
        notes=notes,
    )


def checker(deadline: Deadline) -> Callable[[], None]:
    def check() -> None:
        if deadline.over:
            raise OutOfTime

    return check


def _start_from(best: Best, problem: Problem, goal: Goal, plan: Plan) -> None:
    """Take a plan that is allowed as the first incumbent."""
    estimate = evaluate(problem.setting, plan)
    if not faults(problem, goal, plan, estimate):
        best.plan, best.value = plan, goal.value(estimate.step_s, estimate.dollars)


def sweeps_of(
    problem: Problem, goal: Goal, best: Incumbent, check: Callable[[], None]
) -> list[Sweep]:
    found = []
    for combination in problem.combinations():
        check()
        sweep = Sweep(problem, combination, goal)
        sweep.narrow(best, rounds=1)
        sweep.release()
        found.append(sweep)
    return found


def _is_done(sweep: Sweep, best: Best) -> bool:
    """Whether nothing in the combination can be better than the best plan."""
    if sweep.bound >= best.value * (1 - TOLERANCE):
        sweep.proven = True
    return sweep.proven


def first_look(
    sweeps: Sequence[Sweep], problem: Problem, goal: Goal, best: Best, check: Callable[[], None]
) -> None:
    """A few plans of each combination that could win: most others are then ruled out by bounds."""
    for sweep in sweeps:
        check()
        if _is_done(sweep, best):
            continue
        sweep.narrow(best, rounds=2)
        if not sweep.proven and sweep.is_1f1b:
            solve_1f1b(sweep, problem, goal, best, check, width=FIRST_WIDTH)
        elif not sweep.proven:
            sweep.bound = max(sweep.bound, sweep.run(best, width=FIRST_WIDTH, check=check))
        sweep.release()


def solve_gpipe(sweeps: Sequence[Sweep], best: Best, check: Callable[[], None]) -> None:
    """All combinations to the end, unless `check` raises."""
    for width in WIDTHS:
        for sweep in sweeps:
            check()
            if _is_done(sweep, best):
                continue
            sweep.narrow(best)
            if not sweep.proven:
                sweep.bound = max(sweep.bound, sweep.run(best, width=width, check=check))
            sweep.release()


def solve_1f1b(
    sweep: Sweep, problem: Problem, goal: Goal, best: Best, check: Callable[[], None],
    *, width: int = WIDTH_1F1B,
) -> None:  # fmt: skip
    """Simulate the plans of a combination whose lower bound could win, best bound first.

    The sweep's bound is then the least value that a plan which was not simulated could have.
    """
    sweep.narrow(best)
    if sweep.proven:
        return
    candidates = Candidates(best)
    left = sweep.run(candidates, width=width, check=check)
    left = min(left, candidates.overflow)
    candidates.found.sort(key=lambda pair: pair[0])
    for number, (bound, plan) in enumerate(candidates.found):
        if bound >= best.value * (1 - TOLERANCE):
            break
        if number == min(width, MOST_SIMULATED):
            left = min(left, bound)
            break
        check()
        _consider(problem, goal, best, plan)
    sweep.bound = max(sweep.bound, left)
    sweep.proven = left == math.inf
    _is_done(sweep, best)


def _consider(problem: Problem, goal: Goal, best: Best, plan: Plan) -> None:
    estimate = evaluate(problem.setting, plan)
    value = goal.value(estimate.step_s, estimate.dollars)
    better = value < best.value * (1 - TOLERANCE)
    if better and goal.allows(estimate.step_s, estimate.dollars) and estimate.fits:
        best.value, best.plan = value, plan
