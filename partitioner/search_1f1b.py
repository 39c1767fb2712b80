"""The search among `1f1b` plans, whose time only a simulation says: lower bounds, then trial.

A combination is done when no plan's lower bound is below the best value. Where that does not come
about, the lowest bound of all plans is what a better one could reach.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from funcpipe.partitioner.backend import Problem
from funcpipe.partitioner.climb import climb
from funcpipe.partitioner.incumbent import Best, Candidates, Lowest
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.plan import Plan
from funcpipe.partitioner.starts import rule_plans
from funcpipe.partitioner.sweep import Sweep

__all__ = ["rule_out", "solve_1f1b"]

# How many labels are kept at a cut, and plans simulated, a combination.
WIDTH = MOST_SIMULATED = 200
WIDTHS = (40, 250, 1500)


def solve_1f1b(
    sweeps: Sequence[Sweep], problem: Problem, goal: Goal, best: Best, check: Callable[[], None]
) -> None:
    """All combinations, as far as that leads. sweeps: the most promising first."""
    left = [sweep.combination for sweep in sweeps if not sweep.is_done(best)]
    if not left:
        return
    starts = list(rule_plans(problem, goal, left, check))
    if best.plan is not None:
        starts += [
            replace(best.plan, schedule="1f1b", in_flight=depth * len(best.plan.stages))
            for depth in problem.space.depths
        ]
    found = _climbed(_of_1f1b(problem), goal, starts, check)
    if found is not None:
        best.consider(problem, goal, found)
    climb(problem, goal, best, check)
    for width in WIDTHS:
        rule_out(sweeps, problem, goal, best, check, width=width)
    for sweep in sorted(sweeps, key=lambda sweep: sweep.bound):
        if not sweep.is_done(best):
            _try_all(sweep, problem, goal, best, check)
            sweep.release()
    climb(problem, goal, best, check)


def _of_1f1b(problem: Problem) -> Problem:
    """Without other schedules, of which a best plan may have no neighbour that is better."""
    return replace(problem, space=replace(problem.space, schedules=("1f1b",)))


def _climbed(
    problem: Problem, goal: Goal, starts: Sequence[Plan], check: Callable[[], None]
) -> Plan | None:
    """The best that climbing from the best of `starts` comes to.

    If none of them keeps to the goal's bounds, first from the one that is fastest (cheapest, where
    only dollars are bounded) to one that does.
    """
    best, near = Best(), Best()
    nearer = Goal(time_weight=1.0, cost_weight=0.0)
    if goal.max_time_s == math.inf:
        nearer = Goal(time_weight=0.0, cost_weight=1.0)
    for plan in starts:
        check()
        best.consider(problem, goal, plan)
    if best.plan is None:
        for plan in starts:
            check()
            near.consider(problem, nearer, plan)
        climb(problem, nearer, near, check, enough=lambda plan: best.consider(problem, goal, plan))
    climb(problem, goal, best, check)
    return best.plan


def rule_out(
    sweeps: Sequence[Sweep], problem: Problem, goal: Goal, best: Best, check: Callable[[], None],
    *, width: int | None, rounds: int = 8,
) -> None:  # fmt: skip
    """Raise the bounds of combinations, the lowest first; the plan of each bound is simulated."""
    for sweep in sorted(sweeps, key=lambda sweep: sweep.bound):
        check()
        if sweep.is_done(best):
            continue
        sweep.narrow(best, rounds=rounds)
        if not sweep.proven:
            lowest = Lowest(best)
            left = sweep.run(lowest, width=width, check=check)
            sweep.bound = max(sweep.bound, min(left, lowest.value, best.value))
            if lowest.plan is not None:
                best.consider(problem, goal, lowest.plan)
        sweep.release()


def _try_all(
    sweep: Sweep, problem: Problem, goal: Goal, best: Best, check: Callable[[], None]
) -> None:
    """Simulate the plans of a combination whose lower bound could win, the lowest bound first.

    The sweep's bound is then the least value that a plan which was not simulated could have.
    """
    sweep.narrow(best)
    if sweep.proven:
        return
    candidates = Candidates(best)
    left = sweep.run(candidates, width=WIDTH, check=check, every=True)
    left = min(left, candidates.overflow)
    candidates.found.sort(key=lambda pair: pair[0])
    for number, (bound, plan) in enumerate(candidates.found):
        if bound >= best.bar:
            break
        if number == MOST_SIMULATED:
            left = min(left, bound)
            break
        check()
        best.consider(problem, goal, plan())
    sweep.bound = max(sweep.bound, left)
    sweep.proven = left == math.inf
