"""The search itself: odd problems, time limits, Ctrl-C, plans to start from."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from funcpipe.partitioner import incumbent, search, search_1f1b
from funcpipe.partitioner.backend import Deadline, Outcome, Problem, Status
from funcpipe.partitioner.cost import evaluate
from funcpipe.partitioner.exhaustive import Exhaustive
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.plan import Plan, StagePlan
from funcpipe.partitioner.search import Search
from funcpipe.partitioner.sweep import Sweep
from funcpipe.partitioner.verify import faults
from tests.unit.partitioner.small_problems import CHEAPEST, FASTEST, brute_force, layer, problem
from tests.unit.partitioner.solver_problems import hard_problem, over

BOTH = Goal(time_weight=0.05, cost_weight=50.0)
GOALS = {"fastest": FASTEST, "cheapest": CHEAPEST, "both": BOTH}
FREE = {"price.gb_s": "0", "price.put": "0", "price.get": "0", "price.missed_get": "0"}
CLOSE = 1 + 1e-9


def layers(num: int = 3, **fields: Any) -> list[Any]:
    """Of growing size, unless `fields` says otherwise."""
    return [
        layer(f"layer{n}", **{"seconds": 0.1 + 0.1 * n, "parameters": 5, "output": 2 + n, **fields})
        for n in range(num)
    ]


ODD: dict[str, Callable[[], Problem]] = {
    "one layer": lambda: problem(layer()),
    "no time": lambda: problem(*layers(seconds=0, backward=0)),
    "no time at all": lambda: problem(
        *layers(seconds=0, backward=0, output=0),
        changes={"network.latency_s": "0"}, degrees=(1,), min_stages=2,
    ),
    "no bytes": lambda: problem(*layers(parameters=0, output=0)),
    "equal layers": lambda: problem(*layers(4, seconds=0.2, output=1), micro_batch_sizes=(2,)),
    "an optimiser alone": lambda: problem(*layers(seconds=0, backward=0, step_s=(3.0,))),
    "tiny prices": lambda: problem(*layers(), changes={"price.gb_s": "1e-12", "price.put": "0"}),
    "huge prices": lambda: problem(*layers(), changes={"price.gb_s": "9e3", "price.put": "100"}),
    "free": lambda: problem(*layers(), changes=FREE),
    "tiers that do not differ in time": lambda: problem(*layers(), tiers_mb=(1769, 3538)),
    "three stages": lambda: problem(*layers(4), micro_batch_sizes=(4,), min_stages=3, max_stages=3),
    "one stage": lambda: problem(*layers(), max_stages=1),
    "two functions": lambda: problem(*layers(), max_functions=2),
    "functions that each stage shares": lambda: problem(
        *layers(), per_stage=True, max_functions=4, min_stages=3, micro_batch_sizes=(2,)
    ),
    "memory that counts": lambda: problem(*layers(parameters=300, optimizer_factor=1)),
    "memory that is short": lambda: problem(*layers(parameters=1100, optimizer_factor=1)),
    "memory that no layer has": lambda: problem(*layers(parameters=9000)),
    "degrees above the micro-batches": lambda: problem(*layers(), degrees=(16,)),
    "more functions than allowed": lambda: problem(*layers(), min_stages=3, max_functions=2),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("goal", GOALS)
def test_odd_problems_have_the_best_of_all_plans(name: str, goal: str) -> None:
    given, wanted = ODD[name](), GOALS[goal]
    best = brute_force(given, wanted)

    found = Search().solve(given, wanted, deadline=Deadline())
    again = Search().solve(ODD[name](), wanted, deadline=Deadline())

    assert found.status == best.status
    assert found.value == pytest.approx(best.value, rel=1e-9)
    assert found.bound == found.value
    assert found.notes == ()
    assert again.plan == found.plan
    if found.plan is not None:
        assert found.estimate == evaluate(given.setting, found.plan)
        assert not faults(given, wanted, found.plan, found.estimate)


def test_odd_problems_are_odd() -> None:
    statuses = {name: brute_force(make(), FASTEST) for name, make in ODD.items()}

    none = [name for name, best in statuses.items() if best.status == Status.INFEASIBLE]
    assert none == [
        "memory that no layer has",
        "degrees above the micro-batches",
        "more functions than allowed",
    ]
    assert statuses["no time at all"].value == 0
    assert brute_force(ODD["free"](), CHEAPEST).value == 0
    assert brute_force(ODD["tiny prices"](), CHEAPEST).value < 1e-7
    assert brute_force(ODD["huge prices"](), CHEAPEST).value > 1e3
    short = statuses["memory that is short"].plan
    assert short is not None
    assert len(short.stages) > 1


@pytest.mark.parametrize("share", [1.0, 1.3])
def test_bounds_are_kept(share: float) -> None:
    given = problem(*layers())
    fastest, cheapest = brute_force(given, FASTEST), brute_force(given, CHEAPEST)
    assert fastest.estimate is not None
    dear = fastest.estimate.dollars
    assert dear > cheapest.value * 1.3
    in_time = Goal(time_weight=0.0, cost_weight=1.0, max_time_s=fastest.value * share)
    for_little = Goal(time_weight=1.0, cost_weight=0.0, max_cost=cheapest.value * share)

    for goal in (in_time, for_little):
        found = Search().solve(given, goal, deadline=Deadline())

        assert found.status == Status.OPTIMAL
        assert found.value == pytest.approx(brute_force(given, goal).value, rel=1e-9)


@pytest.mark.parametrize("bound", ["max_time_s", "max_cost"])
def test_a_bound_below_the_least_is_infeasible(bound: str) -> None:
    given = problem(*layers())
    best = brute_force(given, FASTEST if bound == "max_time_s" else CHEAPEST)

    for goal in GOALS.values():
        found = Search().solve(
            given, replace(goal, **{bound: best.value * 0.999}), deadline=Deadline()
        )

        assert (found.status, found.plan, found.bound) == (Status.INFEASIBLE, None, math.inf)


# -- plans to start from -----------------------------------------------------------------------


def some_plan(**changes: Any) -> Plan:
    """One function for all layers: allowed, and neither the fastest nor the cheapest."""
    stage = StagePlan(first_layer=0, stop_layer=3, replicas=1, memory_mb=3538, recompute=False)
    return Plan(**{"stages": (stage,), "micro_batch_size": 1, **changes})


def two_stages(**changes: Any) -> tuple[StagePlan, ...]:
    fields = {"replicas": 1, "memory_mb": 3538, "recompute": False, **changes}
    first = StagePlan(**{"first_layer": 0, "stop_layer": 1, **fields})
    return first, StagePlan(first_layer=1, stop_layer=3, memory_mb=3538, replicas=1)


def test_the_best_plan_to_start_from_is_kept() -> None:
    given = problem(*layers())
    best = Search().solve(given, BOTH, deadline=Deadline())

    found = Search().solve(given, BOTH, deadline=Deadline(), incumbent=best.plan)

    assert found.plan is best.plan
    assert (found.status, found.value, found.bound) == (Status.OPTIMAL, best.value, best.value)


def test_a_worse_plan_to_start_from_is_improved_or_kept_for_lack_of_time() -> None:
    given = problem(*layers())
    best = brute_force(given, BOTH)

    found = Search().solve(given, BOTH, deadline=Deadline(), incumbent=some_plan())
    no_time = Search().solve(given, BOTH, deadline=over(), incumbent=some_plan())

    assert found.status == Status.OPTIMAL
    assert found.value == pytest.approx(best.value, rel=1e-9)
    assert (no_time.status, no_time.plan) == (Status.FEASIBLE, some_plan())
    assert no_time.value > best.value * CLOSE
    assert no_time.bound <= best.value


@pytest.mark.parametrize(
    "changes",
    [
        {"micro_batch_size": 3},
        {"sync": "three-phase"},
        {"stages": two_stages()},
        {"stages": (replace(some_plan().stages[0], memory_mb=1770),)},
        {"stages": (replace(some_plan().stages[0], replicas=4),)},
        {"stages": (replace(some_plan().stages[0], recompute=True),)},
        {"schedule": "1f1b"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_plan_that_is_not_allowed_is_not_started_from(changes: dict[str, Any]) -> None:
    given = problem(*layers(), max_stages=1)
    assert Search().solve(given, BOTH, deadline=over(), incumbent=some_plan()).plan is not None

    found = Search().solve(given, BOTH, deadline=over(), incumbent=some_plan(**changes))

    assert (found.status, found.plan) == (Status.TIMED_OUT, None)


@pytest.mark.parametrize(("in_flight", "allowed"), [(None, False), (2, False), (4, True)])
def test_under_1f1b_as_many_are_in_flight_as_may_be_chosen(
    in_flight: int | None, allowed: bool
) -> None:
    given = problem(*layers(), schedules=("1f1b",), depths=(2,))
    plan = some_plan(stages=two_stages(), schedule="1f1b", in_flight=in_flight)

    wrong = faults(given, FASTEST, plan, evaluate(given.setting, plan))

    assert wrong == [] if allowed else "in flight are not to be chosen from" in wrong[0]


# -- time limits and Ctrl-C --------------------------------------------------------------------


def assert_sound(found: Outcome, best: Outcome) -> None:
    """What is said to be proven is so."""
    assert found.bound <= best.value * CLOSE
    assert found.value >= best.value / CLOSE
    assert found.status != Status.INFEASIBLE
    assert (found.plan is None) == (found.status == Status.TIMED_OUT)
    if found.status == Status.OPTIMAL:
        assert found.value == pytest.approx(best.value, rel=1e-9)
    else:
        assert found.notes


def interrupted_problem(schedules: tuple[str, ...]) -> Problem:
    """Of a single combination for one schedule."""
    several = {} if len(schedules) == 1 else {"micro_batch_sizes": (2, 4), "degrees": (1, 2)}
    chosen = {"micro_batch_sizes": (2,), "degrees": (2,), "tiers_mb": (1024, 1769), "depths": (1,)}
    return problem(*layers(), schedules=schedules, **{**chosen, **several})


def undecided_problem() -> Problem:
    """Under 1f1b bounds leave more than one plan to be simulated."""
    return problem(
        *layers(4), batch=16, schedules=("1f1b",), micro_batch_sizes=(2,), degrees=(2,),
        tiers_mb=(1024, 1769), depths=(2,),
    )  # fmt: skip


@pytest.mark.parametrize("schedules", [("gpipe",), ("1f1b",), ("gpipe", "1f1b")])
@pytest.mark.parametrize("goal", GOALS)
def test_whenever_time_ends_nothing_is_proven_that_is_not_so(
    schedules: tuple[str, ...], goal: str
) -> None:
    given, wanted = interrupted_problem(schedules), GOALS[goal]
    best = Exhaustive().solve(given, wanted, deadline=Deadline())
    seen = []
    for readings in count(1):
        # Given a clock that moves on whenever it is read
        clock = count()
        deadline = Deadline(readings, clock=lambda: next(clock))  # noqa: B023 - read at once

        found = Search().solve(given, wanted, deadline=deadline)

        assert_sound(found, best)
        seen.append(found.status)
        if found.status == Status.OPTIMAL and not found.notes:
            break
        assert readings < 2000
    assert seen[0] == Status.TIMED_OUT
    assert Status.FEASIBLE in seen or goal == "cheapest"  # there the first plan is the best


def stopping(call: Callable[..., Any], *, after: int) -> Callable[..., Any]:
    """Ctrl-C in place of a single call."""
    calls = count()

    def stopped(*args: Any, **options: Any) -> Any:
        if next(calls) == after:
            raise KeyboardInterrupt
        return call(*args, **options)

    return stopped


@pytest.mark.parametrize("after", [1, 2, 3])
def test_ctrl_c_between_passes_keeps_the_best_plan(
    after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = hard_problem(10)
    best = Search().solve(given, BOTH, deadline=Deadline())
    monkeypatch.setattr(search, "FIRST_WIDTH", 1)
    monkeypatch.setattr(search, "WIDTHS", (1, 1, 1, None))
    monkeypatch.setattr(Sweep, "run", stopping(Sweep.run, after=after))

    found = Search().solve(given, BOTH, deadline=Deadline())

    assert found.notes == ("Ctrl-C ended the search",)
    assert found.status == Status.FEASIBLE
    assert_sound(found, best)


@pytest.mark.parametrize("after", [1, 2, 5])
def test_ctrl_c_while_plans_are_simulated_proves_nothing(
    after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = undecided_problem()
    best = Exhaustive().solve(given, BOTH, deadline=Deadline())
    monkeypatch.setattr(incumbent, "evaluate", stopping(evaluate, after=after))

    found = Search().solve(given, BOTH, deadline=Deadline())

    assert found.notes == ("Ctrl-C ended the search",)
    assert found.status == Status.FEASIBLE
    assert_sound(found, best)


def test_ctrl_c_before_any_plan_is_raised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a problem without a plan of one stage, which would be there at once
    given = problem(*layers(), degrees=(2,), min_stages=2, max_stages=2)
    assert Search().solve(given, FASTEST, deadline=Deadline()).plan is not None
    monkeypatch.setattr(incumbent, "evaluate", stopping(evaluate, after=0))

    with pytest.raises(KeyboardInterrupt):
        Search().solve(given, FASTEST, deadline=Deadline())


def test_too_many_plans_of_1f1b_to_simulate_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    given = undecided_problem()
    best = Exhaustive().solve(given, BOTH, deadline=Deadline())
    whole = Search().solve(given, BOTH, deadline=Deadline())
    monkeypatch.setattr(search_1f1b, "MOST_SIMULATED", 1)

    found = Search().solve(given, BOTH, deadline=Deadline())

    assert (whole.status, whole.notes) == (Status.OPTIMAL, ())
    assert_sound(found, best)
    assert found.status == Status.FEASIBLE
    assert "1f1b has no closed form" in found.notes[0]


def test_plans_that_there_is_no_room_to_keep_bound_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = undecided_problem()
    best = Exhaustive().solve(given, BOTH, deadline=Deadline())
    monkeypatch.setattr(incumbent, "TOO_MANY", 1)

    found = Search().solve(given, BOTH, deadline=Deadline())

    assert_sound(found, best)
    assert found.status == Status.FEASIBLE


def test_few_labels_are_enough_for_a_first_plan_and_all_for_a_proof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = hard_problem(10)
    best = Search().solve(given, BOTH, deadline=Deadline())
    monkeypatch.setattr(search, "FIRST_WIDTH", 1)
    monkeypatch.setattr(search, "WIDTHS", (1,))

    beam = Search().solve(given, BOTH, deadline=Deadline())

    assert best.status == Status.OPTIMAL
    assert beam.status == Status.FEASIBLE
    assert 0 < beam.bound < best.value <= beam.value * CLOSE
