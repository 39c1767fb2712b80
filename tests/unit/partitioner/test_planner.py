"""From a setting and an objective to plans: ties, units, bounds, what a plan's file says."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from funcpipe.errors import Infeasible, PlanError, PlatformError, SolverError
from funcpipe.partitioner import planner
from funcpipe.partitioner.backend import Deadline, Outcome, Problem, Status
from funcpipe.partitioner.cost import evaluate
from funcpipe.partitioner.objective import Goal, Objective
from funcpipe.partitioner.plan import Plan
from funcpipe.partitioner.planner import Answer, make_setting, pareto_front, plan_for
from funcpipe.partitioner.profile import ModelProfile
from funcpipe.partitioner.solvers import SOLVERS
from funcpipe.partitioner.sweep import Sweep
from tests.unit.partitioner.small_problems import (
    CHEAPEST,
    FASTEST,
    allowed,
    brute_force,
    layer,
    platform,
    problem,
)

FREE = {"price.gb_s": "0", "price.put": "0", "price.get": "0", "price.missed_get": "0"}
CLOSE = 1 + 1e-9


def given_problem(**options: Any) -> Problem:
    layers = [
        layer(f"layer{n}", seconds=0.1 + 0.1 * n, parameters=5, output=2 + n) for n in range(3)
    ]
    return problem(*layers, **{"micro_batch_sizes": (2, 4), **options})


def answer_of(given: Problem, objective: Objective, **options: Any) -> Answer:
    return plan_for(given.setting, objective=objective, space=given.space, **options)


def objective(text: str, **bounds: float) -> Objective:
    return Objective.parse(text, **bounds)


# -- objectives --------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["min-time", "min-cost", "raw:0.3", "raw:1", "raw:0"])
def test_the_answer_is_the_best_of_all_plans(text: str) -> None:
    given = given_problem()
    wanted = objective(text)

    answer = answer_of(given, wanted)

    assert answer.status == Status.OPTIMAL
    assert answer.value == pytest.approx(brute_force(given, wanted.goal()).value, rel=1e-8)
    assert answer.bound <= answer.value
    assert answer.gap <= 1e-8
    assert (answer.objective, answer.goal) == (wanted, wanted.goal())
    assert answer.estimate == evaluate(given.setting, answer.plan)


@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("bounded", [False, True])
def test_weighted_counts_in_least_times_and_least_costs_within_the_bounds(
    alpha: float, bounded: bool
) -> None:
    given = given_problem()
    fastest, cheapest = brute_force(given, FASTEST), brute_force(given, CHEAPEST)
    assert fastest.estimate is not None
    assert cheapest.estimate is not None
    # Given bounds that neither the fastest nor the cheapest plan keeps
    bounds = {
        "max_time_s": 0.9 * cheapest.estimate.step_s,
        "max_cost": 0.9 * fastest.estimate.dollars,
    }
    bounds = bounds if bounded else {}
    inside = allowed(given, Goal(time_weight=1.0, cost_weight=0.0, **bounds))
    least_s = min(told.step_s for _, told in inside)
    least_cost = min(told.dollars for _, told in inside)
    assert (least_s > fastest.value * CLOSE and least_cost > cheapest.value * CLOSE) == bounded

    answer = answer_of(given, objective(f"weighted:{alpha}", **bounds))

    assert answer.goal.time_weight == pytest.approx((1 - alpha) / least_s, rel=1e-8)
    assert answer.goal.cost_weight == pytest.approx(alpha / least_cost, rel=1e-8)
    assert answer.value == pytest.approx(
        min(answer.goal.value(told.step_s, told.dollars) for _, told in inside), rel=1e-8
    )
    assert answer.value >= 1 / CLOSE
    assert answer.status == Status.OPTIMAL
    assert answer.notes == ()


def test_weights_that_are_not_proven_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    solve, calls = planner.solve, count()

    def unsure(*args: Any, **options: Any) -> Outcome:
        found = solve(*args, **options)
        return replace(found, status=Status.FEASIBLE) if next(calls) == 0 else found

    monkeypatch.setattr(planner, "solve", unsure)

    answer = answer_of(given_problem(), objective("weighted:0.5"))

    assert answer.notes == ("weighted by the least time and dollars found, which are not proven",)


def test_weighted_needs_units() -> None:
    with pytest.raises(PlanError, match="costs 0 dollars at least: weighted needs units above 0"):
        answer_of(given_problem(changes=FREE), objective("weighted:0.5"))


@pytest.mark.parametrize("text", ["min-time", "raw:0"])
def test_of_equally_fast_plans_the_cheapest_is_taken(text: str) -> None:
    # Given requests that cost and take no time: more of them with smaller micro-batches
    layers = [layer(name, seconds=0, backward=0, step_s=(3.0,)) for name in ("first", "last")]
    given = problem(
        *layers, changes={"network.latency_s": "0", "price.put": "0.1"}, degrees=(1, 2),
        min_stages=2, micro_batch_sizes=(1, 2), tiers_mb=(1769, 3538), batch=2,
    )  # fmt: skip
    best = brute_force(given, FASTEST).value
    costs = [told.dollars for _, told in allowed(given) if told.step_s <= best * CLOSE]
    assert max(costs) > 1.5 * min(costs)

    answer = answer_of(given, objective(text))

    assert answer.value == pytest.approx(best, rel=1e-8)
    assert answer.estimate.dollars == pytest.approx(min(costs), rel=1e-9)
    assert answer.status == Status.OPTIMAL


def test_of_equally_cheap_plans_the_fastest_is_taken() -> None:
    given = given_problem(changes=FREE)

    answer = answer_of(given, objective("min-cost"))

    assert answer.value == 0
    assert answer.gap == 0
    assert answer.estimate.step_s == pytest.approx(brute_force(given, FASTEST).value, rel=1e-9)


def spoilt_second(outcome: Callable[[Outcome], Outcome]) -> Callable[..., Outcome]:
    """A solver whose second answer is another."""
    solve, calls = planner.solve, count()

    def spoilt(*args: Any, **options: Any) -> Outcome:
        found = solve(*args, **options)
        return outcome(found) if next(calls) == 1 else found

    return spoilt


def failing(_: Outcome) -> Outcome:
    raise SolverError("no licence")


def without_plan(found: Outcome) -> Outcome:
    return replace(found, plan=None, estimate=None, status=Status.TIMED_OUT)


@pytest.mark.parametrize("outcome", [failing, without_plan])
def test_a_plan_stands_if_ties_cannot_be_settled(
    outcome: Callable[[Outcome], Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = given_problem()
    monkeypatch.setattr(planner, "solve", spoilt_second(outcome))

    answer = answer_of(given, objective("min-time"))

    assert answer.status == Status.OPTIMAL
    assert answer.value == pytest.approx(brute_force(given, FASTEST).value, rel=1e-9)


@pytest.mark.parametrize(("text", "told"), [("min-time", "cheaper"), ("min-cost", "faster")])
def test_ties_that_are_settled_without_a_proof_are_told(
    text: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        planner, "solve", spoilt_second(lambda found: replace(found, status=Status.FEASIBLE))
    )

    answer = answer_of(given_problem(), objective(text))

    assert answer.status == Status.OPTIMAL
    assert answer.notes == (f"of plans that are as good there may be a {told} one",)


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_solver_comes_to_the_same(solver: str) -> None:
    if solver == "gurobi" and importlib.util.find_spec("gurobipy") is None:
        pytest.skip("gurobipy is not installed")
    given = given_problem(micro_batch_sizes=(2,), tiers_mb=(1024, 1769))

    answer = answer_of(given, objective("min-cost"), solver=solver)

    assert answer.status == Status.OPTIMAL
    assert answer.value == pytest.approx(brute_force(given, CHEAPEST).value, rel=1e-6)


def test_an_unknown_solver_is_told() -> None:
    with pytest.raises(PlanError, match=r"unknown solver 'serch'; did you mean search\?"):
        answer_of(given_problem(), objective("min-cost"), solver="serch")


# -- what cannot be, and time limits -----------------------------------------------------------


@pytest.mark.parametrize("text", ["min-time", "weighted:0.5"])
@pytest.mark.parametrize(
    ("bounds", "told"),
    [
        ({"max_time_s": 0.01}, r"a step takes at least .* s; 0\.01 s was asked for"),
        ({"max_cost": 1e-9}, r"a step costs at least .*; \$1e-09 was asked for"),
    ],
)
def test_a_bound_that_cannot_be_kept_is_told_with_the_nearest_that_can(
    text: str, bounds: dict[str, float], told: str
) -> None:
    with pytest.raises(Infeasible, match=told):
        answer_of(given_problem(), objective(text, **bounds))


def test_too_little_memory_is_told() -> None:
    given = problem(layer("huge", parameters=9000))

    with pytest.raises(Infeasible, match="huge"):
        answer_of(given, objective("min-cost"))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Time moves on by a second whenever it is looked at."""
    ticks = count()
    monkeypatch.setattr(
        planner, "Deadline", lambda limit_s: Deadline(limit_s, clock=lambda: next(ticks))
    )
    return ticks


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("text", ["min-time", "min-cost", "weighted:0.5"])
def test_no_plan_in_time_is_no_proof_that_there_is_none(text: str) -> None:
    given = given_problem()

    with pytest.raises(SolverError, match=r"search found no plan in .* s.*allow more time") as told:
        answer_of(given, objective(text), time_limit_s=1.0)
    assert not isinstance(told.value, Infeasible)
    with pytest.raises(SolverError, match="allow more time"):
        pareto_front(given.setting, space=given.space, time_limit_s=1.0)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("text", ["min-time", "weighted:0.5"])
