"""The back-end `gurobi`: the program with the product left in the objective, as FuncPipe solves it.

Without a licence of one's own gurobipy solves small programs only: 2,000 variables and constraints,
and 200 variables once anything is quadratic. What is too large as a quadratic program is solved as
a linear one (`funcpipe.partitioner.program`); what is too large as that is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from funcpipe.errors import SolverError
from funcpipe.partitioner.backend import Deadline, Outcome, Problem
from funcpipe.partitioner.mip import Answer, solve_all
from funcpipe.partitioner.native import quiet, stoppable
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.plan import Plan
from funcpipe.partitioner.program import Program, make_program
from funcpipe.partitioner.rowbounds import Limits, RowBounds

__all__ = ["Gurobi"]

TOLERANCE = 1e-9

# Gurobi's error for a model that the licence in use is too small for.
SIZE_LIMIT_EXCEEDED = 10010

_PARAMETERS = {
    "MIPGap": 0.0,
    "MIPGapAbs": TOLERANCE,
    "FeasibilityTol": TOLERANCE,
    "IntFeasTol": TOLERANCE,
    "OptimalityTol": TOLERANCE,
}


class Gurobi:
    """`Backend`; SolverError without gurobipy, a licence, or one that is large enough."""

    name = "gurobi"

    def solve(
        self, problem: Problem, goal: Goal, *, deadline: Deadline, incumbent: Plan | None = None
    ) -> Outcome:
        gurobipy = _gurobipy()
        with quiet():  # some licences are announced on standard output
            env = _environment(gurobipy)
        runner = _Runner(gurobipy, env)
        try:
            return solve_all(
                runner.run, problem, goal, solver=self.name, deadline=deadline,
                incumbent=incumbent, make=runner.make,
            )  # fmt: skip
        finally:
            env.dispose()


def _gurobipy() -> ModuleType:
    try:
        import gurobipy
    except ImportError as error:
        raise SolverError(
            "the solver gurobi needs the package gurobipy; install it "
            "(pip install 'funcpipe-train[gurobi]') or choose the solver search"
        ) from error
    return gurobipy


def _environment(gurobipy: Any) -> Any:
    env = None
    try:
        env = gurobipy.Env(empty=True)
        for name, value in {"OutputFlag": 0, "LogToConsole": 0, "LogFile": ""}.items():
            env.setParam(name, value)
        env.start()
    except gurobipy.GurobiError as error:
        if env is not None:
            env.dispose()
        raise SolverError(
            f"gurobi does not start: {error.message or 'error'} ({error.errno}). Check its licence "
            "(GRB_LICENSE_FILE), or choose the solver search"
        ) from error
    return env


class _Runner:
    """Makes each program with its product first, and again without where that is too large."""

    def __init__(self, gurobipy: Any, env: Any) -> None:
        self._gurobipy, self._env = gurobipy, env

    def make(
        self,
        bounds: RowBounds,
        goal: Goal,
        limits: Limits,
        *,
        excluded: Sequence[Sequence[int]] = (),
    ) -> Program:
        self._linear_parts = (bounds, goal, limits, excluded)
        return make_program(bounds, goal, limits, quadratic=True, excluded=excluded)

    def run(self, program: Program, *, limit_s: float) -> Answer:
        """`mip.Run`."""
        answer = self._solve(program, limit_s)
        if answer is None and program.is_quadratic:
            bounds, goal, limits, excluded = self._linear_parts
            program = make_program(bounds, goal, limits, excluded=excluded)
            answer = self._solve(program, limit_s)
        if answer is None:
            raise SolverError(
                f"gurobi's licence is too small for {program.num_variables} variables and "
                f"{program.num_constraints} constraints (without one of your own: 2,000 each); "
                "choose the solver search, fewer memory sizes (tiers), or get a licence"
            )
        return answer

    def _solve(self, program: Program, limit_s: float) -> Answer | None:
        """None if the licence is too small."""
        model = self._gurobipy.Model(env=self._env)
        try:
            variables = _fill(self._gurobipy, model, program)
            if limit_s < math.inf:
                model.Params.TimeLimit = limit_s
            with quiet():
                stopped = stoppable(model.optimize, model.terminate)
            return _answer(self._gurobipy.GRB, model, program, variables, stopped)
        except self._gurobipy.GurobiError as error:
            if error.errno == SIZE_LIMIT_EXCEEDED:
                return None
            raise SolverError(
                f"gurobi failed: {error.message or 'error'} ({error.errno}); choose another solver"
            ) from error
        finally:
            model.dispose()


def _fill(gurobipy: Any, model: Any, program: Program) -> list[Any]:
    kinds = gurobipy.GRB
    for name, value in _PARAMETERS.items():
        model.setParam(name, value)
    if program.cutoff < math.inf:
        model.Params.Cutoff = program.cutoff
    variables = [
        model.addVar(lb=low, ub=high, vtype=kinds.BINARY if whole else kinds.CONTINUOUS)
        for low, high, whole in zip(
            program.lower.tolist(), program.upper.tolist(), program.whole.tolist(), strict=True
        )
    ]
    for (columns, values), least, most in zip(
        program.by_row(), program.row_lower, program.row_upper, strict=True
    ):
        terms = gurobipy.LinExpr(values.tolist(), [variables[i] for i in columns])
        if least == most:
            model.addLConstr(terms, kinds.EQUAL, least)
            continue
        if least > -math.inf:
            model.addLConstr(terms, kinds.GREATER_EQUAL, least)
        if most < math.inf:
            model.addLConstr(terms, kinds.LESS_EQUAL, most)
    linear = np.flatnonzero(program.objective)
    objective = gurobipy.QuadExpr(
        gurobipy.LinExpr(program.objective[linear].tolist(), [variables[i] for i in linear])
    )
    if program.is_quadratic:
        objective.addTerms(
            program.factor.tolist(),
            [variables[i] for i in program.left],
            [variables[i] for i in program.right],
        )
    model.setObjective(objective, kinds.MINIMIZE)
    return variables


def _answer(
    kinds: Any, model: Any, program: Program, variables: list[Any], stopped: bool
) -> Answer:
    # Gurobi has a handler of its own for Ctrl-C while it works, which may be the first to see it.
    stopped = stopped or model.Status == kinds.INTERRUPTED
    if model.Status in (kinds.INFEASIBLE, kinds.INF_OR_UNBD, kinds.CUTOFF):
        return Answer(finished=True, stopped=stopped)
    rows = program.path([one.X for one in variables]) if model.SolCount else None
    if model.Status == kinds.OPTIMAL:
        if rows is None:
            raise SolverError("gurobi gave an answer that is no plan; choose the solver search")
        return Answer(rows=rows, finished=True, bound=model.ObjBound, stopped=stopped)
    if model.Status in (kinds.TIME_LIMIT, kinds.INTERRUPTED, kinds.SUBOPTIMAL, kinds.NUMERIC):
        return Answer(rows=rows, finished=False, bound=model.ObjBound, stopped=stopped)
    raise SolverError(f"gurobi ended with status {model.Status}; choose the solver search")
