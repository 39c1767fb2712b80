"""The judge of every answer: re-evaluates a plan and checks all that was asked for."""

from __future__ import annotations

from collections.abc import Iterator

from funcpipe.errors import PlanError, SolverError
from funcpipe.partitioner.backend import Problem
from funcpipe.partitioner.cost import MB, Estimate, evaluate
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.plan import Plan

__all__ = ["faults", "verified"]


def verified(problem: Problem, goal: Goal, plan: Plan, *, solver: str) -> Estimate:
    """What the plan takes, by `cost.evaluate`; SolverError if it breaks what was asked for."""
    try:
        estimate = evaluate(problem.setting, plan)
    except PlanError as error:
        raise SolverError(f"{solver} gave a plan that is none: {error.message}") from error
    wrong = faults(problem, goal, plan, estimate)
    if wrong:
        raise SolverError(
            f"{solver} gave a plan that breaks what was asked for: {'; '.join(wrong)}. It is not "
            "used; try another solver"
        )
    return estimate


def faults(problem: Problem, goal: Goal, plan: Plan, estimate: Estimate) -> list[str]:
    """Everything that the plan breaks, in words."""
    found = [*_faults_of_stages(problem, plan, estimate), *_faults_of_plan(problem, plan)]
    if max(plan.degrees) > estimate.num_micro_batches:
        found.append(f"degree {max(plan.degrees)} for {estimate.num_micro_batches} micro-batches")
    if not goal.allows(estimate.step_s, estimate.dollars):
        found.append(
            f"a step takes {estimate.step_s:.6g} s and {estimate.dollars:.6g} dollars, over a bound"
        )
    return found


def _faults_of_stages(problem: Problem, plan: Plan, estimate: Estimate) -> Iterator[str]:
    space, tiers = problem.space, problem.space.tiers(problem.setting)
    for number, (stage, told) in enumerate(zip(plan.stages, estimate.stages, strict=True)):
        owner = f"stage {number}"
        if told.memory_mb not in tiers:
            yield f"{owner} has {told.memory_mb} MB, which is not to be chosen from"
        if not told.fits:
            yield f"{owner} needs {told.memory.total / MB:.0f} MB and has {told.memory_mb} MB"
        if stage.replicas not in space.degrees:
            yield f"{owner} has degree {stage.replicas}, which is not to be chosen from"
        if space.recompute not in ("choose", "always" if stage.recompute else "never"):
            yield f"{owner}: recomputation is {stage.recompute}"


def _faults_of_plan(problem: Problem, plan: Plan) -> Iterator[str]:
    space, setting = problem.space, problem.setting
    if not space.per_stage and len(set(plan.degrees)) > 1:
        yield f"its stages have different degrees: {plan.degrees}"
    if not problem.min_stages <= len(plan.stages) <= problem.max_stages:
        yield f"it has {len(plan.stages)} stage{'' if len(plan.stages) == 1 else 's'}"
    if problem.max_functions is not None and plan.num_functions > problem.max_functions:
        yield f"it has {plan.num_functions} functions of at most {problem.max_functions}"
    if plan.micro_batch_size not in space.sizes(setting):
        yield f"micro-batches of {plan.micro_batch_size} are not to be chosen from"
    if plan.schedule not in space.schedules:
        yield f"the schedule {plan.schedule} is not to be chosen from"
    if plan.sync not in space.sync:
        yield f"synchronisation by {plan.sync} is not to be chosen from"
    num = len(plan.stages)
    in_flight = num if plan.in_flight is None else plan.in_flight
    if plan.schedule == "1f1b" and in_flight not in [depth * num for depth in space.depths]:
        yield f"{in_flight} micro-batches in flight are not to be chosen from"
