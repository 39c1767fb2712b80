"""The exact search of funcpipe's own: no solver needed, proven optimal for gpipe.

Combinations (micro-batch size, degree, ...) share one incumbent, so that most are ruled out by
their bound alone. The others are swept with few labels first, for a good incumbent, then with more,
and at last with all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from funcpipe.partitioner.backend import Deadline, Outcome, Problem, Status
from funcpipe.partitioner.cost import evaluate
from funcpipe.partitioner.incumbent import TOLERANCE, Best, OutOfTime, checker
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.plan import Plan
from funcpipe.partitioner.search_1f1b import rule_out, solve_1f1b
from funcpipe.partitioner.starts import even_plans, short_path
from funcpipe.partitioner.sweep import Incumbent, Sweep

__all__ = ["Search", "sweeps_of"]

FIRST_WIDTH = 8
WIDTHS: tuple[int | None, ...] = (40, 250, 1500, None)


class Search:
    """The default back-end."""

    name = "search"

    def solve(
        self, problem: Problem, goal: Goal, *, deadline: Deadline, incumbent: Plan | None = None
    ) -> Outcome:
        began_s = deadline.passed_s
        best = Best()
        if incumbent is not None:
            best.consider(problem, goal, incumbent)
        notes: list[str] = []
        interrupted = False
        sweeps: list[Sweep] = []
        try:
            check = checker(deadline)
            sweeps = sweeps_of(
                problem, goal, best, check,
                offer=lambda plan: best.plan is not None or best.consider(problem, goal, plan),
            )  # fmt: skip
            order = sorted(sweeps, key=lambda sweep: sweep.bound)
            first_look(order, problem, goal, best, check)
            solve_gpipe([sweep for sweep in order if not sweep.is_1f1b], best, check)
            solve_1f1b([one for one in order if one.is_1f1b], problem, goal, best, check)
        except OutOfTime:
            notes.append("the time limit ended the search")
        except KeyboardInterrupt:
            if best.plan is None:
                raise
            interrupted = True
            notes.append("Ctrl-C ended the search")
        bounds = [sweep.bound for sweep in sweeps if not sweep.is_done(best)]
        if len(sweeps) < len(problem.combinations()):
            bounds.append(0.0)
        if bounds and not notes:
            notes.append(
                "1f1b has no closed form: its most promising plans were simulated, and better ones "
                "are not ruled out"
            )
        found = outcome(
            problem, goal, best.plan, min(bounds, default=math.inf), solver=self.name,
            seconds=deadline.passed_s - began_s, notes=tuple(notes),
        )  # fmt: skip
        gpipe = [sweep for sweep in sweeps if not sweep.is_1f1b]
        all_there = len(sweeps) == len(problem.combinations())
        proven = all_there and bool(gpipe) and all(sweep.is_done(best) for sweep in gpipe)
        return replace(found, interrupted=interrupted, gpipe_proven=proven)


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


def sweeps_of(
    problem: Problem,
    goal: Goal,
    best: Incumbent,
    check: Callable[[], None],
    *,
    offer: Callable[[Plan], bool],
) -> list[Sweep]:
    """Of all combinations, with a first bound each, and ruled out where that is enough.

    offer: is shown plans until it takes one. So there is one before much time is spent.
    """
    found, has_one = [], False
    for plan in even_plans(problem):
        check()
        has_one = offer(plan)
        if has_one:
            break
    for combination in problem.combinations():
        check()
        sweep = Sweep(problem, combination, goal)
        sweep.narrow(best, rounds=1)
        if not (has_one or sweep.proven or sweep.is_1f1b):
            plans = short_path(problem, goal, sweep.table, check)
            has_one = any(offer(plan) for plan in plans)
        sweep.release()
        found.append(sweep)
    return found


def first_look(
    sweeps: Sequence[Sweep], problem: Problem, goal: Goal, best: Best, check: Callable[[], None]
) -> None:
    """A plan of each combination that could win: most others are then ruled out by bounds."""
    for sweep in sweeps:
        check()
        if sweep.is_done(best):
            continue
        if sweep.is_1f1b:
            rule_out([sweep], problem, goal, best, check, width=FIRST_WIDTH, rounds=2)
            continue
        sweep.narrow(best, rounds=2)
        if not sweep.proven:
            sweep.bound = max(sweep.bound, sweep.run(best, width=FIRST_WIDTH, check=check))
        sweep.release()


def solve_gpipe(sweeps: Sequence[Sweep], best: Best, check: Callable[[], None]) -> None:
    """All combinations to the end, unless `check` raises."""
    for width in WIDTHS:
        for sweep in sweeps:
            check()
            if sweep.is_done(best):
                continue
            sweep.narrow(best)
            if not sweep.proven:
                sweep.bound = max(sweep.bound, sweep.run(best, width=width, check=check))
            sweep.release()
