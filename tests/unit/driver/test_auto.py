"""When funcpipe makes the plan itself, and what it asks for then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from funcpipe import api, cli_plan_options
from funcpipe.driver import auto
from funcpipe.driver.auto import PLANNER, is_asked_for, split
from funcpipe.driver.options import SHAPE, RunOptions
from funcpipe.driver.profile_options import ProfileOptions
from funcpipe.driver.profiling import Profiled
from funcpipe.errors import Infeasible, PlanError
from funcpipe.locate import LoadedJob
from funcpipe.partitioner.importers import load_profile
from funcpipe.partitioner.plan import Plan, StagePlan
from funcpipe.planning import PlanOptions

ROOT = Path(__file__).resolve().parents[3]
JOB = str(ROOT / "examples" / "digits" / "job.py")
PROFILE = load_profile(ROOT / "examples" / "plan" / "digits.json")
ONE = Plan(stages=(StagePlan(first_layer=0, stop_layer=11),), micro_batch_size=4)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[ProfileOptions]:
    """What was to be measured, while a known profile stands in for it."""
    calls: list[ProfileOptions] = []

    def profile_job(_: LoadedJob, options: ProfileOptions, **__: Any) -> Profiled:
        calls.append(options)
        return Profiled(profile=PROFILE, cached=True, reasons=(), path=None)

    monkeypatch.setattr(auto, "profile_job", profile_job)
    return calls


def test_the_planner_s_options_are_those_of_the_planner() -> None:
    assert set(PLANNER) < set(PlanOptions.__dataclass_fields__)
    assert not set(PLANNER) & set(RunOptions.__dataclass_fields__)
    assert cli_plan_options.PLANNER == PLANNER


def test_options_are_told_apart() -> None:
    given = {"objective": "min-time", "steps": 5, "recompute": "choose", "max_functions": 4}
    assert split(given) == (
        {"steps": 5},
        {"objective": "min-time", "max_functions": 4, "recompute": "choose"},
    )
    assert split({"recompute": "all"}) == ({"recompute": "all"}, {})


SHAPES: dict[str, Any] = {
    "stages": 2, "replicas": 2, "micro_batch_size": 4, "schedule": "1f1b", "in_flight": 2,
    "sync": "three-phase", "recompute": "all",
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPE)
def test_a_shape_makes_a_simple_plan(name: str) -> None:
    fields = {name: SHAPES[name]} | ({"schedule": "1f1b"} if name == "in_flight" else {})
    options = RunOptions.of(fields)
    assert not is_asked_for(options, {})
    with pytest.raises(PlanError, match=rf"objective: what a plan is searched by.*{name}"):
        is_asked_for(options, {"objective": "min-time"})


def test_a_plan_or_no_platform_leaves_nothing_to_search() -> None:
    assert is_asked_for(RunOptions(), {})
    assert is_asked_for(RunOptions(memory_mb=(512,)), {})
    assert not is_asked_for(RunOptions(plan=ONE), {})
    assert not is_asked_for(RunOptions(emulate="none"), {})
    with pytest.raises(PlanError, match=r"max_functions: .* where plan is given"):
        is_asked_for(RunOptions(plan=ONE), {"max_functions": 3})
    with pytest.raises(PlanError, match="where no platform is emulated"):
        is_asked_for(RunOptions(emulate="none"), {"degrees": 2})


def test_the_plan_is_the_planner_s_for_the_job_and_its_platform(
    asked: list[ProfileOptions],
) -> None:
    # Given a job of 1,437 samples in batches of 128, and a platform with a figure changed
    changed = {"network.latency_s": "0.05"}
    # When a plan is chosen for a run of at most 7 steps
    chosen = api.choose(JOB, steps=7, set=changed, objective="min-time", max_functions=3)
    # Then it is what the planner says of the same
    assert chosen is not None
    options = {"set": changed, "batch_size": 128, "num_steps": 7, "max_functions": 3}
    assert chosen.answer.plan == api.plan(PROFILE, "aws-lambda", "min-time", **options)
    assert chosen.answer.plan.num_functions <= 3
    # and what was measured is that platform
    assert asked == [ProfileOptions(set=changed)]
    # and other goals are told beside, within the same bounds
    assert [one.objective for one in chosen.alternatives] == ["min-cost", "weighted:0.5"]
    for one in chosen.alternatives:
        assert one.answer is not None
        assert one.answer.plan == api.plan(PROFILE, "aws-lambda", one.objective, **options)


def test_one_memory_size_is_what_may_be_chosen(asked: list[ProfileOptions]) -> None:
    chosen = api.choose(JOB, memory_mb=1024, steps=2)
    assert chosen is not None
    assert {stage.memory_mb for stage in chosen.answer.plan.stages} == {1024}
    assert asked == [ProfileOptions(tiers_mb=(1024,))]
    with pytest.raises(PlanError, match="memory_mb and tiers_mb are both given"):
        api.choose(JOB, memory_mb=1024, tiers_mb=(512,))
    with pytest.raises(PlanError, match="2 memory sizes, one for each stage"):
        api.choose(JOB, memory_mb=(1024, 512))
    assert len(asked) == 1  # both before anything was measured


def test_a_job_is_measured_with_a_few_of_many_memory_sizes(asked: list[ProfileOptions]) -> None:
    api.choose(JOB, tiers_mb=(512, 1024, 1280, 1536, 1769, 2048, 2560, 3072, 3538))
    assert asked == [ProfileOptions(tiers_mb=(512, 1280, 1769, 2560, 3538))]


def test_what_cannot_be_kept_is_told(asked: list[ProfileOptions]) -> None:
    with pytest.raises(Infeasible, match="a step takes at least"):
        api.choose(JOB, max_time_s=1e-6)
    assert len(asked) == 1


def test_an_alternative_without_a_plan_says_why(
    asked: list[ProfileOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a search that finds nothing for one of the goals
    found = auto.Question.answer

    def answer(question: auto.Question) -> auto.Answer:
        if str(question.objective) == "min-time":
            raise Infeasible("there is none")
        return found(question)

    monkeypatch.setattr(auto.Question, "answer", answer)
    # When
    chosen = api.choose(JOB, steps=2)
    # Then the plan stands, and it is told
    assert chosen is not None
    none, weighted = chosen.alternatives
    assert (none.answer, none.why, weighted.objective) == (None, "there is none", "weighted:0.5")


def test_the_run_gets_the_plan_and_its_profile(
    asked: list[ProfileOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a driver that only takes notes
    runs: list[RunOptions] = []

    def execute(_: LoadedJob, options: RunOptions, **__: Any) -> None:
        runs.append(options)

    monkeypatch.setattr("funcpipe.driver.run.execute", execute)
    # When a job is trained without a plan, and with a shape
    api.train(JOB, steps=2, memory_mb=2048, objective="min-cost")
    api.train(JOB, steps=2, stages=2)
    # Then the first run has one, with its prediction and what it was made with
    first, second = runs
    assert isinstance(first.plan, Plan)
    assert isinstance(first.plan.predicted, Mapping)
    assert first.plan.predicted["batch_size"] == 128
    assert first == RunOptions(plan=first.plan, profile=PROFILE, steps=2)
    # and the second none, nor was anything measured for it
    assert second == RunOptions(stages=2, steps=2)
    assert len(asked) == 1


def test_choosing_leaves_the_options_alone(asked: list[ProfileOptions]) -> None:
    options = RunOptions(steps=3, memory_mb=(2048,))
    chosen = api.choose(JOB, steps=3, memory_mb=2048)
    assert chosen is not None
    assert chosen.options(options) == replace(
        options, plan=chosen.answer.plan, profile=PROFILE, memory_mb=None
    )
