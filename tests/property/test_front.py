"""The Pareto front is what a look at all plans finds, on random problems of every kind."""

from __future__ import annotations

import math
from functools import cache
from itertools import count, pairwise

import numpy as np
import pytest

from funcpipe.errors import PlanError
from funcpipe.partitioner import front
from funcpipe.partitioner.backend import Deadline, Problem
from funcpipe.partitioner.cost import evaluate
from funcpipe.partitioner.front import Found, _Front, find_front
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.plan import Plan, StagePlan
from funcpipe.partitioner.sweep import Sweep
from funcpipe.partitioner.verify import faults
from tests.property.random_problems import paths, problem_and_goal

NUM_PROBLEMS = 60
CHUNK = 20
CLOSE = 1e-8
ROUNDING = 1e-12
CHEAPEST = Goal(time_weight=0.0, cost_weight=1.0)

Point = tuple[float, float]


@cache
def all_points(seed: int) -> list[Point]:
    """Seconds and dollars of every plan that breaks nothing."""
    problem, goal = problem_and_goal(seed)
    points = []
    for combination in problem.combinations():
        table = problem.table(combination)
        for rows in paths(table):
            plan = table.plan(rows)
            told = evaluate(problem.setting, plan)
            if not faults(problem, goal, plan, told):
                points.append((told.step_s, told.dollars))
    return points


def worth_choosing(points: list[Point]) -> int:
    """How many of them are not as good as another one in both respects."""
    num, least = 0, math.inf
    for _, dollars in sorted(points):
        if dollars < least * (1 - CLOSE):
            num, least = num + 1, dollars
    return num


def points_of(problem: Problem, goal: Goal, found: Found) -> list[Point]:
    """Of the plans on a front, which must be allowed."""
    points = []
    for plan in found.plans:
        told = evaluate(problem.setting, plan)
        assert not faults(problem, goal, plan, told)
        points.append((told.step_s, told.dollars))
    return points


def assert_falls(points: list[Point]) -> None:
    for (fast_s, dear), (slow_s, cheap) in pairwise(points):
        assert fast_s < slow_s
        assert dear > cheap


@pytest.mark.parametrize("first", range(0, NUM_PROBLEMS, CHUNK))
def test_without_spacing_it_is_every_plan_worth_choosing(first: int) -> None:
    for seed in range(first, first + CHUNK):
        problem, goal = problem_and_goal(seed)
        everything = all_points(seed)

        found = find_front(problem, goal, deadline=Deadline(), spacing=1e-9)

        assert found.complete
        points = points_of(problem, goal, found)
        assert_falls(points)
        # No plan is missing ...
        for time_s, dollars in everything:
            assert any(
                t <= time_s * (1 + CLOSE) and d <= dollars * (1 + CLOSE) for t, d in points
            ), f"problem {seed}"
        # ... and none is superfluous.
        for t, d in points:
            assert not any(
                time_s <= t * (1 + ROUNDING) and dollars <= d * (1 - CLOSE)
                for time_s, dollars in everything
            ), f"problem {seed}"
            assert not any(
                time_s <= t * (1 - CLOSE) and dollars <= d * (1 + ROUNDING)
                for time_s, dollars in everything
            ), f"problem {seed}"


@pytest.mark.parametrize("first", range(0, NUM_PROBLEMS, CHUNK))
def test_with_spacing_no_plan_saves_more_than_that(first: int) -> None:
    for seed in range(first, first + CHUNK):
        problem, goal = problem_and_goal(seed)

        found = find_front(problem, goal, deadline=Deadline(), spacing=0.05)

        assert found.complete
        points = points_of(problem, goal, found)
        assert_falls(points)
        for time_s, dollars in all_points(seed):
            assert any(
                t <= time_s * (1 + CLOSE) and d * 0.95 <= dollars * (1 + CLOSE) for t, d in points
            ), f"problem {seed}"


@pytest.mark.parametrize("spacing", [0.05, 0.3])
def test_each_plan_saves_half_the_spacing_and_all_together_miss_no_more_than_all_of_it(
    spacing: float,
) -> None:
    half, pairs = 1 - math.sqrt(1 - spacing), 0
    for seed in range(NUM_PROBLEMS):
        problem, goal = problem_and_goal(seed)

        found = find_front(problem, goal, deadline=Deadline(), spacing=spacing)

        points = points_of(problem, goal, found)
        for (_, dear), (_, cheap) in pairwise(points):
            assert cheap < dear * (1 - half), f"problem {seed}"
            pairs += 1
        for time_s, dollars in all_points(seed):
            assert any(
                t <= time_s * (1 + CLOSE) and d * (1 - spacing) <= dollars * (1 + CLOSE)
                for t, d in points
            ), f"problem {seed}"
    assert pairs > NUM_PROBLEMS / 3


