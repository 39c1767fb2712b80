"""How many micro-batches a step may have, and in how many functions its stages may be."""

from __future__ import annotations

import re
from typing import Any

import pytest

from funcpipe.errors import Infeasible, PlanError
from funcpipe.partitioner import planner
from funcpipe.partitioner.backend import Problem
from funcpipe.partitioner.objective import Objective
from funcpipe.partitioner.planner import Answer, pareto_front, plan_for
from funcpipe.partitioner.setting import MOST_MICRO_BATCHES
from funcpipe.partitioner.space import MOST_SIMULATED
from tests.unit.partitioner.small_problems import layer, problem

BOTH = ("gpipe", "1f1b")


def given_problem(batch: int, **space: Any) -> Problem:
    return problem(layer(seconds=1e-5), batch=batch, **{"degrees": (1,), **space})


def answer_of(given: Problem, **how: Any) -> Answer:
    objective = Objective.parse("min-time")
    return plan_for(given.setting, objective=objective, space=given.space, **how)


# -- micro-batches -----------------------------------------------------------------------------


def test_more_micro_batches_than_anyone_wants_are_refused_with_the_least_size() -> None:
    batch = 2 * MOST_MICRO_BATCHES + 1
    setting = given_problem(batch).setting
    assert MOST_MICRO_BATCHES == 65_536
    assert setting.num_micro_batches(3) == -(-batch // 3)

    with pytest.raises(PlanError) as refused:
        setting.num_micro_batches(2)

    assert f"a batch of {batch} samples is 65537 micro-batches of 2;" in refused.value.message
    assert refused.value.message.endswith("micro-batches of at least 3 samples")
    assert given_problem(batch - 1).setting.num_micro_batches(2) == MOST_MICRO_BATCHES


def test_a_size_of_too_many_micro_batches_is_not_chosen_and_refused_where_asked_for() -> None:
    given = given_problem(8 * MOST_MICRO_BATCHES)
    sizes = given.space.sizes(given.setting)
    assert min(sizes) == 8

    asked = given_problem(8 * MOST_MICRO_BATCHES, micro_batch_sizes=(4, 8))
    with pytest.raises(PlanError, match="at least 8 samples"):
        asked.combinations()


@pytest.mark.parametrize("schedules", [("gpipe",), BOTH, ("1f1b",)])
def test_1f1b_is_left_out_where_its_micro_batches_are_too_many(schedules: tuple[str, ...]) -> None:
    given = given_problem(4 * MOST_SIMULATED, schedules=schedules, depths=(1,))

    sizes = {
        schedule: [one.micro_batch_size for one in given.combinations() if one.schedule == schedule]
        for schedule in schedules
    }

    assert MOST_SIMULATED == 4_096
    assert min(sizes.get("gpipe", [1])) == 1
    assert min(sizes.get("1f1b", [4])) == 4
    assert max(map(max, sizes.values())) == 4 * MOST_SIMULATED


def test_1f1b_alone_is_refused_with_too_many_micro_batches() -> None:
    just = given_problem(MOST_SIMULATED, schedules=("1f1b",), micro_batch_sizes=(1,))
    assert just.combinations()
    given = given_problem(MOST_SIMULATED + 1, schedules=("1f1b",), micro_batch_sizes=(1,))

    with pytest.raises(PlanError, match=r"4097 micro-batches .*at most 4096: choose larger"):
        given.combinations()


def test_what_was_not_looked_at_is_noted() -> None:
    sizes = {"micro_batch_sizes": (1, 2, 1024)}
    batch = 3 * MOST_SIMULATED

    answer = answer_of(given_problem(batch, schedules=BOTH, **sizes))

    (note,) = [note for note in answer.notes if "was not looked at" in note]
    assert note == (
        "1f1b was not looked at with micro-batches of up to 2 samples: steps of more than 4,096 "
        "micro-batches take too long to simulate"
    )
    for given in (
        given_problem(batch, **sizes),
        given_problem(batch, schedules=BOTH, micro_batch_sizes=(1024,)),
    ):
        assert not any("not looked at" in note for note in answer_of(given).notes)


# -- functions -----------------------------------------------------------------------------------


def no_search(*_: Any, **__: Any) -> None:
    raise AssertionError("there is nothing to search")


@pytest.mark.parametrize("ask", ["plan", "front"])
def test_more_stages_than_functions_are_refused_without_a_search(
    ask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = [layer(f"layer{n}") for n in range(4)]
    for name in ("solve", "find_front"):
        monkeypatch.setattr(planner, name, no_search)

    def asked(most: int) -> None:
        given = problem(*layers, min_stages=3, degrees=(2, 4), max_functions=most)
        if ask == "plan":
            answer_of(given)
        else:
            pareto_front(given.setting, space=given.space)

    # Given one function too few for three stages of two
    with pytest.raises(Infeasible, match=r"3 stages.*5 functions|5 functions.*3 stages"):
        asked(5)
    with pytest.raises(AssertionError, match=re.escape("nothing to search")):
        asked(6)
