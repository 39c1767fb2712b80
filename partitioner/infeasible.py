"""Why a problem has no plan, in words: the constraint that cannot be met, and the nearest that can.

What is said to fit has been tried, with all other constraints as they are.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from funcpipe.partitioner.backend import Outcome, Problem
from funcpipe.partitioner.infeasible_goal import goal_missed
from funcpipe.partitioner.infeasible_memory import too_large
from funcpipe.partitioner.infeasible_ways import no_way_out, ways_out
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.reach import fewest_functions, within_bounds

__all__ = ["explain"]

Floats = NDArray[np.float64]


def explain(problem: Problem, goal: Goal, solve: Callable[[Goal], Outcome] | None = None) -> str:
    """What cannot be met, and what can. solve: gives the problem's best plan for another goal.

    PlanError as `Space` raises it, for a space that contradicts itself or the platform; SolverError
    where `solve` finds no plan though there is one.
    """
    if not problem.combinations():
        return _too_high_degrees(problem)
    fewest = fewest_functions(problem)
    if within_bounds(problem, fewest):
        return goal_missed(goal, solve)
    tight = bool(np.isfinite(fewest).any())
    cause = _too_tight(problem, fewest) if tight else too_large(problem)
    ways = ways_out(problem, bounds=not tight)
    if ways:
        return f"{cause}. What fits instead: {'; or '.join(ways)}"
    return cause if tight else f"{cause}. {no_way_out(problem)}"


def _too_high_degrees(problem: Problem) -> str:
    setting, space = problem.setting, problem.space
    size = min(space.sizes(setting))
    num = setting.num_micro_batches(size)
    degrees = ", ".join(map(str, space.degrees))
    return (
        f"every degree to choose from ({degrees}) is more than the {num} micro-batches of {size} "
        f"in a batch of {setting.batch_size}; allow a degree of at most {num}"
    )


def _too_tight(problem: Problem, fewest: Floats) -> str:
    """Some plan fits in memory, but none within the bounds on stages and functions."""
    most = np.inf if problem.max_functions is None else problem.max_functions
    inside = np.full(len(fewest), np.inf)
    stages = slice(problem.min_stages, problem.max_stages + 1)
    inside[stages] = fewest[stages]
    functions = f"at most {most} function{'' if most == 1 else 's'}"
    if most != problem.space.max_functions:
        functions += f" on {problem.setting.platform.name}"
    if np.isfinite(inside).any():
        return f"{functions}; the least that fits is {_shape(problem, inside.argmin(), fewest)}"
    pool = np.where(fewest <= most, fewest, np.inf)
    asked, nearest = [], []
    if not np.isfinite(pool).any():
        pool = fewest
        asked.append(functions)
    fitting = np.flatnonzero(np.isfinite(pool))
    above, below = fitting[fitting > problem.max_stages], fitting[fitting < problem.min_stages]
    if len(above):
        asked.append(f"at most {problem.max_stages} stages")
        nearest.append(f"the next that fits is {_shape(problem, above[0], fewest)}")
    if len(below):
        asked.append(f"at least {problem.min_stages} stages")
        nearest.append(f"the most that fits is {_shape(problem, below[-1], fewest)}")
    return f"{' and '.join(asked)}; {', '.join(nearest)}"


def _shape(problem: Problem, num_stages: np.int64, fewest: Floats) -> str:
    functions = int(fewest[num_stages])
    noun = "stage" if num_stages == 1 else "stages"
    if problem.space.per_stage:
        return f"{functions} functions in {num_stages} {noun}"
    return f"{num_stages} {noun} x {functions // num_stages}"
