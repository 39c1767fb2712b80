"""From a profile, a platform and an objective to a plan that can be trusted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from funcpipe.errors import Infeasible, PlanError, SolverError
from funcpipe.partitioner.backend import Deadline, Outcome, Problem, Status
from funcpipe.partitioner.cost import Estimate, evaluate
from funcpipe.partitioner.front import find_front
from funcpipe.partitioner.infeasible import explain
from funcpipe.partitioner.objective import Goal, Objective
from funcpipe.partitioner.plan import Plan
from funcpipe.partitioner.platform import PlatformSpec, load_platform
from funcpipe.partitioner.profile import ModelProfile
from funcpipe.partitioner.setting import Setting
from funcpipe.partitioner.solvers import solve
from funcpipe.partitioner.space import MOST_SIMULATED, Space

__all__ = ["Answer", "Front", "make_setting", "pareto_front", "plan_for"]

TIME_LIMIT_S = 60.0
TIE = 1 + 1e-9
MOMENT_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A plan, what it takes, and how sure it is that there is none better.

    goal: what the objective came down to. value: of it; bound: no plan has less. status: `optimal`
    (proven) or `feasible`. plan.predicted: the same in short, as JSON.
    """

    plan: Plan
    estimate: Estimate
    objective: Objective
    goal: Goal
    value: float
    bound: float
    status: Status
    seconds: float
    solver: str
    notes: tuple[str, ...] = ()
    gpipe_proven: bool = False
    interrupted: bool = False

    @property
    def gap(self) -> float:
        """How much less a better plan could have, at most, as a share of the value."""
        return max(0.0, self.value - self.bound) / self.value if self.value > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class Front:
    """Plans of which none is faster and cheaper than another, by growing time.

    complete: whether none is missing that would save more than `spacing` of the dollars.
    """

    answers: tuple[Answer, ...]
    complete: bool
    spacing: float
    seconds: float
    notes: tuple[str, ...] = ()


def make_setting(
    profile: ModelProfile,
    platform: str | Path | PlatformSpec,
    *,
    batch_size: int | None = None,
    num_steps: int | None = None,
    changes: Mapping[str, str] | None = None,
) -> Setting:
    """batch_size: None takes the profile's. changes: figures of the platform to set."""
    if isinstance(platform, PlatformSpec):
        spec = platform.changed(changes or {})
    else:
        spec = load_platform(platform, changes=changes)
    chosen = profile.batch_size if batch_size is None else batch_size
    if chosen is None:
        raise PlanError(
            f"the profile {profile.name} does not say how large a batch is; give the batch size"
        )
    return Setting(profile=profile, platform=spec, batch_size=chosen, num_steps=num_steps)


def plan_for(
    setting: Setting,
    *,
    objective: Objective,
    space: Space | None = None,
    solver: str = "auto",
    time_limit_s: float | None = TIME_LIMIT_S,
) -> Answer:
    """The best plan there is, or the best that was found in time.

    Of plans that are equally fast the cheapest is taken, and of equally cheap ones the fastest.
    Raises `Infeasible` with what cannot be met and the nearest that can, `SolverError` for a solver
    that is missing or found nothing in time.
    """
    problem = Problem(setting=setting, space=space or Space())
    deadline = Deadline(time_limit_s)
    _check_functions(problem, objective.goal(1.0, 1.0))
    judge = _Judge(problem, solver, deadline)
    goal = objective.goal()
    first: Outcome | None = None
    if objective.needs_leasts:
        goal, first = judge.weighted(objective)
    found = judge.solve(goal, incumbent=first.plan if first else None)
    if found.plan is None and found.status is Status.TIMED_OUT:
        found = judge.once_more(goal, found)
    if found.plan is None:
        raise _nothing(problem, goal, found, judge)
    found = judge.settle_ties(goal, found)
    found = replace(found, notes=(*judge.notes, *found.notes, *_left_out(problem)))
    return _answer(setting, objective, goal, found, deadline)


