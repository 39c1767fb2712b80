"""What cannot be asked: objectives, spaces, settings that make no sense, and what is said of it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from funcpipe.errors import PlanError
from funcpipe.partitioner.backend import Deadline, Problem
from funcpipe.partitioner.objective import Objective
from funcpipe.partitioner.platform import load_platform
from funcpipe.partitioner.setting import Setting
from funcpipe.partitioner.space import Space
from tests.unit.partitioner.small_problems import layer, platform, problem


def refusal(make: Any, **fields: Any) -> str:
    with pytest.raises(PlanError) as refused:
        make(**fields)
    return str(refused.value)


# -- objectives --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["min-money", "", "MIN-COST", None, 3, ["min-cost"]])
def test_an_unknown_objective_is_told_with_the_known_ones(kind: Any) -> None:
    told = refusal(Objective, kind=kind)

    assert f"unknown objective {kind!r}" in told
    assert "min-time, min-cost, weighted:ALPHA and raw:ALPHA" in told


@pytest.mark.parametrize("alpha", [-0.1, 1.1, math.nan, math.inf, "half", None, True])
def test_alpha_is_a_share(alpha: Any) -> None:
    assert refusal(Objective, kind="raw", alpha=alpha) == (
        f"alpha is {alpha!r}; expected a number from 0 (time) to 1 (cost)"
    )


@pytest.mark.parametrize("name", ["max_time_s", "max_cost"])
@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, 10**13, "1", True])
def test_a_bound_is_a_number_above_0(name: str, value: Any) -> None:
    told = refusal(Objective, **{name: value})
    assert told.startswith(f"{name} is {value!r}; expected a number above 0, at most ")


@pytest.mark.parametrize(
    "text", ["weighted:2", "weighted:-1", "raw:nan", "raw:", "raw:x", "min-cost:0.5", "min-time:"]
)
def test_a_text_with_a_number_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="only weighted and raw take a number") as refused:
        Objective.parse(text)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize("text", ["min-time", "min-cost", "weighted:0.3", "raw:0", "raw:1"])
def test_an_objective_is_written_as_it_is_read(text: str) -> None:
    assert str(Objective.parse(text)) == text


@pytest.mark.parametrize("leasts", [(0.0, 1.0), (1.0, 0.0)])
def test_nothing_is_no_unit(leasts: tuple[float, float]) -> None:
    with pytest.raises(PlanError, match="weighted needs units above 0; choose min-time"):
        Objective(kind="weighted").goal(*leasts)


# -- spaces ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["micro_batch_sizes", "degrees", "depths", "tiers_mb"])
@pytest.mark.parametrize(
    "value", [(), (0,), (-1,), (1.0,), (True,), ("1",), (10**9 + 1,), "12", 3, {1}]
)
def test_what_is_counted_is_a_list_of_whole_numbers(name: str, value: Any) -> None:
    most = "1,000,000" if name == "depths" else "1,000,000,000"
    assert refusal(Space, **{name: value}) == (
        f"{name} is {value!r}; expected whole numbers from 1 to {most}, at least one"
    )


@pytest.mark.parametrize("name", ["max_functions", "min_stages", "max_stages"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "2", True, 10**9 + 1])
def test_a_limit_is_a_whole_number(name: str, value: Any) -> None:
    told = refusal(Space, **{name: value})
    assert told == f"{name} is {value!r}; expected a whole number from 1 to 1,000,000,000"


@pytest.mark.parametrize(
    ("name", "value", "known"),
    [
        ("schedules", ("2f2b",), "gpipe, 1f1b"),
        ("schedules", (), "gpipe, 1f1b"),
        ("schedules", "gpipe", "gpipe, 1f1b"),
        ("schedules", 3, "gpipe, 1f1b"),
        ("schedules", ("gpipe", ["1f1b"]), "gpipe, 1f1b"),
        ("sync", ("fast",), "pipelined, three-phase"),
        ("sync", None, "pipelined, three-phase"),
        ("recompute", "sometimes", "never, always, choose"),
        ("recompute", None, "never, always, choose"),
    ],
)
def test_a_choice_that_is_not_known_is_told_with_those_that_are(
    name: str, value: Any, known: str
) -> None:
    told = refusal(Space, **{name: value})

    assert told.startswith(f"{name}: ")
    assert told.endswith(f"; known: {known}")


def test_lists_do_as_well_and_what_is_there_twice_counts_once() -> None:
    given = Space(
        degrees=[4, 2, 2],  # type: ignore[arg-type]
        schedules=["gpipe", "gpipe"],  # type: ignore[arg-type]
        sync=["three-phase", "pipelined", "three-phase"],  # type: ignore[arg-type]
    )

    assert given == Space(degrees=(2, 4), sync=("three-phase", "pipelined"))


@pytest.mark.parametrize("value", [1, "yes", None])
def test_per_stage_is_true_or_false(value: Any) -> None:
    assert refusal(Space, per_stage=value) == f"per_stage is {value!r}; expected True or False"


@pytest.mark.parametrize("degrees", [(2, 3), (1, 2, 3), (4, 6)])
def test_degrees_that_stages_choose_from_divide_each_other(degrees: tuple[int, ...]) -> None:
    assert Space(degrees=degrees).degrees == degrees

    told = refusal(Space, degrees=degrees, per_stage=True)

    assert f"{degrees[-2]} does not divide {degrees[-1]}" in told
    assert "such as 1,2,4" in told


def test_fewer_stages_at_most_than_at_least_are_refused() -> None:
    assert "min_stages is 3 and max_stages 2" in refusal(Space, min_stages=3, max_stages=2)


# -- spaces in a setting -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "told"),
    [
        ({"micro_batch_sizes": (2, 9)}, "a micro-batch of 9 samples is larger than the batch of 8"),
        ({"tiers_mb": (1024, 100)}, "memory to choose from: 100 MB is no memory size of aws-"),
        ({"min_stages": 3}, "at least 3 stages were asked for, but the model has 2 layers"),
    ],
)
def test_a_space_that_contradicts_the_setting_is_refused_when_it_is_used(
    space: dict[str, Any], told: str
) -> None:
    given = problem(layer("first"), layer("last"), **space)

    def use() -> None:
        for combination in given.combinations():
            given.table(combination)
        _ = given.max_stages

    assert told in refusal(use)


def test_more_stages_at_most_than_layers_are_all_layers() -> None:
    assert problem(layer("first"), layer("last"), max_stages=9).max_stages == 2


@pytest.mark.parametrize(
    ("asked", "at_once", "most"), [(None, "10", 10), (4, "10", 4), (20, "10", 10), (4, "none", 4)]
)
def test_functions_are_limited_by_the_platform_too(
    asked: int | None, at_once: str, most: int
) -> None:
    given = problem(layer(), max_functions=asked, changes={"invocation.concurrency": at_once})

    assert given.max_functions == most


# -- settings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"batch_size": 0}, "batch_size is 0; a whole number of at least 1 and at"),
        ({"batch_size": 10**6 + 1}, "at least 1 and at most 1,000,000 is needed"),
        ({"batch_size": 8.0}, "batch_size is 8.0; a whole number"),
        ({"batch_size": None}, "batch_size is None; a whole number"),
        ({"num_steps": -1}, "num_steps is -1; a whole number"),
        ({"num_steps": True}, "num_steps is True; a whole number"),
        ({"missed_per_get": -1}, "missed_per_get is -1; expected 0 to 1000"),
        ({"missed_per_get": math.nan}, "missed_per_get is nan; expected 0 to 1000"),
        ({"missed_per_get": "few"}, "missed_per_get is 'few'; expected 0 to 1000"),
        ({"platform": load_platform("none")}, "`none` is no platform to plan for"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(fields: dict[str, Any], told: str) -> None:
    setting = problem(layer()).setting

    assert told in refusal(lambda: replace(setting, **fields))


@pytest.mark.parametrize("limit_s", [0, -1, math.nan, math.inf, "1", [1]])
def test_a_time_limit_is_seconds_above_0(limit_s: Any) -> None:
    assert refusal(lambda: Deadline(limit_s)) == (
        f"the time limit is {limit_s!r}; expected seconds above 0"
    )


def test_what_is_asked_sensibly_is_not_refused() -> None:
    given = Problem(
        setting=Setting(
            profile=problem(layer()).setting.profile, platform=platform(), batch_size=8, num_steps=5
        ),
        space=Space(degrees=(1, 2, 4), per_stage=True, schedules=("gpipe", "1f1b"), depths=(1, 3)),
    )
    assert Objective(kind="weighted", alpha=0, max_time_s=1, max_cost=1e-7).bounds == {
        "max_time_s": 1, "max_cost": 1e-7,
    }  # fmt: skip
    # 4 sizes; of each, gpipe and two depths of 1f1b
    assert len(given.combinations()) == 12
