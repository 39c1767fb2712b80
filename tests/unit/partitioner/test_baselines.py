"""Baselines: each chooses what its method says, within the bounds, and says why if it cannot."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from funcpipe.errors import PlanError
from funcpipe.partitioner.backend import Problem
from funcpipe.partitioner.baselines import BASELINES, Baseline, ParameterServer, compare
from funcpipe.partitioner.baselines_choice import Grid, figures
from funcpipe.partitioner.baselines_cuts import least_slowest
from funcpipe.partitioner.baselines_search import bayesian
from funcpipe.partitioner.baselines_search import random as at_random
from funcpipe.partitioner.baselines_whole import hybrid_ps
from funcpipe.partitioner.cost import evaluate, tail_s
from funcpipe.partitioner.lanes import StageTimes, plan_times
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.plan import Plan, balanced_cuts
from funcpipe.partitioner.pricing import dollars_per_s
from funcpipe.partitioner.space import Combination
from funcpipe.partitioner.verify import faults
from tests.unit.partitioner.small_problems import (
    CHEAPEST,
    FASTEST,
    MB,
    all_plans,
    allowed,
    brute_force,
    layer,
    made_up_problem,
    problem,
)

BOTH = Goal(time_weight=0.001, cost_weight=1.0)
SEEDS = range(3)


def cuts_of(plan: Plan) -> list[int]:
    return [0, *(stage.stop_layer for stage in plan.stages)]


def is_uniform(plan: Plan) -> bool:
    """One memory size, one degree, one way of recomputation for all stages."""
    return len({(s.memory_mb, s.replicas, s.recompute) for s in plan.stages}) == 1


def least_value(judged: list[tuple[Plan, float]], rule: Callable[[Plan], bool]) -> float:
    return min((value for plan, value in judged if rule(plan)), default=math.inf)


def judged_by(of: Problem, goal: Goal) -> list[tuple[Plan, float]]:
    return [(plan, goal.value(e.step_s, e.dollars)) for plan, e in allowed(of, goal)]


# -- figures from arrays -----------------------------------------------------------------------


@pytest.mark.parametrize("on_lane", [False, True])
@pytest.mark.parametrize("per_stage", [False, True])
def test_figures_of_rows_are_those_of_the_performance_model(per_stage: bool, on_lane: bool) -> None:
    made = made_up_problem(random.Random(1), per_stage=per_stage, degrees=(1, 2, 4))
    given = Problem(setting=replace(made.setting, latency_on_lane=on_lane), space=made.space)
    judged = 0
    for plan in list(all_plans(given))[:: 97 if per_stage else 7]:
        estimate = evaluate(given.setting, plan)
        chosen = next(
            one for one in given.combinations()
            if one.micro_batch_size == plan.micro_batch_size
            and set(plan.degrees) <= set(one.degrees)
        )  # fmt: skip
        grid = Grid(given, chosen)
        rows = [
            grid.row(
                from_end=len(plan.stages) - k, start=s.first_layer, stop=s.stop_layer,
                tier=grid.tiers_mb.index(s.memory_mb or 0), degree=s.replicas, recompute=False,
            )
            for k, s in enumerate(plan.stages)
        ]  # fmt: skip
        assert (min(rows) >= 0) == estimate.fits
        if estimate.fits:
            seconds, dollars = figures(grid.table, np.array([rows]))
            assert seconds[0] == pytest.approx(estimate.step_s, rel=1e-12)
            assert dollars[0] == pytest.approx(estimate.dollars, rel=1e-12)
            judged += 1
    assert judged > 100


# -- rules ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("goal", [CHEAPEST, FASTEST, BOTH])
@pytest.mark.parametrize("seed", SEEDS)
def test_rules_give_the_best_of_their_plans(seed: int, goal: Goal) -> None:
    given = made_up_problem(random.Random(seed), layers=5, micro_batch_sizes=(1, 2, 4))
    judged = judged_by(given, goal)
    profile, platform = given.setting.profile, given.setting.platform

    def is_even(plan: Plan) -> bool:
        sizes = {stage.stop_layer - stage.first_layer for stage in plan.stages}
        return max(sizes) - min(sizes) <= 1

    def in_time(plan: Plan) -> list[float]:
        at = {"micro_batch_size": plan.micro_batch_size}
        vcpu = platform.vcpu(plan.stages[0].memory_mb or 0)
        return [
            profile.forward_s(i, vcpu=vcpu, **at) + profile.backward_s(i, vcpu=vcpu, **at)
            for i in range(5)
        ]

    def in_memory(plan: Plan) -> list[float]:
        samples = plan.micro_batch_size * -(
            -given.setting.num_micro_batches(plan.micro_batch_size) // plan.degrees[0]
        )
        return [3 * one.parameter_bytes + samples * one.activation_bytes for one in profile.layers]

    def by_weight(weigh: Callable[[Plan], list[float]]) -> Callable[[Plan], bool]:
        return lambda plan: (
            is_uniform(plan) and cuts_of(plan) == balanced_cuts(weigh(plan), len(plan.stages))
        )

    even, by_time, by_memory = compare(
        given, goal, only=["even-layers", "balanced-time", "balanced-memory"]
    )

    assert even.plan is not None
    assert is_uniform(even.plan)
    assert is_even(even.plan)
    every_split = least_value(judged, lambda plan: is_uniform(plan) and is_even(plan))
    assert even.value >= every_split * (1 - 1e-12)
    assert by_time.value == pytest.approx(least_value(judged, by_weight(in_time)))
    assert by_memory.value == pytest.approx(least_value(judged, by_weight(in_memory)))


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_bounds_leave_the_best_plan_within_them(seed: int) -> None:
    # given bounds that the best plan without them breaks
    free = made_up_problem(random.Random(seed), micro_batch_sizes=(1, 2))
    given = Problem(setting=free.setting, space=replace(free.space, max_functions=4))
    (cheapest,) = compare(free, CHEAPEST, only=["even-layers"])
    (fastest,) = compare(free, FASTEST, only=["even-layers"])
    (fastest_of_four,) = compare(given, FASTEST, only=["even-layers"])
    goal = replace(CHEAPEST, max_time_s=(fastest_of_four.time_s + cheapest.time_s) / 2)
    assert cheapest.time_s > goal.max_time_s
    assert fastest.time_s < fastest_of_four.time_s

    (found,) = compare(given, goal, only=["even-layers"])

    def is_even(plan: Plan) -> bool:
        cuts = [k * 4 // len(plan.stages) for k in range(len(plan.stages) + 1)]
        return is_uniform(plan) and cuts_of(plan) == cuts

    assert found.value == pytest.approx(least_value(judged_by(given, goal), is_even))


def test_even_layers_differ_by_one_layer_at_most() -> None:
    given = made_up_problem(random.Random(3), layers=7, min_stages=3, max_stages=3)

    (found,) = compare(given, CHEAPEST, only=["even-layers"])

    assert found.plan is not None
    assert sorted(s.stop_layer - s.first_layer for s in found.plan.stages) == [2, 2, 3]


def test_a_stage_recomputes_only_where_it_would_not_fit_otherwise() -> None:
    # given two layers of which only the second one keeps much
    given = problem(
        layer("a", activation=10), layer("b", activation=700), batch=2, degrees=(1,),
        micro_batch_sizes=(1,), tiers_mb=(1024,), recompute="choose", min_stages=2,
    )  # fmt: skip

    (found,) = compare(given, CHEAPEST, only=["even-layers"])

    assert found.plan is not None
    assert [stage.recompute for stage in found.plan.stages] == [False, True]


def test_under_1f1b_only_early_stages_recompute() -> None:
    # given three equal layers, whose stages hold 3, 2 and 1 micro-batches of 300 MB
    given = problem(
        *(layer(activation=300, output=1) for _ in range(3)), batch=6, degrees=(1,),
        micro_batch_sizes=(1,), tiers_mb=(700,), recompute="choose", schedules=("1f1b",),
        depths=(1,), min_stages=3, changes={"memory.least_mb": "700"},
    )  # fmt: skip

    for found in compare(given, CHEAPEST, only=["even-layers", "pipedream", "tarnawski"]):
        assert found.plan is not None
        assert [stage.recompute for stage in found.plan.stages] == [True, False, False]


# -- dynamic programs ----------------------------------------------------------------------------


def overlapping_s(given: Problem, plan: Plan, times: StageTimes) -> float:
    share = -(-given.setting.num_micro_batches(plan.micro_batch_size) // times.degree)
    return share * (times.lane_f + times.lane_b) + max(0.0, tail_s(times, plan.sync))


def one_by_one_s(given: Problem, plan: Plan, times: StageTimes) -> float:
    share = -(-given.setting.num_micro_batches(plan.micro_batch_size) // times.degree)
    return share * (times.fill_f + times.fill_b) + max(0.0, tail_s(times, plan.sync))


LOADS = {"pipedream": overlapping_s, "tarnawski": one_by_one_s}


def slowest_s(given: Problem, plan: Plan, name: str) -> float:
    return max(LOADS[name](given, plan, one) for one in plan_times(given.setting, plan))


@pytest.mark.parametrize("name", LOADS)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("seed", SEEDS)
def test_programs_choose_among_the_plans_of_the_least_slowest_stage(
    seed: int, schedule: str, name: str
) -> None:
    given = made_up_problem(
        random.Random(seed), micro_batch_sizes=(1, 4), schedules=(schedule,), batch=4
    )

    (found,) = compare(given, BOTH, only=[name])

    # then no other cut of as many stages on that memory size has a faster slowest stage
    assert found.plan is not None
    assert is_uniform(found.plan)
    same = [
        plan for plan, _ in allowed(given)
        if is_uniform(plan) and plan.micro_batch_size == found.plan.micro_batch_size
        and plan.degrees == found.plan.degrees and plan.in_flight == found.plan.in_flight
        and plan.stages[0].memory_mb == found.plan.stages[0].memory_mb
    ]  # fmt: skip
    least = min(slowest_s(given, plan, name) for plan in same)
    assert slowest_s(given, found.plan, name) == pytest.approx(least)
    # and no group's best choice is better by the goal, where it is the only one
    assert found.value <= _best_of_only_choices(given, name) * (1 + 1e-9)


def _best_of_only_choices(given: Problem, name: str) -> float:
    groups: dict[object, list[tuple[float, float]]] = {}
    for plan, e in allowed(given):
        if is_uniform(plan):
            key = (plan.micro_batch_size, plan.degrees, plan.in_flight, plan.stages[0].memory_mb)
            value = BOTH.value(e.step_s, e.dollars)
            groups.setdefault(key, []).append((slowest_s(given, plan, name), value))
    values = [math.inf]
    for group in groups.values():
        least = min(group)
        if sum(slow <= least[0] * (1 + 1e-9) for slow, _ in group) == 1:
            values.append(least[1])
    return min(values)


def test_only_tarnawski_adds_transfers_to_compute() -> None:
    # given cuts that send much, but for the one before the last layer
    given = problem(
        layer("a", output=150), layer("b", output=150), layer("c", output=1), layer("d"),
        degrees=(1,), micro_batch_sizes=(1,), tiers_mb=(3538,), min_stages=2, max_stages=2,
    )  # fmt: skip

    overlapping, adding = compare(given, FASTEST, only=["pipedream", "tarnawski"])

    assert overlapping.plan is not None
    assert adding.plan is not None
    assert cuts_of(overlapping.plan) == [0, 2, 4]
    assert cuts_of(adding.plan) == [0, 3, 4]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_pipedream_splits_any_number_of_workers_best(
    seed: int, counted: bool, schedule: str
) -> None:
    # given stages that may differ in degree
    given = made_up_problem(
        random.Random(seed), per_stage=True, micro_batch_sizes=(1,), schedules=(schedule,),
        depths=(1,), tiers_mb=(1024, 1769), batch=4,
    )  # fmt: skip
    (combination,) = given.combinations()
    grid = Grid(given, combination)
    table, share = grid.table, -(-4 // grid.table.degree)
    load = share * (table.lane_f + table.lane_b) + np.maximum(table.tail, 0.0)
    stages = range(2, 4) if counted or schedule == "1f1b" else None

    # when the program is asked for up to 6 workers
    found: dict[tuple[object, ...], float] = {}
    for rows in least_slowest(grid, load, (0, 1), stages=stages, workers=6):
        for line in rows.tolist():
            plan = table.plan(line)
            key = _worker_key(plan, stages)
            assert key not in found
            found[key] = slowest_s(given, plan, "pipedream")

    # then there is one plan for each number, as good as the best of all
    expected: dict[tuple[object, ...], float] = {}
    for plan, _ in allowed(given):
        one_tier = len({stage.memory_mb for stage in plan.stages}) == 1
        if one_tier and plan.num_functions <= 6 and (not stages or len(plan.stages) in stages):
            key = _worker_key(plan, stages)
            expected[key] = min(expected.get(key, math.inf), slowest_s(given, plan, "pipedream"))
    assert expected
    assert found == pytest.approx(expected)


def _worker_key(plan: Plan, stages: range | None) -> tuple[object, ...]:
    counts = (plan.num_functions,) if stages is None else (len(plan.stages), plan.num_functions)
    return (plan.stages[0].memory_mb, *counts)


def test_pipedream_replicates_the_slow_stage_where_it_may() -> None:
    # given a layer that takes four times as long as the other
    given = problem(
        layer("slow", seconds=4.0), layer("fast", seconds=1.0),
        per_stage=True, degrees=(1, 4), min_stages=2, micro_batch_sizes=(1,), max_functions=5,
    )  # fmt: skip

    (found,) = compare(given, FASTEST, only=["pipedream"])

    assert found.plan is not None
    assert found.plan.degrees == (4, 1)


# -- searches ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "search", [partial(at_random, num_samples=300), partial(bayesian, num_evaluations=40)]
)
def test_searches_are_the_same_for_a_seed_and_differ_between_seeds(
    search: Callable[..., Baseline],
) -> None:
    given = made_up_problem(random.Random(4), layers=8, recompute="choose", degrees=(1, 2, 4))

    first, again = search(given, BOTH, 5), search(given, BOTH, 5)
    values = {search(given, BOTH, seed).value for seed in range(4)}

    assert first == again
    assert first.plan == again.plan
    assert len(values) > 1


@pytest.mark.parametrize(
    "search", [partial(at_random, num_samples=30), partial(bayesian, num_evaluations=15)]
)
def test_searches_only_try_what_keeps_to_the_bound_on_functions(
    search: Callable[..., Baseline],
) -> None:
    # given one plan in 729 that does: with 1 replica for each of 6 stages
    given = made_up_problem(
        random.Random(2), layers=6, per_stage=True, degrees=(1, 2, 4), batch=4, min_stages=6,
        max_functions=6, tiers_mb=(3538,), micro_batch_sizes=(1,),
    )  # fmt: skip

    found = search(given, CHEAPEST, 0)

    assert found.plan is not None
    assert found.plan.degrees == (1,) * 6


@pytest.mark.parametrize("search", [at_random, bayesian])
def test_searches_find_the_best_of_a_tiny_space_and_never_better(
    search: Callable[..., Baseline],
) -> None:
    given = made_up_problem(
        random.Random(6), layers=2, micro_batch_sizes=(2, 4), tiers_mb=(1769, 3538)
    )

    found = search(given, BOTH, 1)

    assert found.value == pytest.approx(brute_force(given, BOTH).value)


def test_more_evaluations_never_end_worse() -> None:
    given = made_up_problem(random.Random(7), layers=6)

    values = [bayesian(given, BOTH, 3, num_evaluations=n).value for n in (20, 40, 80)]

    assert values == sorted(values, reverse=True)
    assert values[2] < values[0]


# -- the whole model in every function -----------------------------------------------------------


@pytest.mark.parametrize("goal", [CHEAPEST, FASTEST])
def test_lambdaml_is_the_best_single_stage_with_three_phases(goal: Goal) -> None:
    given = made_up_problem(random.Random(8), layers=2, degrees=(1, 2, 4))

    (found,) = compare(given, goal, only=["lambdaml"])

    three = Problem(
        setting=given.setting, space=replace(given.space, sync=("three-phase",), max_stages=1)
    )
    assert found.plan is not None
    assert found.value == pytest.approx(brute_force(three, goal).value)
    assert (found.plan.sync, len(found.plan.stages)) == ("three-phase", 1)
    assert "three-phase is not to be chosen from" in found.why


def test_lambdaml_accumulates_gradients_where_the_batch_does_not_fit() -> None:
    # given 8 samples of 400 MB each
    given = problem(layer(activation=400), degrees=(1,), sync=("three-phase",))

    (found,) = compare(given, CHEAPEST, only=["lambdaml"])

    assert found.plan is not None
    assert (found.plan.schedule, found.plan.in_flight) == ("1f1b", 1)
    assert evaluate(given.setting, found.plan).fits
    assert "1f1b" in found.why


def test_a_parameter_server_takes_and_costs_what_its_links_and_its_price_say() -> None:
    # given 100 MB of gradients, 2 functions and a server of 1.5 times a function's bandwidth
    given = problem(
        layer(parameters=100, step_s=(0.5,)), batch=4, degrees=(2,), micro_batch_sizes=(2,),
        tiers_mb=(1769,), changes={"network.latency_s": "0.1"},
    )  # fmt: skip
    server = ParameterServer(bytes_per_s=1.05e8, dollars_per_hour=3.6)

    found = hybrid_ps(given, CHEAPEST, server=server)

    # then each computes 2 samples for 3 s each, and both share the server's link
    time_s = 6.0 + 2 * (2 * 100 * MB / 1.05e8 + 0.1) + 0.5
    per_s = 2 * dollars_per_s(given.setting.platform, 1769) + 0.001
    report = given.setting.platform.price.put
    assert report > 0
    assert found.plan is None
    assert found.time_s == pytest.approx(time_s)
    assert found.dollars == pytest.approx(time_s * per_s + report, rel=1e-9)
    assert "parameter server" in found.why


def test_a_fast_parameter_server_leaves_the_functions_links_as_the_limit() -> None:
    given = problem(layer(parameters=100), degrees=(2,), tiers_mb=(1769,), batch=2)

    times = [hybrid_ps(given, FASTEST, server=ParameterServer(bytes_per_s=b)).time_s
             for b in (1e8, 1e9, 1e10)]  # fmt: skip

    assert times[0] > times[1] == times[2]


# -- all of them ---------------------------------------------------------------------------------


def made_up_space(source: random.Random) -> Problem:
    per_stage = source.random() < 0.4
    least = source.choice([1, 1, 2])
    return made_up_problem(
        source,
        layers=source.randint(2, 6),
        batch=source.choice([4, 6, 7]),
        per_stage=per_stage,
        degrees=source.choice([(1,), (2,), (1, 2, 4), (1, 4)]),
        recompute=source.choice(["never", "always", "choose"]),
        schedules=source.choice([("gpipe",), ("1f1b",), ("gpipe", "1f1b")]),
        sync=source.choice([("pipelined",), ("pipelined", "three-phase")]),
        tiers_mb=source.choice([None, (1024,), (1024, 1769)]),
        max_functions=source.choice([None, 2, 5]),
        min_stages=least,
        max_stages=source.choice([None, least, 3]),
    )


BY_NATURE = ("is not to be chosen from", "it has 1 stage")


@pytest.mark.parametrize("seed", range(25))
def test_no_baseline_breaks_a_bound(seed: int) -> None:
    source = random.Random(seed)
    given = made_up_space(source)
    bound = source.choice([math.inf, 12.0])
    goal = Goal(time_weight=source.random(), cost_weight=1.0, max_time_s=bound)

    # The Bayesian one with fewer evaluations, which keep to the same bounds.
    results = compare(given, goal, seed=seed, only=BASELINES.keys() - {"bayesian"})
    for found in [*results, bayesian(given, goal, seed, num_evaluations=40)]:
        assert found.found or found.why
        if found.plan is None:
            assert found.name == "hybrid-ps" or not found.found
            continue
        estimate = evaluate(given.setting, found.plan)
        broken = faults(given, goal, found.plan, estimate)
        if found.name == "lambdaml":
            assert all(any(text in one for text in BY_NATURE) for one in broken)
            assert bool(broken) == bool(found.why)
        else:
            assert not broken
        assert (found.time_s, found.dollars) == (estimate.step_s, estimate.dollars)
        assert found.value == goal.value(estimate.step_s, estimate.dollars)


def test_every_baseline_says_that_nothing_fits_in_memory() -> None:
    given = problem(layer("huge", parameters=9000), layer("small"))

    results = compare(given, CHEAPEST)

    assert [one.name for one in results] == list(BASELINES)
    assert not any(one.found for one in results)
    assert all(one.plan is None and "fits in" in one.why for one in results)


def test_every_baseline_says_what_it_needs_where_the_goal_asks_too_much() -> None:
    given = problem(layer(), layer(), micro_batch_sizes=(1, 2))

    results = compare(given, Goal(time_weight=1.0, cost_weight=0.0, max_time_s=0.01))

    assert not any(one.found for one in results)
    assert all("none keeps to 0.01 s" in one.why for one in results)


def test_baselines_without_room_for_a_plan_say_so() -> None:
    given = problem(layer(), layer(), layer(), min_stages=3, max_functions=2)

    results = compare(given, CHEAPEST)

    assert all(one.why for one in results)
    assert {one.name for one in results if one.found} == {"lambdaml", "hybrid-ps"}


def test_only_some_are_compared_and_an_unknown_one_is_refused() -> None:
    given = problem(layer(), layer())

    assert [one.name for one in compare(given, CHEAPEST, only=["tarnawski", "even-layers"])] == [
        "even-layers",
        "tarnawski",
    ]
    with pytest.raises(PlanError, match="no baseline 'pipedreem'; did you mean pipedream"):
        compare(given, CHEAPEST, only=["pipedreem"])


def test_a_model_of_one_layer_has_one_stage() -> None:
    given = problem(layer(parameters=10, activation=1))

    for found in compare(given, CHEAPEST):
        assert found.found
        assert found.plan is None or len(found.plan.stages) == 1


def test_a_combination_has_its_rows_in_the_grid() -> None:
    given = made_up_problem(random.Random(9))
    grid = Grid(given, Combination(micro_batch_size=2, degrees=(2,)))

    stages = grid.stages(1)

    assert set(stages[stages >= 0].tolist()) == set(range(len(grid.table)))