def test_whenever_time_ends_the_answer_is_true(text: str) -> None:
    given = given_problem(micro_batch_sizes=(2,))
    kinds, best = set(), {}
    for limit_s in range(1, 120, 2):
        try:
            answer = answer_of(given, objective(text), time_limit_s=float(limit_s))
        except SolverError:
            kinds.add("none")
            continue
        kinds.add(str(answer.status))
        if answer.goal not in best:
            best[answer.goal] = brute_force(given, answer.goal).value
        assert answer.bound <= best[answer.goal] * CLOSE
        assert answer.value >= best[answer.goal] / CLOSE
        assert 0 <= answer.gap <= 1
        json.dumps(answer.plan.predicted, allow_nan=False)
        if answer.status == Status.OPTIMAL:
            assert answer.value == pytest.approx(best[answer.goal], rel=1e-8)
    assert kinds >= {"none", "optimal"}


@pytest.mark.parametrize("limit_s", [0, -1.0, math.nan, math.inf, "long"])
def test_a_time_limit_that_is_none_is_refused(limit_s: float) -> None:
    with pytest.raises(PlanError, match=r"the time limit is .*; expected seconds above 0"):
        answer_of(given_problem(), objective("min-cost"), time_limit_s=limit_s)


# -- what an answer says -----------------------------------------------------------------------


