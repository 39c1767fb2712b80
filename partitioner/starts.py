"""Plans to start from: one at once, and what simple rules propose."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from funcpipe.partitioner.backend import Problem
from funcpipe.partitioner.baselines_choice import Choice, Grid
from funcpipe.partitioner.baselines_cuts import RULES
from funcpipe.partitioner.firstplan import first_rows
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.plan import Plan, StagePlan
from funcpipe.partitioner.rowbounds import Limits
from funcpipe.partitioner.space import Combination
from funcpipe.partitioner.table import Table

__all__ = ["rule_plans", "short_path", "single_stages"]


def single_stages(problem: Problem) -> Iterator[Plan]:
    """The largest memory first, then the smallest micro-batches."""
    space, setting = problem.space, problem.setting
    if problem.min_stages > 1:
        return
    for memory_mb in reversed(space.tiers(setting)):
        for one in problem.combinations():
            stage = StagePlan(
                first_layer=0, stop_layer=setting.profile.num_layers, replicas=one.degrees[0],
                memory_mb=memory_mb, recompute=space.recompute != "never",
            )  # fmt: skip
            yield Plan(
                stages=(stage,), micro_batch_size=one.micro_batch_size, schedule=one.schedule,
                in_flight=one.depth if one.schedule == "1f1b" else None, sync=one.sync,
            )  # fmt: skip


def short_path(problem: Problem, goal: Goal, table: Table) -> Iterator[Plan]:
    """A good gpipe plan of a combination, or none."""
    limits = Limits(
        min_stages=problem.min_stages,
        max_stages=problem.max_stages,
        max_functions=problem.max_functions,
        value=math.inf,
    )
    rows = first_rows(table, goal, limits)
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
