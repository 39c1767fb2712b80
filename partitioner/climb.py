"""From a plan to better ones nearby: for schedules of which only a simulation says the time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from funcpipe.errors import PlanError
from funcpipe.partitioner.backend import Problem
from funcpipe.partitioner.incumbent import Best
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.plan import Plan, StagePlan
from funcpipe.partitioner.space import MOST_SIMULATED

__all__ = ["MOST_TRIED", "climb", "neighbours"]

MOST_TRIED = 3000


def climb(
    problem: Problem,
    goal: Goal,
    best: Best,
    check: Callable[[], None],
    *,
    most: int = MOST_TRIED,
    enough: Callable[[Plan], bool] = lambda _: False,
) -> None:
    """Change the best plan in one way after the other for as long as that makes it better.

    Every plan is tried once, at most `most` of them. enough: is shown each better plan; True ends
    it.
    """
    seen: set[Plan] = set()
    while best.plan is not None:
        start = best.plan
        for plan in neighbours(problem, start):
            if plan in seen:
                continue
            check()
            seen.add(plan)
            better = best.consider(problem, goal, plan)
            if len(seen) >= most or (better and enough(plan)):
                return
        if best.plan is start:
            return


def _takes_too_long(problem: Problem, plan: Plan) -> bool:
    """To be simulated."""
    num = problem.setting.num_micro_batches(plan.micro_batch_size)
    return plan.schedule == "1f1b" and num > MOST_SIMULATED


def neighbours(problem: Problem, plan: Plan) -> Iterator[Plan]:
    """Plans that differ in one cut, one stage's memory, the number of stages, or what all stages
    share. Some may not be allowed.
    """
    for one in _every(problem, plan):
        if not _takes_too_long(problem, one):
            yield one


def _every(problem: Problem, plan: Plan) -> Iterator[Plan]:
    tiers = problem.space.tiers(problem.setting)
    for stages in (*_moved(plan.stages), *_resized(plan.stages, tiers), *_joined(plan.stages)):
        yield _with(plan, stages)
    if len(plan.stages) < problem.max_stages:
        for stages in _divided(plan.stages):
            yield _with(plan, stages)
    if problem.space.recompute == "choose":
        for stages in _again(plan.stages):
            yield _with(plan, stages)
    yield from _shared(problem, plan)


def _with(plan: Plan, stages: Sequence[StagePlan]) -> Plan:
    """As many micro-batches in flight for each stage as before."""
    in_flight = plan.in_flight
    if in_flight is not None:
        in_flight = in_flight // len(plan.stages) * len(stages)
    return replace(plan, stages=tuple(stages), in_flight=in_flight)


def _moved(stages: Sequence[StagePlan]) -> Iterator[list[StagePlan]]:
    for number in range(1, len(stages)):
        before, behind = stages[number - 1], stages[number]
        for cut in {behind.first_layer + by for by in (-4, -2, -1, 1, 2, 4)}:
            if before.first_layer < cut < behind.stop_layer:
                yield [
                    *stages[: number - 1],
                    replace(before, stop_layer=cut),
                    replace(behind, first_layer=cut),
                    *stages[number + 1 :],
                ]


def _resized(stages: Sequence[StagePlan], tiers: Sequence[int]) -> Iterator[list[StagePlan]]:
    for number, stage in enumerate(stages):
        for tier in _beside(tiers, stage.memory_mb):
            yield [*stages[:number], replace(stage, memory_mb=tier), *stages[number + 1 :]]
    for tier in tiers:
        yield [replace(stage, memory_mb=tier) for stage in stages]


def _joined(stages: Sequence[StagePlan]) -> Iterator[list[StagePlan]]:
    for number in range(1, len(stages)):
        before, behind = stages[number - 1], stages[number]
        for kept in {before.memory_mb, behind.memory_mb}:
            one = replace(before, stop_layer=behind.stop_layer, memory_mb=kept)
            yield [*stages[: number - 1], one, *stages[number + 1 :]]


def _divided(stages: Sequence[StagePlan]) -> Iterator[list[StagePlan]]:
    for number, stage in enumerate(stages):
        for cut in range(stage.first_layer + 1, stage.stop_layer):
            two = (replace(stage, stop_layer=cut), replace(stage, first_layer=cut))
            yield [*stages[:number], *two, *stages[number + 1 :]]


def _again(stages: Sequence[StagePlan]) -> Iterator[list[StagePlan]]:
    for number, stage in enumerate(stages):
        other = replace(stage, recompute=not stage.recompute)
        yield [*stages[:number], other, *stages[number + 1 :]]


def _shared(problem: Problem, plan: Plan) -> Iterator[Plan]:
    """Another size of micro-batches, degree, depth or schedule."""
    space, num = problem.space, len(plan.stages)
    for size in _beside(space.sizes(problem.setting), plan.micro_batch_size):
        yield replace(plan, micro_batch_size=size)
    if len(set(plan.degrees)) == 1:
        for degree in _beside(space.degrees, plan.degrees[0]):
            yield replace(plan, stages=tuple(replace(s, replicas=degree) for s in plan.stages))
    else:
        for number, stage in enumerate(plan.stages):
            for degree in _beside(space.degrees, stage.replicas):
                other = replace(stage, replicas=degree)
                yield replace(
                    plan, stages=(*plan.stages[:number], other, *plan.stages[number + 1 :])
                )
    if "1f1b" in space.schedules:
        for depth in space.depths:
            yield replace(plan, schedule="1f1b", in_flight=depth * num)
    for sync in space.sync:
        yield replace(plan, sync=sync)


def _beside(values: Sequence[int], value: int | None) -> list[int]:
    """The next lower one and the next higher one of growing values."""
    if value is None:
        raise PlanError("a stage without a memory size cannot be changed to the next one")
    place = bisect_left(values, value)
    lower = [values[place - 1]] if place else []
    higher = [one for one in values[place : place + 2] if one > value][:1]
    return [*lower, *higher]