def pareto_front(
    setting: Setting,
    *,
    objective_bounds: Objective | None = None,
    space: Space | None = None,
    time_limit_s: float | None = TIME_LIMIT_S,
    spacing: float = 1e-2,
) -> Front:
    """All plans worth choosing, within the bounds. gpipe only."""
    space = space or Space()
    if space.schedules != ("gpipe",):
        raise PlanError(
            f"the Pareto front is searched among gpipe plans; schedules are {space.schedules}"
        )
    problem = Problem(setting=setting, space=space)
    deadline = Deadline(time_limit_s)
    bounds = objective_bounds or Objective()
    goal = replace(Objective(kind="min-cost").goal(), **bounds.bounds)
    _check_functions(problem, goal)
    found = find_front(problem, goal, deadline=deadline, spacing=spacing)
    if not found.plans:
        judge = _Judge(problem, "auto", deadline)
        raise _nothing(problem, goal, judge.solve(goal), judge)
    answers = []
    for plan in found.plans:
        estimate = evaluate(setting, plan)
        outcome = Outcome(
            plan=plan, estimate=estimate, value=estimate.dollars,
            bound=estimate.dollars * (1 - found.spacing) if found.complete else 0.0,
            status=Status.FEASIBLE, seconds=found.seconds, solver="search",
        )  # fmt: skip
        told = Objective(kind="min-cost", max_time_s=estimate.step_s or None)
        answers.append(_answer(setting, told, told.goal(), outcome, deadline))
    return Front(
        answers=tuple(answers),
        complete=found.complete,
        spacing=found.spacing,
        seconds=deadline.passed_s,
        notes=found.notes,
    )


def _check_functions(problem: Problem, goal: Goal) -> None:
    """Infeasible if stages would be more than functions: that takes no search."""
    most = problem.max_functions
    if most is not None and problem.min_stages * problem.space.degrees[0] > most:
        raise Infeasible(explain(problem, goal))


class _Judge:
    """Asks one solver several questions about one problem, within one time limit."""

    def __init__(self, problem: Problem, solver: str, deadline: Deadline) -> None:
        self.problem, self.solver, self.deadline = problem, solver, deadline
        self.notes: tuple[str, ...] = ()

    def solve(self, goal: Goal, *, incumbent: Plan | None = None, share: float = 1.0) -> Outcome:
        """share: of the time left, that may be used."""
        deadline = self.deadline.part(share)
        return solve(self.problem, goal, solver=self.solver, deadline=deadline, incumbent=incumbent)

    def weighted(self, objective: Objective) -> tuple[Goal, Outcome]:
        """The goal of a weighted objective, and a plan to start from.

        Its units are the least time and the least dollars of all plans within the bounds.
        """
        bounds = objective.bounds
        # Of the time that there is the objective itself gets at least half.
        fastest = self._least(Goal(time_weight=1.0, cost_weight=0.0, **bounds), None, share=1 / 4)
        cheapest = self._least(
            Goal(time_weight=0.0, cost_weight=1.0, **bounds), fastest.plan, share=1 / 3
        )
        if any(one.status is not Status.OPTIMAL for one in (fastest, cheapest)):
            self.notes = ("weighted by the least time and dollars found, which are not proven",)
        return objective.goal(fastest.value, cheapest.value), cheapest

    def _least(self, goal: Goal, incumbent: Plan | None, share: float) -> Outcome:
        found = self.solve(goal, incumbent=incumbent, share=share)
        if found.status is Status.TIMED_OUT:
            found = self.solve(goal, incumbent=incumbent)
        if found.interrupted:
            raise KeyboardInterrupt  # there is no objective yet, so nothing to answer
        if found.plan is None:
            raise _nothing(self.problem, goal, found, self)
        return found

    def once_more(self, goal: Goal, found: Outcome) -> Outcome:
        """Where the search ended early and without a plan: from one that just keeps the bounds."""
        for bound, other in (
            (goal.max_time_s, replace(goal, time_weight=1.0, cost_weight=0.0, max_time_s=math.inf)),
            (goal.max_cost, replace(goal, time_weight=0.0, cost_weight=1.0, max_cost=math.inf)),
        ):
            if bound < math.inf and not self.deadline.over:
                near = self.solve(other)
                if near.plan is not None and near.value <= bound:
                    return self.solve(goal, incumbent=near.plan)
        return found

    def settle_ties(self, goal: Goal, found: Outcome) -> Outcome:
        """Among the plans that are as good, the one that is best in the other respect."""
        _, estimate = found.found
        if not goal.cost_weight:
            bound = min(estimate.step_s * TIE, goal.max_time_s)
            other = replace(goal, time_weight=0.0, cost_weight=1.0, max_time_s=bound)
        elif not goal.time_weight:
            bound = min(estimate.dollars * TIE, goal.max_cost)
            other = replace(goal, time_weight=1.0, cost_weight=0.0, max_cost=bound)
        else:
            return found
        left_s = self.deadline.left_s
        if left_s <= 0 or found.interrupted or found.status is not Status.OPTIMAL:
            return found
        # A nicety, which must not take long beside the plan itself.
        limit_s = min(left_s, max(MOMENT_S, found.seconds / 4))
        try:
            better = solve(
                self.problem,
                other,
                solver=self.solver,
                deadline=Deadline(limit_s),
                incumbent=found.plan,
            )
        except SolverError:
            return found  # the plan stands without it
        if better.plan is None:
            return found
        plan, estimate = better.found
        value = goal.value(estimate.step_s, estimate.dollars)
        if better.status is not Status.OPTIMAL:
            in_what = "cheaper" if other.cost_weight else "faster"
            self.notes += (f"of plans that are as good there may be a {in_what} one",)
        return replace(
            found, plan=plan, estimate=estimate, value=value, bound=min(found.bound, value)
        )