@pytest.mark.parametrize("schedules", [("gpipe",), ("1f1b",)])
def test_a_plan_tells_what_it_takes(schedules: tuple[str, ...], tmp_path: Path) -> None:
    given = given_problem(schedules=schedules, micro_batch_sizes=(2,))
    wanted = objective("min-time", max_cost=1.0)

    answer = answer_of(given, wanted)

    told = answer.plan.predicted
    assert told is not None
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert told.items() >= answer.estimate.to_dict().items()
    assert told.items() >= {
        "model": "small", "platform": "aws-lambda", "objective": "min-time", "batch_size": 8,
        "solver": "search", "status": "optimal", "max_cost": 1.0,
    }.items()  # fmt: skip
    assert "max_time_s" not in told
    assert told["gap"] == answer.gap
    answer.plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").predicted == told


def notes_of(given: Problem, **options: Any) -> str:
    return " | ".join(answer_of(given, objective("min-cost"), **options).notes)


def test_a_run_longer_than_a_function_lives_is_told() -> None:
    # Given a single plan to choose
    given = given_problem(micro_batch_sizes=(4,), degrees=(1,), tiers_mb=(1769,), max_stages=1)
    step_s = answer_of(given, objective("min-cost")).estimate.step_s
    long, short = (
        Problem(setting=replace(given.setting, num_steps=num), space=given.space)
        for num in (math.ceil(900 / step_s) + 1, math.floor(900 / step_s) - 1)
    )

    assert "lives for 900 s at most" in notes_of(long)
    assert notes_of(short) == notes_of(given) == ""


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"batch": 8}, ""),
        ({"batch": 7}, "the last micro-batch has 3 samples and is counted as one of 4"),
        ({"batch": 3, "micro_batch_sizes": (3,)}, ""),
    ],
)
def test_a_time_that_is_an_upper_bound_is_told_with_the_cause(
    options: dict[str, Any], told: str
) -> None:
    notes = notes_of(given_problem(**{"micro_batch_sizes": (4,), "degrees": (1,), **options}))

    assert notes == (f"the time is an upper bound: {told}" if told else "")


