"""Why there is no plan: the constraint that cannot be met, and changes that do help."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from funcpipe.errors import PlanError, SolverError
from funcpipe.partitioner.backend import Outcome, Problem, Status
from funcpipe.partitioner.infeasible import explain
from funcpipe.partitioner.infeasible_ways import ways_out
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.reach import fewest_functions, plan_fits
from tests.unit.partitioner.small_problems import (
    CHEAPEST,
    FASTEST,
    all_plans,
    allowed,
    brute_force,
    layer,
    made_up_layers,
    made_up_model,
    problem,
)


def changed(
    given: Problem, *, batch: int | None = None, degree: int | None = None, **space: Any
) -> Problem:
    if degree is not None:
        space["degrees"] = (*given.space.degrees, degree)
    size = given.setting.batch_size if batch is None else batch
    return Problem(
        setting=replace(given.setting, batch_size=size), space=replace(given.space, **space)
    )


def number_before(text: str, unit: str) -> float:
    found = re.search(rf"at least \$?([\d.e+-]+){unit}", text)
    assert found, text
    return float(found[1])


# -- what no memory holds ----------------------------------------------------------------------


@pytest.mark.parametrize("base", [20_000 * 2**20, 2**53])
def test_memory_that_a_function_needs_before_any_layer_is_the_cause(base: int) -> None:
    given = problem(layer())
    profile = replace(given.setting.profile, base_memory_bytes=base)
    told = explain(
        Problem(setting=replace(given.setting, profile=profile), space=given.space), CHEAPEST
    )
    assert told.startswith(
        f"a function needs {base / 2**30:.1f} GB before it holds anything of the "
    )
    assert "the largest tier is 3.5 GB" in told


def test_data_that_no_function_has_room_for_are_the_cause() -> None:
    given = problem(
        layer(), layer(), model_fields={"base_memory_bytes": 2**30, "data_bytes": 3 * 2**30}
    )
    told = explain(given, CHEAPEST)
    assert told.startswith(
        "the first and the last stage need 4.0 GB before they hold anything of the model "
        "(base_memory_bytes and data_bytes); the largest tier is 3.5 GB"
    )


def test_a_step_beyond_all_memory_sizes_is_told_of_its_layer() -> None:
    given = problem(layer("small"), layer("large", step_workspace=5000), layer("small"))
    told = explain(given, CHEAPEST)
    assert told.startswith("layer 1 (large) alone needs 4.9 GB ")


def test_a_layer_beyond_all_memory_sizes_is_told() -> None:
    given = problem(
        layer(activation=2**33), layer("small"), batch=10**6, micro_batch_sizes=(10**6,)
    )
    told = explain(given, CHEAPEST)
    assert told.startswith("layer 0 (layer) alone needs ")
    assert "the largest tier is 3.5 GB" in told


# -- what fits, without a solver -----------------------------------------------------------------


def made_up_tight(source: random.Random) -> Problem:
    layers = [
        replace(one, activation_bytes=one.activation_bytes * source.choice([1, 4, 12]),
                parameter_bytes=one.parameter_bytes * source.choice([1, 2]),
                trained_bytes=None)
        for one in made_up_layers(source, source.randint(1, 3))
    ]  # fmt: skip
    least = source.choice([1, 1, 1, 2]) if len(layers) > 1 else 1
    return problem(
        *layers,
        model_fields=made_up_model(source),
        batch=source.choice([4, 6]),
        degrees=source.choice([(1,), (2,), (1, 2)]),
        per_stage=source.random() < 0.5,
        micro_batch_sizes=source.choice([None, (2,), (2, 4)]),
        recompute=source.choice(["never", "choose"]),
        schedules=source.choice([("gpipe",), ("1f1b",)]),
        tiers_mb=source.choice([(1024,), (1024, 1769)]),
        max_functions=source.choice([None, 2, 3]),
        min_stages=least,
        max_stages=source.choice([None, least]),
    )


def test_whether_a_plan_fits_agrees_with_a_look_at_all_plans() -> None:
    answers = []
    for seed in range(60):
        given = made_up_tight(random.Random(seed))
        fewest: dict[int, int] = {}
        free = changed(given, max_functions=None, min_stages=1, max_stages=None)
        for plan, _ in allowed(free):
            count = len(plan.stages)
            fewest[count] = min(fewest.get(count, 10**6), plan.num_functions)

        found = fewest_functions(given)

        assert {s: n for s, n in enumerate(found) if math.isfinite(n)} == fewest
        assert plan_fits(given) == bool(allowed(given))
        answers.append(plan_fits(given))
    assert 10 < sum(answers) < 50


# Parts of a text that name a change, and the fields that they stand for.
CHANGES = {
    r"micro-batches of (\d+)": lambda n: {"micro_batch_sizes": (n,)},
    r"recomputation": lambda: {"recompute": "choose"},
    r"the schedule 1f1b with one micro-batch in flight for each stage": lambda: {
        "schedules": ("1f1b",),
        "depths": (1,),
    },
    r"a degree of (\d+)": lambda n: {"degree": n},
    r"a degree for each stage": lambda: {"per_stage": True},
    r"functions of (\d+) MB": lambda n: {"tiers_mb": (n,)},
    r"batches of (\d+)": lambda n: {"batch": n},
    r"batches of (\d+) and micro-batches of (\d+)": lambda n, m: {
        "batch": n,
        "micro_batch_sizes": (m,),
    },
    r"any number of stages and functions": lambda: {
        "max_functions": None,
        "min_stages": 1,
        "max_stages": None,
    },
}


def fields_of(text: str) -> dict[str, Any]:
    for pattern, fields in CHANGES.items():
        if match := re.fullmatch(pattern, text):
            return dict(fields(*map(int, match.groups())))
    raise AssertionError(f"not known: {text}")


@pytest.mark.parametrize("part", range(4))
def test_what_is_said_to_fit_does(part: int) -> None:
    helped, kinds = 0, set()
    for seed in range(part * 20, part * 20 + 20):
        given = made_up_tight(random.Random(seed))
        if allowed(given):
            continue
        text = explain(given, CHEAPEST)
        _, _, instead = text.partition("What fits instead: ")
        for way in filter(None, instead.split("; or ")):
            fields: dict[str, Any] = {}
            for one in way.split(", together with "):
                fields |= fields_of(one)
                kinds.add(one.rstrip("0123456789 MB"))
            assert allowed(changed(given, **fields)), text
            helped += 1
    assert helped > 3
    assert len(kinds) > 1


def test_none_of_several_changes_can_be_left_out_or_be_larger() -> None:
    # given activations that fit in pieces of 4 samples, and of these only one piece at a time
    given = problem(
        layer(activation=1434), batch=16, degrees=(1,), micro_batch_sizes=(16,), tiers_mb=(10240,)
    )

    ways = explain(given, CHEAPEST).partition("What fits instead: ")[2].split("; or ")

    first, second = map(fields_of, ways[0].split(", together with "))
    assert first == {"micro_batch_sizes": (4,)}
    assert plan_fits(changed(given, **first, **second))
    assert not plan_fits(changed(given, **first))
    assert not plan_fits(changed(given, **second))
    assert not plan_fits(changed(given, **{**second, "micro_batch_sizes": (8,)}))


# -- memory --------------------------------------------------------------------------------------


def test_a_layer_too_large_is_named_with_what_it_needs_and_what_fits() -> None:
    # given a layer that keeps 1.4 GB of each sample, batches of 8 and 10 GB
    given = problem(
        layer("stem", activation=10), layer("fc", activation=1434), batch=8, degrees=(1,),
        micro_batch_sizes=(8,), tiers_mb=(10240,),
    )  # fmt: skip

    text = explain(given, CHEAPEST)

    # then no change of one kind is enough: smaller micro-batches would all be held together
    assert text == (
        "layer 1 (fc) alone needs 11.2 GB at micro-batches of 8; the largest tier is 10.0 GB. "
        "What fits instead: micro-batches of 4, together with the schedule 1f1b with one "
        "micro-batch in flight for each stage; or batches of 4 and micro-batches of 4"
    )


def test_under_1f1b_smaller_micro_batches_alone_are_enough() -> None:
    given = problem(
        layer("stem", activation=10), layer("fc", activation=1434), batch=8, degrees=(1,),
        micro_batch_sizes=(8,), schedules=("1f1b",), depths=(1,), tiers_mb=(10240,),
    )  # fmt: skip

    text = explain(given, CHEAPEST)

    assert "11.2 GB at micro-batches of 8 under 1f1b; the largest tier is 10.0 GB" in text
    assert "What fits instead: micro-batches of 4; or batches of 4" in text


@pytest.mark.parametrize(
    ("sizes", "need"),
    [
        ((600, 700), "layer 0 (a) alone needs 1.2 GB"),
        ((10, 1200), "layer 1 (b) alone needs 1.2 GB"),
    ],
)
def test_under_1f1b_a_layer_holds_what_its_place_asks_for(
    sizes: tuple[int, int], need: str
) -> None:
    # given 2 micro-batches in flight at the first of two stages, and 1 at the last
    given = problem(
        layer("a", activation=sizes[0]), layer("b", activation=sizes[1]), degrees=(1,),
        micro_batch_sizes=(1,), schedules=("1f1b",), depths=(1,), tiers_mb=(1024,), min_stages=2,
    )  # fmt: skip

    assert explain(given, CHEAPEST).startswith(f"{need} at micro-batches of 1 under 1f1b")


def test_each_kind_of_change_is_offered_where_it_is_enough() -> None:
    # given many small layers whose 8 micro-batches do not fit together, in at most 2 stages
    layers = [layer(f"l{k}", activation=40, output=1) for k in range(8)]
    given = problem(
        *layers, batch=8, degrees=(1,), micro_batch_sizes=(1,), tiers_mb=(1024,), max_stages=2
    )

    text = explain(given, CHEAPEST)

    ways = text.partition("What fits instead: ")[2].split("; or ")
    assert ways == [
        "recomputation",
        "the schedule 1f1b with one micro-batch in flight for each stage",
        "a degree of 2",
        "functions of 1769 MB",
        "batches of 4",
    ]
    for way in ways:
        assert plan_fits(changed(given, **fields_of(way)))


def test_a_need_just_above_the_tier_has_digits_that_show_it() -> None:
    given = problem(layer("w", parameters=512.01), degrees=(1,), tiers_mb=(1024,))

    text = explain(given, CHEAPEST)

    need, limit = map(float, re.findall(r"([\d.]+) GB", text)[:2])
    assert need > limit
    assert need == pytest.approx(limit, rel=1e-3)
    assert "functions of 1769 MB" in text


def test_nothing_helps_where_the_weights_alone_are_too_large() -> None:
    given = problem(layer("embedding", parameters=20_000), degrees=(1,), batch=2)

    text = explain(given, CHEAPEST)

    assert "layer 0 (embedding) alone needs 39.1 GB" in text
    assert "Nothing that was tried helps: even with recomputation" in text
    assert "the largest tier is 10.0 GB" in text  # the platform's, not only those to choose from


def test_a_layer_that_fits_only_beside_its_successor_is_not_called_alone() -> None:
    # given an output so large that no cut may follow it, and two layers too large together
    given = problem(
        layer("a", parameters=250, output=900), layer("b", parameters=300), degrees=(1,),
        batch=1, tiers_mb=(1024,),
    )  # fmt: skip

    text = explain(given, CHEAPEST)

    assert "in a stage of layers 0 to 1" in text
    assert "1.08 GB" in text or "1.1 GB" in text


def test_stages_that_do_not_join_are_told_apart_from_a_layer_too_large() -> None:
    # given activations that fit with 2 replicas only, and gradients that fit with 1 only
    given = problem(
        layer("wide", activation=100), layer("heavy", parameters=300), degrees=(1, 2),
        micro_batch_sizes=(1,), tiers_mb=(704,),
    )  # fmt: skip

    text = explain(given, CHEAPEST)

    assert text.startswith(
        "each layer fits in some stage, but the stages that fit do not join to a plan: at best, "
        "with micro-batches of 1 and a degree of 1, from layer 1 (heavy) on they do, but none ends "
        "before it. What fits instead: "
    )
    assert "a degree for each stage" in text
    assert allowed(changed(given, per_stage=True))


# -- bounds on stages and functions, degrees -----------------------------------------------------

THREE = [layer(name, parameters=500) for name in "abc"]  # 1,000 MB each with the gradients


def test_too_few_functions_name_the_least_that_fits() -> None:
    given = problem(*THREE, degrees=(1,), tiers_mb=(1024,), max_functions=2)

    text = explain(given, CHEAPEST)

    assert text.startswith("at most 2 functions; the least that fits is 3 stages x 1")
    assert allowed(changed(given, max_functions=3))
    assert not allowed(changed(given, max_functions=2))
    assert "functions of 3538 MB" in text  # of which one or two are enough


def test_too_few_functions_on_a_platform_are_the_platforms() -> None:
    few = {"invocation.concurrency": "2"}
    given = problem(*THREE, degrees=(1,), tiers_mb=(1024,), changes=few)

    text = explain(given, CHEAPEST)

    assert text.startswith("at most 2 functions on aws-lambda; the least that fits is 3 stages x 1")


def test_too_few_stages_name_the_next_number_that_fits() -> None:
    given = problem(*THREE, degrees=(1,), tiers_mb=(1024,), max_stages=1)

    assert explain(given, CHEAPEST).startswith(
        "at most 1 stages; the next that fits is 3 stages x 1"
    )


def test_too_many_stages_name_the_most_that_fits() -> None:
    # given a cut with more to send than a function can hold
    given = problem(
        layer("a", output=900), layer("b"), degrees=(1,), batch=1, tiers_mb=(1024,), min_stages=2
    )

    assert explain(given, CHEAPEST).startswith(
        "at least 2 stages; the most that fits is 1 stage x 1"
    )


def test_stages_and_functions_can_be_too_few_at_once() -> None:
    given = problem(*THREE, degrees=(1,), tiers_mb=(1024,), max_stages=2, max_functions=2)

    assert explain(given, CHEAPEST).startswith(
        "at most 2 functions and at most 2 stages; the next that fits is 3 stages x 1"
    )


def test_degrees_above_the_number_of_micro_batches_are_named() -> None:
    given = problem(layer(), batch=4, degrees=(8, 16))

    text = explain(given, CHEAPEST)

    assert "every degree to choose from (8, 16) is more than the 4 micro-batches of 1" in text
    assert allowed(changed(given, degrees=(4,)))
    assert "at most 4" in text


def test_a_space_that_contradicts_itself_is_refused_as_it_is_by_the_space() -> None:
    with pytest.raises(PlanError, match="at least 3 stages were asked for"):
        explain(problem(layer(), min_stages=3), CHEAPEST)


# -- bounds of the goal --------------------------------------------------------------------------


@pytest.fixture(name="given", scope="module")
def two_layers() -> Problem:
    source = random.Random(11)
    return problem(*made_up_layers(source, 2), micro_batch_sizes=(1, 4))


@pytest.mark.parametrize("free", [FASTEST, CHEAPEST])
def test_a_bound_below_the_least_names_the_least(given: Problem, free: Goal) -> None:
    name, unit = ("max_time_s", " s") if free is FASTEST else ("max_cost", "")
    least = brute_force(given, free).value
    goal = replace(CHEAPEST, **{name: least * 0.9})

    text = explain(given, goal, partial(brute_force, given))

    told = number_before(text, unit)
    assert least * (1 - 1e-9) <= told <= least * 1.001
    assert allowed(given, replace(CHEAPEST, **{name: told}))
    assert text.startswith("a step takes at least" if free is FASTEST else "a step costs at least")
    assert text.endswith("was asked for")
    assert f"{least * 0.9:.10g}" in text


def test_two_bounds_that_cannot_be_kept_are_both_named(given: Problem) -> None:
    goal = replace(CHEAPEST, max_time_s=1e-3, max_cost=1e-9)

    text = explain(given, goal, partial(brute_force, given))

    assert "a step takes at least" in text
    assert "; and a step costs at least" in text


def test_bounds_that_exclude_each_other_are_told_with_the_nearest_of_each(given: Problem) -> None:
    fastest, cheapest = brute_force(given, FASTEST), brute_force(given, CHEAPEST)
    goal = replace(CHEAPEST, max_time_s=fastest.value * 1.001, max_cost=cheapest.value * 1.001)
    assert not allowed(given, goal)

    text = explain(given, goal, partial(brute_force, given))

    assert text.startswith("each bound can be kept, but not both")
    cost = number_before(text, r" \(\$")
    seconds = number_before(text, " s")
    assert allowed(given, replace(goal, max_cost=cost))
    assert allowed(given, replace(goal, max_time_s=seconds))
    assert not allowed(given, replace(goal, max_cost=cost * 0.998))
    assert not allowed(given, replace(goal, max_time_s=seconds * 0.998))


def test_bounds_that_can_be_kept_are_said_to_be(given: Problem) -> None:
    goal = replace(CHEAPEST, max_time_s=1e4, max_cost=1e4)

    assert explain(given, goal, partial(brute_force, given)).startswith("a plan keeps to")
    assert explain(given, CHEAPEST).startswith("a plan fits")


def test_without_a_solver_nothing_is_claimed_of_time_and_dollars(given: Problem) -> None:
    text = explain(given, replace(CHEAPEST, max_time_s=1e-3))

    assert "none is known to keep to 0.001 s" in text
    assert not re.search(r"at least \S*\d", text)


@pytest.mark.parametrize(
    ("share", "claim"),
    [(0.4, "asked for"), (0.9, "was asked for, which is not ruled out")],
)
def test_what_is_not_proven_is_not_said_to_be(given: Problem, share: float, claim: str) -> None:
    # given a solver that ran out of time, with half of its value as the bound
    def solve(goal: Goal) -> Outcome:
        found = brute_force(given, goal)
        return replace(found, bound=found.value / 2, status=Status.FEASIBLE)

    least = brute_force(given, FASTEST).value

    text = explain(given, replace(CHEAPEST, max_time_s=share * least), solve)

    assert number_before(text, " s") <= least / 2
    assert "the fastest plan found" in text
    assert text.endswith(claim)


def test_a_solver_without_any_plan_in_time_claims_its_bound_only(given: Problem) -> None:
    def solve(goal: Goal) -> Outcome:
        found = brute_force(given, goal)
        return replace(found, plan=None, estimate=None, value=math.inf, bound=1.0,
                       status=Status.TIMED_OUT)  # fmt: skip

    text = explain(given, replace(CHEAPEST, max_time_s=2.0), solve)

    assert text.startswith("a step takes at least 1 s (no plan was found in time); 2 s was asked")
    assert "more time" in text


def test_a_solver_that_denies_what_fits_is_an_error(given: Problem) -> None:
    def solve(goal: Goal) -> Outcome:
        found = brute_force(given, goal)
        return replace(found, plan=None, status=Status.INFEASIBLE)

    with pytest.raises(SolverError, match="brute force finds no plan, though one fits"):
        explain(given, replace(CHEAPEST, max_time_s=2.0), solve)


def test_changes_keep_to_all_other_bounds() -> None:
    # given three layers that only more than two functions can hold, whatever the micro-batch
    given = problem(*THREE, degrees=(1,), max_functions=2, tiers_mb=(1024,), batch=2)

    for text in ways_out(given, bounds=False):
        plans = allowed(changed(given, **fields_of(text)))
        assert plans
        assert all(plan.num_functions <= 2 for plan, _ in plans)
    assert list(all_plans(given))