def test_plans_that_save_too_little_of_a_faster_one_are_thinned_out() -> None:
    # Given plans that came in an order in which each saved enough of those that were there
    made = _Front(0.1)
    plans = [
        Plan(stages=(StagePlan(first_layer=0, stop_layer=1),), micro_batch_size=size)
        for size in range(1, 6)
    ]
    for seconds, dollars, plan in zip(range(1, 6), (100, 95, 91, 89, 80.2), plans, strict=True):
        made.offer(float(seconds), float(dollars), float(dollars), lambda plan=plan: plan)

    # Then 89 is the first below 90, and 80.2 is not below 80.1
    assert list(made.thinned()) == [plans[0], plans[3]]


def test_the_fronts_are_of_every_kind() -> None:
    sizes = [worth_choosing(all_points(seed)) for seed in range(NUM_PROBLEMS)]
    bounds = [problem_and_goal(seed)[1] for seed in range(NUM_PROBLEMS)]

    assert sizes.count(0) >= 5
    assert max(sizes) >= 8
    assert sum(size >= 3 for size in sizes) >= 15
    assert sum(goal.max_time_s < math.inf for goal in bounds) >= 8
    assert sum(goal.max_cost < math.inf for goal in bounds) >= 8


@cache
def large() -> int:
    """The problem whose front has the most plans."""
    return max(range(NUM_PROBLEMS), key=lambda seed: worth_choosing(all_points(seed)))


def test_spacing_leaves_plans_out() -> None:
    problem, _ = problem_and_goal(large())

    sizes = [
        len(find_front(problem, CHEAPEST, deadline=Deadline(), spacing=spacing).plans)
        for spacing in (0.0, 0.3)
    ]

    assert sizes[0] > sizes[1] >= 2


def test_times_that_differ_by_rounding_are_equal() -> None:
    made = _Front(0.0)
    plans = {
        name: Plan(stages=(StagePlan(first_layer=0, stop_layer=1),), micro_batch_size=size)
        for size, name in enumerate(("dear", "cheap", "slow"), start=1)
    }
    made.offer(1.0, 5.0, 5.0, lambda: plans["dear"])
    made.offer(2.0, 1.0, 1.0, lambda: plans["slow"])

    faster = made.limit(np.array([0.5, 1 - 1e-14, 1.0, 1 + 1e-14, 2 - 1e-14]))
    made.offer(1 + 1e-14, 4.0, 4.0, lambda: plans["cheap"])

    assert faster.tolist() == [math.inf, 5.0, 5.0, 5.0, 1.0]
    assert made.plans == [plans["cheap"], plans["slow"]]


def test_a_deadline_that_is_over_leaves_it_incomplete() -> None:
    problem, _ = problem_and_goal(large())
    clock = count()

    found = find_front(problem, CHEAPEST, deadline=Deadline(0.5, clock=lambda: next(clock)))

    assert not found.complete
    assert found.plans == ()
    assert "time limit" in found.notes[0]


def test_time_that_ends_in_the_middle_leaves_what_was_found() -> None:
    problem, _ = problem_and_goal(large())
    whole = find_front(problem, CHEAPEST, deadline=Deadline(), spacing=1e-9)
    seen = set()
    for readings in range(1, 400, 3):
        clock = count()
        deadline = Deadline(readings, clock=lambda: next(clock))  # noqa: B023 - read at once

        found = find_front(problem, CHEAPEST, deadline=deadline, spacing=1e-9)

        assert_falls(points_of(problem, CHEAPEST, found))
        if found.complete:
            assert found.plans == whole.plans
            break
        assert len(found.notes) == 1
        seen.add(len(found.plans))
    assert found.complete
    assert len(seen) > 2


def interrupted(monkeypatch: pytest.MonkeyPatch, *, after: int) -> None:
    """Ctrl-C once so many passes are done."""
    run, passes = Sweep.run, count()

    def stopping(self: Sweep, *args: object, **options: object) -> float:
        if next(passes) == after:
            raise KeyboardInterrupt
        return run(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Sweep, "run", stopping)


def test_ctrl_c_leaves_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, _ = problem_and_goal(large())
    interrupted(monkeypatch, after=1)

    found = find_front(problem, CHEAPEST, deadline=Deadline())

    assert not found.complete
    assert found.plans
    assert "Ctrl-C" in found.notes[0]


def test_ctrl_c_before_anything_was_found_is_raised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, _ = problem_and_goal(large())

    def stopping(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(front, "evaluate", stopping)

    with pytest.raises(KeyboardInterrupt):
        find_front(problem, CHEAPEST, deadline=Deadline())


@pytest.mark.parametrize("spacing", [-0.1, 1.0, math.nan, "little"])
def test_a_spacing_that_is_none_is_refused(spacing: float) -> None:
    problem, goal = problem_and_goal(large())

    with pytest.raises(PlanError, match=r"spacing is .*expected a share"):
        find_front(problem, goal, deadline=Deadline(), spacing=spacing)