def test_latencies_that_are_counted_in_full_are_told() -> None:
    given = given_problem(changes={"network.latency_s": "5"}, min_stages=3, micro_batch_sizes=(1,))
    given = Problem(setting=replace(given.setting, latency_on_lane=False), space=given.space)

    assert "upper bound: waits for latencies" in notes_of(given)


# -- settings ----------------------------------------------------------------------------------


def profile(**fields: Any) -> ModelProfile:
    return ModelProfile(**{"name": "small", "layers": (layer(),), "batch_size": 16, **fields})


def test_a_setting_takes_the_batch_of_the_profile_or_another() -> None:
    assert make_setting(profile(), "aws-lambda").batch_size == 16
    assert make_setting(profile(), "aws-lambda", batch_size=4).batch_size == 4
    with pytest.raises(PlanError, match="small does not say how large a batch is; give the batch"):
        make_setting(profile(batch_size=None), "aws-lambda")


def test_figures_of_the_platform_can_be_set_wherever_it_comes_from() -> None:
    changes = {"network.latency_s": "0.5"}

    by_name = make_setting(profile(), "aws-lambda", changes=changes)
    given = make_setting(profile(), platform(), changes=changes, num_steps=3)

    assert by_name.platform.network.latency_s == 0.5
    assert given.platform.network.latency_s == 0.5
    assert given.platform.memory.tiers_mb == (1024, 1769, 3538)
    assert given.num_steps == 3


