"""From a plan to better ones nearby."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from funcpipe.errors import PlanError
from funcpipe.partitioner import climb as climb_module
from funcpipe.partitioner.backend import Deadline, Problem
from funcpipe.partitioner.climb import climb, neighbours
from funcpipe.partitioner.cost import evaluate
from funcpipe.partitioner.exhaustive import Exhaustive
from funcpipe.partitioner.incumbent import Best
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.plan import Plan, StagePlan
from funcpipe.partitioner.verify import faults
from tests.unit.partitioner.small_problems import CHEAPEST, FASTEST, all_plans, made_up_problem

BOTH = Goal(time_weight=0.05, cost_weight=50.0)
CLOSE = 1 + 1e-9
SEEDS = range(8)


def no_check() -> None:
    """Time never ends."""


def a_problem(seed: int, **space: object) -> Problem:
    given = {"schedules": ("1f1b",), "micro_batch_sizes": (1, 2), "depths": (1, 2), **space}
    return made_up_problem(random.Random(seed), **given)


def worst(problem: Problem, goal: Goal) -> Plan:
    """Of the plans that are allowed."""
    judged = [(plan, evaluate(problem.setting, plan)) for plan in all_plans(problem)]
    good = [(p, told) for p, told in judged if not faults(problem, goal, p, told)]
    return max(good, key=lambda pair: goal.value(pair[1].step_s, pair[1].dollars))[0]


def climbed(problem: Problem, goal: Goal, start: Plan, **how: int) -> Best:
    best = Best()
    assert best.consider(problem, goal, start)
    climb(problem, goal, best, no_check, **how)
    return best


# -- neighbours --------------------------------------------------------------------------------


@pytest.mark.parametrize("per_stage", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_neighbours_are_plans_of_all_layers_that_differ_in_one_thing(
    seed: int, per_stage: bool
) -> None:
    problem = a_problem(
        seed, schedules=("gpipe", "1f1b"), per_stage=per_stage, sync=("pipelined", "three-phase")
    )
    tiers, chance = problem.space.tiers(problem.setting), random.Random(seed)
    for plan in chance.sample(list(all_plans(problem)), 20):
        for other in neighbours(problem, plan):
            assert other.num_layers == plan.num_layers == 4
            assert [s.first_layer for s in other.stages[1:]] == [
                s.stop_layer for s in other.stages[:-1]
            ]
            assert abs(len(other.stages) - len(plan.stages)) <= 1
            assert {stage.memory_mb for stage in other.stages} <= set(tiers)
            assert set(other.degrees) <= set(problem.space.degrees)
            assert per_stage or len(set(other.degrees)) == 1
            assert other.micro_batch_size in (1, 2)
            if other.schedule == "1f1b":
                assert other.in_flight in [d * len(other.stages) for d in (1, 2)]
            told = evaluate(problem.setting, other)
            assert math.isfinite(told.step_s)
            wrong = faults(problem, BOTH, other, told)
            # Then what may be wrong is that it does not fit
            assert all("MB and has" in fault for fault in wrong), wrong


def test_every_kind_of_change_is_proposed() -> None:
    problem = a_problem(0, schedules=("gpipe", "1f1b"), sync=("pipelined", "three-phase"))
    stages = tuple(
        StagePlan(first_layer=a, stop_layer=b, replicas=1, memory_mb=1769, recompute=False)
        for a, b in ((0, 2), (2, 4))
    )
    plan = Plan(stages=stages, micro_batch_size=1)

    kinds: Counter[str] = Counter()
    for other in neighbours(problem, plan):
        kinds["joined"] += len(other.stages) == 1
        kinds["divided"] += len(other.stages) == 3
        kinds["moved"] += len(other.stages) == 2 and other.stages[0].stop_layer != 2
        kinds["memory"] += len({one.memory_mb for one in other.stages} | {1769}) > 1
        kinds["degree"] += set(other.degrees) == {2}
        kinds["size"] += other.micro_batch_size == 2
        kinds["sync"] += other.sync == "three-phase"
        kinds["1f1b"] += (other.schedule, other.in_flight) in (("1f1b", 2), ("1f1b", 4))
    assert kinds == {
        "joined": 1, "divided": 2, "moved": 2, "memory": 6, "degree": 1, "size": 1, "sync": 1,
        "1f1b": 2,
    }  # fmt: skip


def test_no_more_stages_than_allowed_are_proposed() -> None:
    problem = a_problem(0, max_stages=2)

    for plan in all_plans(problem):
        if len(plan.stages) == 2:
            assert max(len(one.stages) for one in neighbours(problem, plan)) == 2


def test_a_stage_without_a_memory_size_is_refused() -> None:
    plan = Plan(stages=(StagePlan(first_layer=0, stop_layer=4),), micro_batch_size=1)

    with pytest.raises(PlanError, match="without a memory size"):
        list(neighbours(a_problem(0), plan))


# -- climbing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("goal", [FASTEST, CHEAPEST, BOTH], ids=["fastest", "cheapest", "both"])
@pytest.mark.parametrize("per_stage", [False, True])
def test_it_never_ends_worse_and_where_no_neighbour_is_better(goal: Goal, per_stage: bool) -> None:
    for seed in SEEDS:
        problem = a_problem(seed, layers=3, per_stage=per_stage, tiers_mb=(1024, 1769))
        for start in random.Random(seed).sample(list(all_plans(problem)), 5):
            told = evaluate(problem.setting, start)
            if faults(problem, goal, start, told):
                continue

            best = climbed(problem, goal, start)

            assert best.plan is not None
            found = evaluate(problem.setting, best.plan)
            assert best.value == goal.value(found.step_s, found.dollars)
            assert best.value <= goal.value(told.step_s, told.dollars)
            assert not faults(problem, goal, best.plan, found)
            assert not any(Best(best.value).consider(problem, goal, one)
                           for one in neighbours(problem, best.plan))  # fmt: skip


def test_it_finds_the_best_plan_from_the_worst() -> None:
    reached = 0
    for seed in SEEDS:
        problem = a_problem(seed, tiers_mb=(1024, 1769))
        start = worst(problem, FASTEST)
        optimum = Exhaustive().solve(problem, FASTEST, deadline=Deadline())
        began = evaluate(problem.setting, start).step_s
        assert began > optimum.value * 1.5

        best = climbed(problem, FASTEST, start)

        assert optimum.value <= best.value * CLOSE
        reached += math.isclose(best.value, optimum.value, rel_tol=1e-9)
    assert reached >= 6


def test_a_plan_is_tried_once_and_no_more_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = a_problem(1)
    start, tried = worst(problem, FASTEST), []

    class Counting(Best):
        def consider(self, problem: Problem, goal: Goal, plan: Plan) -> bool:
            tried.append(plan)
            return super().consider(problem, goal, plan)

    def trial(most: int) -> Best:
        tried.clear()
        best = Counting(value=evaluate(problem.setting, start).step_s, plan=start)
        climb(problem, FASTEST, best, no_check, most=most)
        return best

    whole = trial(climb_module.MOST_TRIED)
    needed = len(tried)
    assert len(set(tried)) == needed > 20
    few = trial(5)

    assert len(tried) == 5
    assert whole.value < few.value


def test_without_a_plan_there_is_nothing_to_change() -> None:
    best = Best()

    climb(a_problem(0), FASTEST, best, no_check)

    assert best.plan is None


def test_what_ends_the_time_ends_it_and_keeps_the_best_so_far() -> None:
    problem = a_problem(1)
    start, left = worst(problem, FASTEST), iter(range(12))
    best = Best()
    best.consider(problem, FASTEST, start)
    began = best.value

    def check() -> None:
        if next(left, None) is None:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        climb(problem, FASTEST, best, check)

    assert best.value < began


def test_1f1b_is_not_proposed_with_too_many_micro_batches() -> None:
    given = made_up_problem(
        random.Random(0), batch=32768, schedules=("gpipe", "1f1b"), micro_batch_sizes=(2, 8)
    )
    known = {(one.micro_batch_size, one.schedule) for one in given.combinations()}
    assert (2, "1f1b") not in known
    stage = StagePlan(first_layer=0, stop_layer=4, replicas=1, memory_mb=3538)
    for plan in (
        Plan(stages=(stage,), micro_batch_size=8, schedule="1f1b", in_flight=1),
        Plan(stages=(stage,), micro_batch_size=2),
    ):
        for other in neighbours(given, plan):
            assert (other.micro_batch_size, other.schedule) in known
