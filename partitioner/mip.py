"""How the back-ends that solve a program work through all combinations, whatever solves it."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

from funcpipe.errors import SolverError
from funcpipe.partitioner.backend import Deadline, Outcome, Problem, Status
from funcpipe.partitioner.cost import Estimate, evaluate
from funcpipe.partitioner.firstplan import first_rows
from funcpipe.partitioner.incumbent import OutOfTime, checker
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.plan import Plan
from funcpipe.partitioner.program import CUT, Program, make_program
from funcpipe.partitioner.rowbounds import Limits, RowBounds, row_bounds
from funcpipe.partitioner.space import Combination
from funcpipe.partitioner.starts import rule_plans
from funcpipe.partitioner.verify import faults, verified

__all__ = ["Answer", "Run", "gpipe_alone", "solve_all"]

# How many plans that a solver's tolerance let over a bound are excluded, one after the other.
MOST_EXCLUDED = 20

# Of the time that is left, for plans that simple rules propose.
RULES_SHARE = 0.2

# Proven up to here: what a solver's tolerance leaves of a bound that ought to equal the value.
PROVEN = 1e-6


@dataclass(frozen=True, kw_only=True)
class Answer:
    """rows: of the best plan that the solver found, if any. finished: whether there is none better
    within the cutoff. bound: of the objective; only what is proven. stopped: by Ctrl-C.
    """

    rows: list[int] | None = None
    finished: bool
    bound: float = -math.inf
    stopped: bool = False


class Run(Protocol):
    """Solves one program within limit_s seconds (infinite: without a limit)."""

    def __call__(self, program: Program, *, limit_s: float) -> Answer: ...


@dataclass(kw_only=True)
class _State:
    problem: Problem
    goal: Goal
    solver: str
    run: Run
    make: Callable[..., Program]
    deadline: Deadline
    began_s: float
    plan: Plan | None = None
    estimate: Estimate | None = None
    value: float = math.inf
    notes: list[str] = field(default_factory=list)

    def offer(self, plan: Plan) -> bool:
        """Keep the plan if it is allowed and better; whether it is allowed."""
        estimate = evaluate(self.problem.setting, plan)
        if faults(self.problem, self.goal, plan, estimate):
            return False
        value = self.goal.value(estimate.step_s, estimate.dollars)
        if value < self.value:
            self.plan, self.estimate, self.value = plan, estimate, value
        return True

    def limits(self) -> Limits:
        problem = self.problem
        return Limits(
            min_stages=problem.min_stages,
            max_stages=problem.max_stages,
            max_functions=problem.max_functions,
            value=self.value,
        )

    def bounds(self, combination: Combination) -> RowBounds:
        return row_bounds(self.problem.table(combination), self.goal, self.limits())

    def cut(self) -> float:
        """What a plan has to be below to be of use."""
        return self.value * (1 - CUT)


@dataclass(kw_only=True)
class _Part:
    """One combination. bound: none of its plans has less. given_up: more time is no help."""

    combination: Combination
    bound: float
    finished: bool = False
    given_up: bool = False
    excluded: list[list[int]] = field(default_factory=list)


def solve_all(
    run: Run,
    problem: Problem,
    goal: Goal,
    *,
    solver: str,
    deadline: Deadline,
    incumbent: Plan | None,
    make: Callable[..., Program] = make_program,
) -> Outcome:
    """`Backend.solve` by `run`: the best plan of all combinations, each cut by the best so far.

    make: as `make_program`. Optimal is what is proven up to a millionth, the tolerance of solvers.
    """
    combinations = problem.combinations()
    if any(combination.schedule != "gpipe" for combination in combinations):
        raise gpipe_alone(solver)
    state = _State(
        problem=problem, goal=goal, solver=solver, run=run, make=make, deadline=deadline,
        began_s=deadline.passed_s,
    )  # fmt: skip
    parts = [_Part(combination=one, bound=-math.inf) for one in combinations]
    try:
        if incumbent is not None:
            state.offer(incumbent)
        _begin(state, parts)
        _work(state, parts)
    except KeyboardInterrupt:
        if state.plan is None:
            raise
        state.notes.append("stopped by Ctrl-C")
        return replace(_outcome(state, parts), interrupted=True)
    return _outcome(state, parts)


def gpipe_alone(solver: str) -> SolverError:
    """What to say to whoever asks for another schedule."""
    return SolverError(
        f"{solver} plans the schedule gpipe only: there is no formula for 1f1b. Choose the solver "
        "search, or exhaustive for a small model"
    )


def _begin(state: _State, parts: list[_Part]) -> None:
    """Bounds of all combinations, the most promising first, and a first plan."""
    for part in parts:
        if not state.deadline.over:
            part.bound = state.bounds(part.combination).value
    parts.sort(key=lambda part: part.bound)
    with suppress(OutOfTime):
        check = checker(state.deadline)
        for part in parts:
            check()
            table = state.problem.table(part.combination)
            rows = first_rows(table, state.goal, state.limits(), check)
            if rows is not None:
                state.offer(table.plan(rows))
        left = [part.combination for part in parts if part.bound < state.cut()]
        check = checker(state.deadline.part(RULES_SHARE))
        for plan in rule_plans(state.problem, state.goal, left, check):
            check()
            state.offer(plan)


def _work(state: _State, parts: list[_Part]) -> None:
    """Each combination gets its share of the time left; what needs more gets it at the end."""
    while pending := [part for part in parts if not part.finished and not part.given_up]:
        for number, part in enumerate(pending):
            if state.deadline.over:
                return
            share = state.deadline.left_s / (len(pending) - number)
            if _solve(state, part, share).stopped:
                raise KeyboardInterrupt
            part.given_up |= share == math.inf


def _solve(state: _State, part: _Part, limit_s: float) -> Answer:
    """One combination, again without each plan that breaks a bound; the last answer."""
    table = state.problem.table(part.combination)
    while True:
        bounds = state.bounds(part.combination)
        part.bound = max(part.bound, min(bounds.value, state.cut()))
        if part.bound >= state.cut():
            part.finished = True
            return Answer(finished=True)
        program = state.make(bounds, state.goal, state.limits(), excluded=part.excluded)
        answer = state.run(program, limit_s=min(limit_s, state.deadline.left_s))
        if answer.rows is None or state.offer(table.plan(answer.rows)):
            part.finished = answer.finished
            break
        if len(part.excluded) == MOST_EXCLUDED:
            part.given_up = True
            text = f"{state.solver} finds only plans that its tolerance lets over a bound"
            state.notes.append(text)
            break
        part.excluded.append(answer.rows)
        if answer.stopped or state.deadline.over:
            break
    proven = math.inf if answer.finished and answer.rows is None else answer.bound * program.unit
    part.bound = max(part.bound, min(proven * (1 - CUT), state.cut()))
    return answer


def _outcome(state: _State, parts: list[_Part]) -> Outcome:
    bound = min((part.bound for part in parts), default=math.inf)
    found = Outcome(
        plan=state.plan,
        estimate=state.estimate,
        value=state.value,
        bound=min(bound, state.value),
        status=Status.INFEASIBLE,
        seconds=state.deadline.passed_s - state.began_s,
        solver=state.solver,
        notes=tuple(state.notes),
    )
    whole = all(part.finished for part in parts)
    if state.plan is None:
        return found if whole else replace(found, status=Status.TIMED_OUT)
    verified(state.problem, state.goal, state.plan, solver=state.solver)
    proven = whole and found.gap <= PROVEN
    return replace(found, status=Status.OPTIMAL if proven else Status.FEASIBLE)