@pytest.mark.parametrize(
    ("platform", "options", "kind", "told"),
    [
        ("none", {}, PlanError, "`none` is no platform to plan for"),
        ("aws-lamda", {}, PlatformError, "did you mean aws-lambda?"),
        ("aws-lambda", {"batch_size": 0}, PlanError, "batch_size is 0; a whole number"),
        ("aws-lambda", {"batch_size": 2.0}, PlanError, "batch_size is 2.0"),
        ("aws-lambda", {"num_steps": 0}, PlanError, "num_steps is 0"),
        ("aws-lambda", {"changes": {"network.latency_s": "slow"}}, PlatformError, "latency_s"),
        ("aws-lambda", {"changes": {"network.late": "1"}}, PlatformError, "network.latency_s"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(
    platform: str, options: dict[str, Any], kind: type[Exception], told: str
) -> None:
    with pytest.raises(kind) as refused:
        make_setting(profile(), platform, **options)
    assert told in str(refused.value)


# -- the front ---------------------------------------------------------------------------------


def test_each_plan_of_a_front_is_the_cheapest_that_is_as_fast() -> None:
    given = given_problem()

    front = pareto_front(given.setting, space=given.space, spacing=1e-9)

    assert front.complete
    assert len(front.answers) > 3
    for answer in front.answers:
        alone = answer_of(given, objective("min-cost", max_time_s=answer.estimate.step_s))
        assert answer.value == answer.estimate.dollars
        assert answer.value == pytest.approx(alone.value, rel=1e-8)
        assert answer.bound <= alone.value
        assert answer.plan.predicted is not None
        assert answer.plan.predicted["max_time_s"] == answer.estimate.step_s
        json.dumps(answer.plan.predicted, allow_nan=False)
    for fast, slow in pairwise(front.answers):
        assert fast.estimate.step_s < slow.estimate.step_s
        assert fast.estimate.dollars > slow.estimate.dollars


def test_a_front_keeps_to_bounds_whatever_the_objective() -> None:
    given = given_problem()
    whole = pareto_front(given.setting, space=given.space, spacing=1e-9).answers
    bounds = {"max_time_s": whole[-2].estimate.step_s, "max_cost": whole[1].estimate.dollars}

    front = pareto_front(
        given.setting, space=given.space, spacing=1e-9,
        objective_bounds=objective("min-time", **bounds),
    )  # fmt: skip

    assert [one.plan for one in front.answers] == [one.plan for one in whole[1:-1]]


@pytest.mark.parametrize("schedules", [("1f1b",), ("gpipe", "1f1b")])
def test_a_front_of_1f1b_is_refused(schedules: tuple[str, ...]) -> None:
    given = given_problem(schedules=schedules)

    with pytest.raises(PlanError, match=r"searched among gpipe plans; schedules are .*1f1b"):
        pareto_front(given.setting, space=given.space)


def test_a_front_of_nothing_says_why() -> None:
    given = given_problem()

    with pytest.raises(Infeasible, match=r"a step takes at least .* s; 0\.001 s was asked for"):
        pareto_front(
            given.setting,
            space=given.space,
            objective_bounds=objective("min-cost", max_time_s=1e-3),
        )


def test_a_front_that_is_not_complete_promises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    given = given_problem()
    run, passes = Sweep.run, count()

    def stopped(self: Sweep, *args: Any, **options: Any) -> float:
        if next(passes) == 1:
            raise KeyboardInterrupt
        return run(self, *args, **options)

    monkeypatch.setattr(Sweep, "run", stopped)

    front = pareto_front(given.setting, space=given.space)

    assert not front.complete
    assert "plans may be missing" in front.notes[0]
    assert {(one.status, one.bound) for one in front.answers} == {(Status.FEASIBLE, 0.0)}


def test_a_front_of_a_model_that_takes_no_time() -> None:
    no_wait = {"network.latency_s": "0"}
    given = problem(layer(seconds=0, backward=0), degrees=(1,), changes=no_wait)

    (answer,) = pareto_front(given.setting, space=given.space).answers

    assert answer.estimate.step_s == 0


@pytest.mark.parametrize("solved", [0, 1])
def test_ctrl_c_before_the_units_of_weighted_are_known_ends_all(
    solved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Goal] = []
    true_solve = planner.solve

    def interrupted(problem: Problem, goal: Goal, **how: Any) -> Outcome:
        asked.append(goal)
        found = true_solve(problem, goal, **how)
        return replace(found, interrupted=len(asked) > solved)

    monkeypatch.setattr(planner, "solve", interrupted)

    with pytest.raises(KeyboardInterrupt):
        answer_of(given_problem(), objective("weighted:0.5"))

    assert len(asked) == solved + 1