def _nothing(problem: Problem, goal: Goal, outcome: Outcome, judge: _Judge) -> PlanError:
    bounded = min(goal.max_time_s, goal.max_cost) < math.inf
    if outcome.status is Status.TIMED_OUT and (judge.deadline.over or not bounded):
        return SolverError(
            f"{outcome.solver} found no plan in {outcome.seconds:.1f} s, and there may be one; "
            "allow more time, or fewer choices"
        )
    return Infeasible(explain(problem, goal, judge.solve))


def _answer(
    setting: Setting, objective: Objective, goal: Goal, found: Outcome, deadline: Deadline
) -> Answer:
    plan, estimate = found.found
    notes = (*found.notes, *_warnings(setting, plan, estimate))
    answer = Answer(
        plan=plan,
        estimate=estimate,
        objective=objective,
        goal=goal,
        value=found.value,
        bound=found.bound,
        status=found.status,
        seconds=deadline.passed_s,
        solver=found.solver,
        notes=notes,
        gpipe_proven=found.gpipe_proven,
        interrupted=found.interrupted,
    )
    return replace(answer, plan=replace(plan, predicted=_predicted(setting, answer)))


def _left_out(problem: Problem) -> list[str]:
    """1f1b is not simulated where micro-batches are too many."""
    if "1f1b" not in problem.space.schedules:
        return []
    sizes = problem.space.sizes(problem.setting)
    left_out = [n for n in sizes if problem.setting.num_micro_batches(n) > MOST_SIMULATED]
    if not left_out:
        return []
    return [
        f"1f1b was not looked at with micro-batches of up to {max(left_out)} samples: steps of "
        f"more than {MOST_SIMULATED:,} micro-batches take too long to simulate"
    ]


def _warnings(setting: Setting, plan: Plan, estimate: Estimate) -> list[str]:
    limit, steps = setting.platform.time.limit_s, setting.num_steps
    warnings = []
    if limit is not None and steps is not None and steps * estimate.step_s > limit:
        warnings.append(
            f"{steps} step{'s take' if steps > 1 else ' takes'} {steps * estimate.step_s:.0f} s, "
            f"and a function of {setting.platform.name} lives for {limit:.0f} s at most: such a "
            "run cannot be done yet"
        )
    if estimate.time.how == "upper bound":
        smaller = setting.batch_size % min(plan.micro_batch_size, setting.batch_size)
        cause = (
            f"the last micro-batch has {smaller} sample{'s' if smaller > 1 else ''} and is counted "
            f"as one of {plan.micro_batch_size}"
            if smaller
            else "waits for latencies, or for gradients to be sent, are counted in full"
        )
        warnings.append(f"the time is an upper bound: {cause}")
    return warnings


def _predicted(setting: Setting, answer: Answer) -> dict[str, Any]:
    """What a plan's file says of it. Numbers that are infinite are left out: JSON has none."""
    told: dict[str, Any] = {
        "model": setting.profile.name,
        "platform": setting.platform.name,
        "objective": str(answer.objective),
        "batch_size": setting.batch_size,
        "solver": answer.solver,
        "status": str(answer.status),
        "gap": answer.gap,
        **answer.estimate.to_dict(),
    }
    for name in ("max_time_s", "max_cost"):
        bound = getattr(answer.objective, name)
        if bound is not None and math.isfinite(bound):
            told[name] = bound
    return told
