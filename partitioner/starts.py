"""Plans to start from: one at once, and what simple rules propose."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, pairwise

from funcpipe.partitioner.backend import Problem
from funcpipe.partitioner.baselines_choice import Choice, Grid
from funcpipe.partitioner.baselines_cuts import RULES
from funcpipe.partitioner.cost import MB
from funcpipe.partitioner.firstplan import first_rows
from funcpipe.partitioner.memory import held_micro_batches, memory_use
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.plan import Plan, StagePlan
from funcpipe.partitioner.rowbounds import Limits
from funcpipe.partitioner.space import Combination
from funcpipe.partitioner.table import Table

__all__ = ["even_plans", "rule_plans", "short_path"]


def even_plans(problem: Problem) -> Iterator[Plan]:
    """Plans that fit in memory, of few stages of equally many layers: one stage first, with the
    largest memory; then, with it, two, three, four, six, eight ...
    """
    tiers = problem.space.tiers(problem.setting)
    for num_stages, memory_mb in chain(
        ((1, memory_mb) for memory_mb in reversed(tiers)),
        ((num, tiers[-1]) for num in _NUMBERS),
    ):
        if problem.min_stages <= num_stages <= problem.max_stages:
            for combination in problem.combinations():
                plan = _even(problem, combination, num_stages, memory_mb)
                if _fits(problem, plan):
                    yield plan


_NUMBERS = [num for i in range(1, 12) for num in (2**i, 3 * 2 ** (i - 1))]


def _even(problem: Problem, one: Combination, num_stages: int, memory_mb: int) -> Plan:
    layers = problem.setting.profile.num_layers
    cuts = [k * layers // num_stages for k in range(num_stages + 1)]
    stages = tuple(
        StagePlan(
            first_layer=first, stop_layer=stop, replicas=one.degrees[0], memory_mb=memory_mb,
            recompute=problem.space.recompute != "never",
        )
        for first, stop in pairwise(cuts)
    )  # fmt: skip
    return Plan(
        stages=stages, micro_batch_size=one.micro_batch_size, schedule=one.schedule,
        in_flight=one.depth * num_stages if one.schedule == "1f1b" else None, sync=one.sync,
    )  # fmt: skip


def _fits(problem: Problem, plan: Plan) -> bool:
    """Without a look at its time, which may take long."""
    setting, last = problem.setting, len(plan.stages) - 1
    size = min(plan.micro_batch_size, setting.batch_size)
    for number, stage in enumerate(plan.stages):
        held = held_micro_batches(
            schedule=plan.schedule, stage=number, num_stages=len(plan.stages),
            degree=stage.replicas, num_micro_batches=setting.num_micro_batches(size),
            in_flight=plan.in_flight,
        )  # fmt: skip
        use = memory_use(
            setting.profile, stage, num_samples=size, held=held, is_last=number == last
        )
        if use.total > (stage.memory_mb or 0) * MB:
            return False
    return True


def short_path(
    problem: Problem, goal: Goal, table: Table, check: Callable[[], None]
) -> Iterator[Plan]:
    """A good gpipe plan of a combination, or none."""
    limits = Limits(
        min_stages=problem.min_stages,
        max_stages=problem.max_stages,
        max_functions=problem.max_functions,
        value=math.inf,
    )
    rows = first_rows(table, goal, limits, check)
    if rows is not None:
        yield table.plan(rows)


def rule_plans(
    problem: Problem, goal: Goal, combinations: Iterable[Combination], check: Callable[[], None]
) -> Iterator[Plan]:
    """The plans among which each rule of `baselines` chooses: nobody's best is missing."""
    rules = [(propose_of(problem), Choice(problem, goal)) for propose_of in RULES.values()]
    for combination in combinations:
        grid = Grid(problem, combination)
        for propose, choice in rules:
            check()
            for rows in propose(grid):
                check()
                choice.add(grid.table, rows)
    for _, choice in rules:
        yield from choice.candidates()
