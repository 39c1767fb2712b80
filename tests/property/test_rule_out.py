"""What the search says that 1f1b takes at least is so, and what rules propose is not forgotten."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from funcpipe.partitioner import search, search_1f1b
from funcpipe.partitioner.backend import Deadline, Problem
from funcpipe.partitioner.baselines import compare
from funcpipe.partitioner.baselines_cuts import RULES
from funcpipe.partitioner.cost import evaluate
from funcpipe.partitioner.incumbent import Best, Lowest
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.plan import Plan
from funcpipe.partitioner.search import Search
from funcpipe.partitioner.search_1f1b import rule_out
from funcpipe.partitioner.space import Combination
from funcpipe.partitioner.starts import rule_plans
from funcpipe.partitioner.sweep import Sweep
from funcpipe.partitioner.verify import faults
from tests.property.random_problems import paths, problem_and_goal
from tests.property.test_bounds import labels_of
from tests.unit.partitioner.small_problems import made_up_problem

NUM_PROBLEMS = 25
CLOSE = 1 + 1e-9
GOALS = {
    "min-time": Goal(time_weight=1.0, cost_weight=0.0),
    "min-cost": Goal(time_weight=0.0, cost_weight=1.0),
}


def no_check() -> None:
    """Time never ends."""


def with_schedules(seed: int, *schedules: str) -> tuple[Problem, Goal]:
    problem, goal = problem_and_goal(seed)
    space = replace(problem.space, schedules=schedules, depths=(1, 2))
    return Problem(setting=problem.setting, space=space), goal


@cache
def problem_of(seed: int) -> tuple[Problem, Goal]:
    return with_schedules(seed, "1f1b")


@cache
def plans_of(seed: int, combination: Combination) -> list[tuple[list[int], Plan, float, float]]:
    """Rows, plan, simulated seconds and dollars of all plans that break nothing but the goal's
    bounds.
    """
    problem, _ = problem_of(seed)
    table, found = problem.table(combination), []
    for rows in paths(table):
        plan = table.plan(rows)
        told = evaluate(problem.setting, plan)
        if not faults(problem, GOALS["min-time"], plan, told):
            found.append((rows, plan, told.step_s, told.dollars))
    return found


def least_of(seed: int, combination: Combination, goal: Goal) -> float:
    """The least simulated value of a combination."""
    return min(
        (
            goal.value(time_s, dollars)
            for _, _, time_s, dollars in plans_of(seed, combination)
            if goal.allows(time_s, dollars)
        ),
        default=math.inf,
    )


def goals_of(goal: Goal) -> Iterator[Goal]:
    yield from (goal, *GOALS.values())


@pytest.mark.parametrize("name", GOALS)
def test_the_lowest_bound_is_that_of_the_plan_with_the_least(name: str) -> None:
    goal, seen = GOALS[name], 0
    for seed in range(NUM_PROBLEMS):
        problem, _ = problem_of(seed)
        for combination in problem.combinations():
            sweep = Sweep(problem, combination, goal)
            sweep.narrow(Best())
            if sweep.proven:
                assert not plans_of(seed, combination), f"problem {seed}"
                continue
            lowest, pipeline, table = Lowest(Best()), sweep.pipeline, problem.table(combination)

            left = sweep.run(lowest, width=None, check=no_check)

            bounds = []
            for rows, _, simulated_s, simulated_dollars in plans_of(seed, combination):
                time_s = float(pipeline.total_s(labels_of(pipeline, rows)[-1].state)[0])
                dollars = time_s * table.per_s[rows].sum() + table.per_step[rows].sum()
                bounds.append(goal.value(time_s, dollars))
                assert bounds[-1] <= goal.value(simulated_s, simulated_dollars) * CLOSE
            assert left == math.inf
            assert lowest.value == pytest.approx(min(bounds, default=math.inf), rel=1e-8)
            assert (lowest.plan in [plan for _, plan, _, _ in plans_of(seed, combination)]) == bool(
                bounds
            )
            seen += bool(bounds)
    assert seen > NUM_PROBLEMS


@pytest.mark.parametrize("depth", [1, 2])
def test_in_longer_chains_the_plan_with_the_lowest_bound_is_never_dropped(depth: int) -> None:
    # Given stages that differ in nothing but their layers, so that labels of many lengths compare
    goal = GOALS["min-time"]
    for seed in range(60):
        problem = made_up_problem(
            random.Random(seed), layers=7, batch=24, micro_batch_sizes=(1,), degrees=(1,),
            tiers_mb=(3538,), schedules=("1f1b",), depths=(depth,),
        )  # fmt: skip
        (combination,) = problem.combinations()
        sweep, lowest = Sweep(problem, combination, goal), Lowest(Best())
        sweep.narrow(Best())

        sweep.run(lowest, width=None, check=no_check)

        table, pipeline = problem.table(combination), sweep.pipeline
        fitting = [
            rows
            for rows in paths(table)
            if all(table.fits(place)[row] for place, row in enumerate(reversed(rows), start=1))
        ]
        bounds = [
            float(pipeline.total_s(labels_of(pipeline, rows)[-1].state)[0]) for rows in fitting
        ]
        assert lowest.value == pytest.approx(min(bounds), rel=1e-8), f"problem {seed}"


@pytest.mark.parametrize("width", [1, 8, None])
def test_no_bound_is_above_the_least_simulated_value(width: int | None) -> None:
    shares = []
    for seed in range(NUM_PROBLEMS):
        problem, own = problem_of(seed)
        for goal in goals_of(own):
            for combination in problem.combinations():
                least = least_of(seed, combination, goal)
                sweep, best = Sweep(problem, combination, goal), Best()

                rule_out([sweep], problem, goal, best, no_check, width=width)

                # Unless the best plan is known, and nothing else can be better
                assert least <= best.value * CLOSE, f"problem {seed}"
                assert sweep.bound <= least * CLOSE or best.value <= least * CLOSE
                assert not sweep.proven or best.value <= least * CLOSE, f"problem {seed}"
                if 0 < least < math.inf:
                    shares.append(min(sweep.bound / least, 1.0))
                if best.plan is not None:
                    told = evaluate(problem.setting, best.plan)
                    assert not faults(problem, goal, best.plan, told)
                    assert best.value == goal.value(told.step_s, told.dollars)
    assert np.median(shares) > 0.95  # bounds are of use


def test_with_a_plan_to_beat_no_better_one_is_ruled_out() -> None:
    done = 0
    for seed in range(NUM_PROBLEMS):
        problem, own = problem_of(seed)
        for goal in goals_of(own):
            for combination in problem.combinations():
                least = least_of(seed, combination, goal)
                if not 0 < least < math.inf:
                    continue
                above, below = (Sweep(problem, combination, goal) for _ in range(2))
                worse, better = Best(value=least * (1 + 1e-6)), Best(value=least * 0.5)

                rule_out([above], problem, goal, worse, no_check, width=None)
                rule_out([below], problem, goal, better, no_check, width=None)

                assert not above.is_done(worse) or worse.value <= least * CLOSE, f"problem {seed}"
                assert better.plan is None
                done += below.is_done(better)
    assert done > NUM_PROBLEMS


# -- what rules propose --------------------------------------------------------------------------


def all_goals(seed: int) -> Iterator[tuple[Problem, Goal]]:
    problem, goal = with_schedules(seed, "gpipe", "1f1b")
    for one in goals_of(goal):
        yield problem, one


def assert_never_worse(better: Callable[[Problem, Goal], float], least_found: int) -> None:
    found = 0
    for seed in range(NUM_PROBLEMS):
        for problem, goal in all_goals(seed):
            value = better(problem, goal)
            for one in compare(problem, goal, only=RULES):
                assert value <= one.value * CLOSE, f"problem {seed}: {one.name}"
                found += one.found
    assert found >= least_found


def test_no_rule_is_better_than_the_search() -> None:
    def searched(problem: Problem, goal: Goal) -> float:
        return Search().solve(problem, goal, deadline=Deadline()).value

    assert_never_worse(searched, 4 * NUM_PROBLEMS)


def test_nor_where_the_search_finds_little_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_1f1b, "climb", lambda *_, **__: None)
    monkeypatch.setattr(search_1f1b, "WIDTHS", ())
    monkeypatch.setattr(search_1f1b, "MOST_SIMULATED", 0)
    monkeypatch.setattr(search, "FIRST_WIDTH", 1)

    def searched(problem: Problem, goal: Goal) -> float:
        return Search().solve(problem, goal, deadline=Deadline()).value

    assert_never_worse(searched, 4 * NUM_PROBLEMS)


def test_the_plans_of_all_rules_are_among_those_to_start_from() -> None:
    def best_start(problem: Problem, goal: Goal) -> float:
        best = Best()
        for plan in rule_plans(problem, goal, problem.combinations(), no_check):
            best.consider(problem, goal, plan)
        return best.value

    assert_never_worse(best_start, 4 * NUM_PROBLEMS)
