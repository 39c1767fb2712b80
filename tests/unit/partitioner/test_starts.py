"""Plans to start from: one is there at once, however little time there is."""

from __future__ import annotations

import math
from itertools import count
from typing import Any

import pytest

from funcpipe.partitioner.backend import Deadline, Problem, Status
from funcpipe.partitioner.cost import evaluate
from funcpipe.partitioner.front import find_front
from funcpipe.partitioner.incumbent import Best, OutOfTime, checker
from funcpipe.partitioner.search import Search
from funcpipe.partitioner.starts import even_plans, rule_plans, short_path
from funcpipe.partitioner.verify import faults
from tests.unit.partitioner.small_problems import CHEAPEST, FASTEST, layer, problem

LAYERS = 120
SCHEDULES = [("gpipe",), ("1f1b",), ("gpipe", "1f1b")]


def long_chain(**space: Any) -> Problem:
    """Of which a look at all bounds takes many checks."""
    layers = [layer(f"layer{n}", seconds=0.01 + n % 7 / 100, output=1) for n in range(LAYERS)]
    return problem(*layers, **{"micro_batch_sizes": (1, 2, 4), **space})


def ticking(readings: int) -> Deadline:
    """A clock that moves on whenever it is read."""
    clock = count()
    return Deadline(readings, clock=lambda: next(clock))


@pytest.mark.parametrize("schedules", SCHEDULES)
def test_a_plan_is_there_before_any_bound(schedules: tuple[str, ...]) -> None:
    given = long_chain(schedules=schedules)

    nothing = Search().solve(given, FASTEST, deadline=ticking(1))
    found = Search().solve(given, FASTEST, deadline=ticking(3))

    assert (nothing.status, nothing.plan) == (Status.TIMED_OUT, None)
    assert found.status == Status.FEASIBLE
    assert found.plan is not None
    assert len(found.plan.stages) == 1
    assert found.estimate == evaluate(given.setting, found.plan)
    assert not faults(given, FASTEST, found.plan, found.estimate)
    assert found.bound == 0
    assert found.notes == ("the time limit ended the search",)


def test_where_one_stage_is_not_allowed_a_few_checks_are_enough() -> None:
    given = long_chain(min_stages=4, max_stages=6)
    assert {len(plan.stages) for plan in even_plans(given)} == {4, 6}

    found = Search().solve(given, FASTEST, deadline=ticking(4))

    assert found.status == Status.FEASIBLE
    assert found.plan is not None
    assert 4 <= len(found.plan.stages) <= 6
    assert not faults(given, FASTEST, found.plan, evaluate(given.setting, found.plan))


def test_a_front_has_a_plan_at_once() -> None:
    found = find_front(long_chain(), CHEAPEST, deadline=ticking(3))

    assert [len(plan.stages) for plan in found.plans] == [1]
    assert not found.complete


# -- even plans ----------------------------------------------------------------------------------


def test_even_plans_begin_with_the_largest_memory_and_the_smallest_micro_batches() -> None:
    given = problem(
        layer(), layer(), schedules=("gpipe", "1f1b"), depths=(2,), micro_batch_sizes=(1, 8),
        degrees=(1, 2),
    )  # fmt: skip

    every = list(even_plans(given))

    plans = [plan for plan in every if len(plan.stages) == 1]
    assert every[: len(plans)] == plans
    first = plans[0]
    assert (first.stages[0].memory_mb, first.micro_batch_size, first.degrees) == (3538, 1, (1,))
    assert [plan.stages[0].memory_mb for plan in plans] == sorted(
        (plan.stages[0].memory_mb or 0 for plan in plans), reverse=True
    )
    assert len(set(plans)) == len(plans) == 3 * len(given.combinations())
    for plan in plans:
        assert not faults(given, FASTEST, plan, evaluate(given.setting, plan))


@pytest.mark.parametrize(("recompute", "expected"), [("never", False), ("always", True)])
def test_even_plans_recompute_where_they_must(recompute: str, expected: bool) -> None:
    plans = list(even_plans(problem(layer(), recompute=recompute)))

    assert {plan.stages[0].recompute for plan in plans} == {expected}


# -- others --------------------------------------------------------------------------------------


def test_even_plans_are_cut_in_equal_numbers_of_layers_and_fit() -> None:
    given = long_chain(schedules=("gpipe", "1f1b"), degrees=(1,), micro_batch_sizes=(1,))

    plans = [plan for plan in even_plans(given) if len(plan.stages) > 1]

    assert sorted({len(plan.stages) for plan in plans}) == [
        2,
        3,
        4,
        6,
        8,
        12,
        16,
        24,
        32,
        48,
        64,
        96,
    ]
    for plan in plans:
        sizes = {stage.stop_layer - stage.first_layer for stage in plan.stages}
        assert max(sizes) - min(sizes) <= 1
    heavy = problem(*(layer(f"layer{n}", parameters=1500) for n in range(8)), schedules=("1f1b",))
    assert 1 not in {len(plan.stages) for plan in even_plans(heavy)}
    for plan in even_plans(heavy):
        assert not faults(heavy, FASTEST, plan, evaluate(heavy.setting, plan))


def test_a_short_path_is_a_plan_within_the_numbers_asked_for_or_none() -> None:
    given = long_chain(min_stages=3, max_stages=3, degrees=(2,), micro_batch_sizes=(2,))
    (combination,) = given.combinations()
    (plan,) = short_path(given, FASTEST, given.table(combination), lambda: None)
    assert not faults(given, FASTEST, plan, evaluate(given.setting, plan))

    impossible = problem(layer(parameters=9000))
    for one in impossible.combinations():
        assert list(short_path(impossible, FASTEST, impossible.table(one), lambda: None)) == []


def test_rules_propose_plans_of_the_combinations_asked_for_alone() -> None:
    given = problem(*(layer(seconds=0.1 * n + 0.1) for n in range(4)), schedules=("gpipe", "1f1b"))
    wanted = [one for one in given.combinations() if one.schedule == "1f1b" and one.depth == 2]

    plans = list(rule_plans(given, FASTEST, wanted, lambda: None))

    assert len(plans) > 10
    for plan in plans:
        assert plan.schedule == "1f1b"
        assert plan.in_flight == 2 * len(plan.stages)
    assert list(rule_plans(given, FASTEST, [], lambda: None)) == []


def test_rules_end_when_the_time_does() -> None:
    given = problem(*(layer() for _ in range(4)))

    with pytest.raises(OutOfTime):
        list(rule_plans(given, FASTEST, given.combinations(), checker(ticking(3))))


# -- the best so far -------------------------------------------------------------------------------


def test_only_a_plan_that_is_allowed_and_better_is_the_best() -> None:
    given = problem(layer(), layer(), degrees=(1,), micro_batch_sizes=(1,), max_stages=1)
    small, middle, large = reversed(list(even_plans(given)))
    strange = next(even_plans(problem(layer(), layer(), degrees=(2,))))
    best = Best()

    taken = [best.consider(given, FASTEST, plan) for plan in (small, large, middle, large, strange)]

    assert taken == [True, True, False, False, False]
    assert best.plan == large
    assert best.value == evaluate(given.setting, large).step_s < math.inf
