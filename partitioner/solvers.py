"""The solvers by name, and one way to call any of them."""

from __future__ import annotations

import importlib
from dataclasses import replace

from funcpipe.errors import PlanError, SolverError
from funcpipe.partitioner.backend import Backend, Deadline, Outcome, Problem
from funcpipe.partitioner.figures import near
from funcpipe.partitioner.mip import gpipe_alone
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.plan import Plan
from funcpipe.partitioner.verify import verified

__all__ = ["SOLVERS", "backend", "solve"]

SOLVERS = {
    "auto": ("funcpipe.partitioner.search", "Search"),
    "search": ("funcpipe.partitioner.search", "Search"),
    "exhaustive": ("funcpipe.partitioner.exhaustive", "Exhaustive"),
    "cbc": ("funcpipe.partitioner.pulp_solver", "Cbc"),
    "highs": ("funcpipe.partitioner.pulp_solver", "Highs"),
    "gurobi": ("funcpipe.partitioner.gurobi", "Gurobi"),
}
"""Where each is; imported when it is chosen."""

# What takes over for a solver that a licence may keep from working.
FALLBACKS = {"gurobi": "search"}


GPIPE_ALONE = ("cbc", "highs", "gurobi")


def backend(name: str) -> Backend:
    """PlanError for a name that is not known. Whether it is installed shows when it solves."""
    if name not in SOLVERS:
        raise PlanError(f"unknown solver {name!r:.60}{near(str(name), SOLVERS)}")
    module, attribute = SOLVERS[name]
    made: Backend = getattr(importlib.import_module(module), attribute)()
    return made


def solve(
    problem: Problem,
    goal: Goal,
    *,
    solver: str = "auto",
    deadline: Deadline | None = None,
    incumbent: Plan | None = None,
) -> Outcome:
    """The best plan for `goal`, found by `solver` and judged by `verify`, whatever the solver says.

    Gurobi may be missing, or its licence too small for a problem: then `search` solves it, and a
    note says so. SolverError for any other solver that cannot, and for an answer that is wrong.
    """
    deadline = Deadline() if deadline is None else deadline
    if solver in GPIPE_ALONE and "1f1b" in problem.space.schedules:
        raise gpipe_alone(solver)
    notes: tuple[str, ...] = ()
    try:
        found = backend(solver).solve(problem, goal, deadline=deadline, incumbent=incumbent)
    except SolverError as error:
        if solver not in FALLBACKS:
            raise
        notes = (f"solved by {FALLBACKS[solver]} instead of {solver}: {error.message}",)
        other = backend(FALLBACKS[solver])
        found = other.solve(problem, goal, deadline=deadline, incumbent=incumbent)
    found = replace(found, notes=(*notes, *found.notes))
    if found.plan is None:
        return found
    estimate = verified(problem, goal, found.plan, solver=found.solver)
    value = goal.value(estimate.step_s, estimate.dollars)
    return replace(found, estimate=estimate, value=value, bound=min(found.bound, value))
