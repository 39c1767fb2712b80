"""All solvers agree with the oracle that tries everything, on random problems of every kind."""

from __future__ import annotations

import importlib.util
import math
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from funcpipe.partitioner import mip
from funcpipe.partitioner.backend import Deadline, Outcome, Problem, Status
from funcpipe.partitioner.cost import evaluate
from funcpipe.partitioner.exhaustive import Exhaustive
from funcpipe.partitioner.solvers import backend
from funcpipe.partitioner.verify import faults
from tests.property.random_problems import problem_and_goal

NUM_PROBLEMS = 240
CHUNK = 40
TOLERANCE = 1e-6
SOLVERS = ("search", "cbc", "highs", "gurobi")
PROGRAMS = ("cbc", "highs", "gurobi")


@cache
def oracle(seed: int) -> Outcome:
    problem, goal = problem_and_goal(seed)
    return Exhaustive().solve(problem, goal, deadline=Deadline())


def assert_same_optimum(solver: str, first: int) -> None:
    if solver == "gurobi" and importlib.util.find_spec("gurobipy") is None:
        pytest.skip("gurobipy is not installed")
    for seed in range(first, first + CHUNK):
        problem, goal = problem_and_goal(seed)
        best = oracle(seed)

        found = backend(solver).solve(problem, goal, deadline=Deadline())

        assert found.status == best.status, f"problem {seed}"
        if best.plan is None:
            continue
        assert math.isclose(found.value, best.value, rel_tol=TOLERANCE), f"problem {seed}"
        assert found.bound <= best.value * (1 + 1e-9), f"problem {seed}"
        assert found.plan is not None
        assert found.estimate == evaluate(problem.setting, found.plan)
        assert not faults(problem, goal, found.plan, found.estimate), f"problem {seed}"


@pytest.mark.parametrize("first", range(0, NUM_PROBLEMS, CHUNK))
@pytest.mark.parametrize("solver", SOLVERS)
def test_same_optimum(solver: str, first: int) -> None:
    assert_same_optimum(solver, first)


@pytest.mark.parametrize("first", range(0, NUM_PROBLEMS, CHUNK))
@pytest.mark.parametrize("solver", PROGRAMS)
def test_same_optimum_without_a_first_plan(
    solver: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first plan is so often the best one that a wrong program would go unnoticed.
    monkeypatch.setattr(mip, "first_rows", lambda *_: None)
    monkeypatch.setattr(mip, "rule_plans", lambda *_: ())

    assert_same_optimum(solver, first)


@pytest.mark.parametrize("schedules", [("1f1b",), ("gpipe", "1f1b")])
def test_1f1b_is_bounded_by_the_oracle(schedules: tuple[str, ...]) -> None:
    # Nothing but a simulation knows the time of 1f1b: `search` proves what it can.
    proven = 0
    for seed in range(CHUNK):
        given, goal = problem_and_goal(seed)
        space = replace(given.space, schedules=schedules, depths=(1, 2))
        problem = Problem(setting=given.setting, space=space)
        best = Exhaustive().solve(problem, goal, deadline=Deadline())

        found = backend("search").solve(problem, goal, deadline=Deadline())

        assert (found.status == Status.INFEASIBLE) == (best.plan is None), f"problem {seed}"
        assert found.bound <= best.value * (1 + TOLERANCE), f"problem {seed}"
        if best.plan is not None:
            # On problems this small all plans that could win are simulated.
            assert math.isclose(found.value, best.value, rel_tol=TOLERANCE), f"problem {seed}"
        if found.status == Status.OPTIMAL:
            proven += found.plan is not None and found.plan.schedule == "1f1b"
    assert proven > 0


def test_the_problems_are_of_every_kind() -> None:
    kinds: Counter[str] = Counter()
    dollars = []
    for seed in range(NUM_PROBLEMS):
        problem, goal = problem_and_goal(seed)
        best, space, setting = oracle(seed), problem.space, problem.setting
        kinds[f"{best.status}"] += 1
        kinds[f"recompute {space.recompute}"] += 1
        kinds[f"per stage {space.per_stage and len(space.degrees) > 1}"] += 1
        kinds[f"latency on lane {setting.latency_on_lane}"] += 1
        kinds[f"weights {goal.time_weight > 0} {goal.cost_weight > 0}"] += 1
        kinds[f"bounds {goal.max_time_s < math.inf} {goal.max_cost < math.inf}"] += 1
        kinds[f"several combinations {len(problem.combinations()) > 1}"] += 1
        kinds[f"functions bounded {space.max_functions is not None}"] += 1
        if best.plan is not None and best.estimate is not None:
            dollars.append(best.estimate.dollars)
            kinds[f"several stages {len(best.plan.stages) > 1}"] += 1
            kinds[f"several degrees {len(set(best.plan.degrees)) > 1}"] += 1
            kinds[f"replicated {max(best.plan.degrees) > 1}"] += 1

    assert {Status.OPTIMAL.value, Status.INFEASIBLE.value} <= set(kinds)
    assert min(dollars) < 1e-7
    assert max(dollars) > 1e3
    assert len(kinds) == 26, kinds
    assert min(kinds.values()) >= 8, kinds
