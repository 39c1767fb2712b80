"""`fp.plan`, `fp.pareto` and `fp.evaluate`: what they take, give and refuse."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import funcpipe as fp
from funcpipe.errors import FuncpipeError, Infeasible, PlanError, PlatformError, ProfileError
from funcpipe.partitioner import planner
from funcpipe.partitioner.backend import Outcome, Status
from funcpipe.partitioner.cost import Estimate
from funcpipe.partitioner.objective import Objective
from funcpipe.partitioner.planner import Answer
from funcpipe.partitioner.platform import load_platform
from funcpipe.partitioner.space import Space
from funcpipe.planning import PlanOptions, question

ROOT = Path(__file__).resolve().parents[2]


def profile(num_layers: int = 4) -> fp.ModelProfile:
    layers = tuple(
        fp.LayerProfile(
            name=f"layer{n}",
            forward_s=((0.2,),),
            backward_s=((0.4,),),
            parameter_bytes=4e6,
            activation_bytes=1e6,
            output_bytes=1e5,
        )
        for n in range(num_layers)
    )
    return fp.ModelProfile(name="toy", layers=layers, batch_size=8)


FEW: dict[str, Any] = {"micro_batch_sizes": (2, 4), "degrees": (1, 2), "tiers_mb": (1769, 3538)}


def test_a_plan_covers_the_model_and_says_what_it_takes() -> None:
    plan = fp.plan(profile(), **FEW)

    assert isinstance(plan, fp.Plan)
    assert plan.num_layers == 4
    assert plan.predicted is not None
    told = fp.evaluate(plan, profile())
    assert isinstance(told, Estimate)
    assert plan.predicted["step_s"] == pytest.approx(told.step_s)
    assert plan.predicted["dollars"] == pytest.approx(told.dollars)
    assert plan.predicted["platform"] == "aws-lambda"
    assert told.fits


def test_files_do_as_well(tmp_path: Path) -> None:
    # Given a profile, a platform and a plan in files
    profile().save(tmp_path / "profile.json")
    (tmp_path / "mine.json").write_text(
        (ROOT / "partitioner" / "platforms" / "aws-lambda.json").read_text(encoding="utf-8")
    )
    plan = fp.plan(profile(), **FEW)
    plan.save(tmp_path / "plan.json")
    # When they are named, as a text or as a path
    path = tmp_path / "profile.json"
    platform = tmp_path / "mine.json"
    # Then all is as without
    assert fp.plan(str(path), platform, **FEW) == plan == fp.plan(path, str(platform), **FEW)
    assert fp.plan(path, load_platform("aws-lambda"), **FEW) == plan
    assert fp.evaluate(tmp_path / "plan.json", path) == fp.evaluate(plan, profile())


def test_what_may_be_chosen_is_chosen_from() -> None:
    plan = fp.plan(profile(), objective="min-time", min_stages=2, max_stages=2, **FEW)

    assert len(plan.stages) == 2
    assert plan.micro_batch_size in FEW["micro_batch_sizes"]
    assert {stage.memory_mb for stage in plan.stages} <= set(FEW["tiers_mb"])
    # One value may stand for a list of one
    alone = fp.plan(profile(), micro_batch_sizes=4, degrees=[1], tiers_mb=1769)
    assert (alone.micro_batch_size, alone.degrees[0]) == (4, 1)
    assert alone.stages[0].memory_mb == 1769


def test_objectives_weigh_time_against_dollars() -> None:
    fast = fp.plan(profile(), objective="min-time", **FEW)
    cheap = fp.plan(profile(), objective=Objective(kind="min-cost"), **FEW)

    quick, slow = (fp.evaluate(plan, profile()) for plan in (fast, cheap))
    assert quick.step_s < slow.step_s
    assert quick.dollars > slow.dollars
    # A bound in between
    bound = (quick.step_s + slow.step_s) / 2
    between = fp.evaluate(fp.plan(profile(), max_time_s=bound, **FEW), profile())
    assert between.step_s <= bound
    assert quick.dollars >= between.dollars >= slow.dollars


def test_a_front_goes_from_the_fastest_to_the_cheapest() -> None:
    plans = fp.pareto(profile(), **FEW)

    told = [fp.evaluate(plan, profile()) for plan in plans]
    assert len(told) >= 2
    times, dollars = [one.step_s for one in told], [one.dollars for one in told]
    assert times == sorted(times)
    assert dollars == sorted(dollars, reverse=True)
    best = fp.evaluate(fp.plan(profile(), objective="min-time", **FEW), profile())
    assert times[0] == pytest.approx(best.step_s)


def test_what_was_left_out_is_said_with_the_plan() -> None:
    known = fp.plan(profile(), **FEW).predicted
    alone = fp.plan(profile(), solver="cbc", **FEW).predicted
    chosen = fp.plan(profile(), solver="cbc", schedules="gpipe", **FEW).predicted

    assert known is not None
    assert alone is not None
    assert chosen is not None
    assert any("among gpipe plans" in note for note in alone["notes"])
    assert not any("among gpipe plans" in note for note in known["notes"] + chosen["notes"])


def test_that_no_gpipe_plan_is_better_reaches_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a search that has not ruled out all gpipe plans, and one that has, but not all others
    real = planner.solve

    def answer(proven: bool) -> Answer:
        def solve(*arguments: Any, **named: Any) -> Outcome:
            found = real(*arguments, **named)
            half = found.value / 2
            return replace(found, status=Status.FEASIBLE, bound=half, gpipe_proven=proven)

        monkeypatch.setattr(planner, "solve", solve)
        return question(profile(), PlanOptions.of(FEW)).answer()

    # Then
    assert [answer(proven).gpipe_proven for proven in (False, True)] == [False, True]


def test_a_front_that_cannot_be_is_said_to_be_of_gpipe_plans() -> None:
    with pytest.raises(Infeasible, match=r"among gpipe plans; one of 1f1b may do"):
        fp.pareto(profile(), max_time_s=1e-3, **FEW)


def test_a_batch_of_ones_own_and_figures_of_the_platform_count() -> None:
    plan = fp.plan(profile(), **FEW)

    usual = fp.evaluate(plan, profile())
    larger = fp.evaluate(plan, profile(), batch_size=16)
    free = fp.evaluate(plan, profile(), set={"price.gb_s": 0, "price.put": 0, "price.get": "0"})
    spread = fp.evaluate(plan, profile(), num_steps=10)
    assert larger.step_s > usual.step_s
    assert free.dollars < usual.dollars / 100
    assert spread.dollars > usual.dollars


def test_a_merged_plan_covers_all_layers() -> None:
    plan = fp.plan(profile(6), objective="min-time", merge=3, min_stages=3, **FEW)

    assert plan.num_layers == 6
    assert len(plan.stages) == 3
    asked = question(profile(6), PlanOptions.of({"merge": 3, **FEW}))
    found = asked.answer()
    assert found.estimate == fp.evaluate(found.plan, profile(6))
    assert any("6 layers were put together to 3" in note for note in found.notes)
    assert asked.setting.profile == profile(6)


def test_merging_to_no_fewer_layers_changes_nothing() -> None:
    asked = question(profile(), PlanOptions.of({"merge": 4}))

    assert asked.merged is None
    assert asked.searched is asked.setting


@pytest.mark.parametrize(
    ("options", "kind", "told"),
    [
        ({"degree": 2}, PlanError, "unknown option 'degree'; did you mean degrees?"),
        ({"max_time": 2}, PlanError, "unknown option 'max_time'; did you mean max_time_s?"),
        ({"objective": "min-money"}, PlanError, "unknown objective 'min-money'"),
        ({"objective": 3}, PlanError, "objective is 3"),
        ({"max_time_s": -1}, PlanError, "max_time_s is -1"),
        ({"max_cost": "x"}, PlanError, "max_cost is 'x'"),
        ({"degrees": (2, 3), "per_stage": True}, PlanError, "2 does not divide 3"),
        ({"per_stage": 1}, PlanError, "per_stage is 1"),
        ({"degrees": {1}}, PlanError, "degrees is {1}"),
        ({"degrees": (0,)}, PlanError, r"degrees is \(0,\)"),
        ({"micro_batch_sizes": 16}, PlanError, "larger than the batch of 8"),
        ({"tiers_mb": (100,)}, PlanError, "100 MB is no memory size of aws-lambda"),
        ({"min_stages": 5}, PlanError, "the model has 4 layers"),
        ({"batch_size": 0}, PlanError, "batch_size is 0"),
        ({"schedules": "2f2b"}, PlanError, "known: gpipe, 1f1b"),
        ({"merge": 0}, PlanError, "merge is 0"),
        ({"time_limit_s": 0}, PlanError, "time_limit_s is 0"),
        ({"time_limit_s": 10**400}, PlanError, r"time_limit_s is 10+\.\.\.; expected a number"),
        ({"time_limit_s": math.nan}, PlanError, "time_limit_s is nan"),
        ({"time_limit_s": math.inf}, PlanError, "or None for no limit"),
        ({"max_time_s": 10**400}, PlanError, r"max_time_s is 10+\.\.\.; expected a number"),
        ({"max_cost": 10**5000}, PlanError, r"max_cost is \(int, too long to show\)"),
        ({"batch_size": 10**400}, PlanError, r"batch_size is 10+\.\.\.; a whole number"),
        ({"num_steps": 10**10}, PlanError, "num_steps is 10000000000; a whole number"),
        ({"degrees": None}, PlanError, "degrees is None; expected whole numbers"),
        ({"depths": None}, PlanError, "depths is None; expected whole numbers"),
        ({"degrees": (1, 10**30)}, PlanError, "expected whole numbers from 1 to 1,000,000,000"),
        ({"min_stages": None}, PlanError, "min_stages is None; expected a whole number"),
        ({"max_stages": 10**10}, PlanError, "max_stages is 10000000000; expected a whole number"),
        ({"solver": ["search"]}, PlanError, r"solver is \['search'\]; expected a name"),
        ({"solver": None}, PlanError, "solver is None; expected a name"),
        ({"format": {}}, PlanError, "format is {}; expected a name"),
        ({"merge": 10**30}, PlanError, "merge is 1000000000000000000000000000000; expected"),
        ({"set": {"price.put": 10**5000}}, PlatformError, "price.put was set to"),
        ({"set": {"price.put": {1, 2}}}, PlatformError, "given as a mapping"),
        ({"set": {"price.put": [{1}]}}, PlatformError, "price.put was set to"),
        ({"objective": "weighted:0_1"}, PlanError, "unknown objective 'weighted:0_1'"),
        ({"objective": "weighted: 0.1"}, PlanError, "unknown objective 'weighted: 0.1'"),
        ({"objective": "raw:٠.١"}, PlanError, "unknown objective 'raw:٠.١'"),
        ({"objective": "x" * 5000}, PlanError, r"unknown objective 'x{56}\.\.\.; known"),
        ({"platform": "no\0file.json"}, PlatformError, "there is a NUL byte in its name"),
        ({"set": {1: 2}}, PlatformError, "given as a mapping"),
        ({"set": [1]}, PlatformError, "given as a mapping"),
        ({"set": {"price.gbs": 1}}, PlatformError, "price.gb_s"),
        ({"platform": 7}, PlatformError, "the platform is 7"),
        ({"platform": "none"}, PlanError, "no platform to plan for"),
        ({"platform": "aws-lamda"}, PlatformError, "did you mean aws-lambda?"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_be_asked_is_told(
    options: dict[str, Any], kind: type[FuncpipeError], told: str
) -> None:
    with pytest.raises(kind, match=told):
        fp.plan(profile(), **options)


def test_a_profile_is_needed(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="the profile is a int"):
        fp.plan(3)  # type: ignore[arg-type]
    with pytest.raises(ProfileError, match=r"gone\.json"):
        fp.plan(tmp_path / "gone.json")
    with pytest.raises(PlanError, match="batch"):
        fp.plan(replace(profile(), batch_size=None))
    with pytest.raises(ProfileError, match="the name of the profile's file is empty"):
        fp.plan("")
    with pytest.raises(ProfileError, match="there is a NUL byte in its name"):
        fp.plan("no\0file")


@pytest.mark.parametrize("given", [None, 5, {}, b"plan.json"])
def test_a_plan_or_its_file_is_needed(given: Any) -> None:
    with pytest.raises(PlanError, match=rf"^the plan is a {type(given).__name__}; expected a fun"):
        fp.evaluate(given, profile())
    with pytest.raises(PlanError, match=rf"^the profile is a {type(given).__name__}; expected a M"):
        fp.evaluate(fp.plan(profile(), **FEW), given)


def test_a_plan_in_a_file_without_a_name_is_refused() -> None:
    with pytest.raises(PlanError, match="the name of the plan's file is empty"):
        fp.evaluate("", profile())


def test_what_no_plan_can_keep_is_infeasible() -> None:
    with pytest.raises(Infeasible, match=r"."):
        fp.plan(profile(), max_time_s=1e-3, **FEW)


@pytest.mark.parametrize("name", ["objective", "solver"])
def test_a_front_has_neither_an_objective_nor_a_solver(name: str) -> None:
    with pytest.raises(PlanError, match=f"pareto takes no {name}"):
        fp.pareto(profile(), **{name: "auto"})


def test_the_options_are_those_of_the_space() -> None:
    """And with the same defaults, but for schedules."""
    fields, own = Space.__dataclass_fields__, PlanOptions.__dataclass_fields__

    assert set(fields) <= set(own)
    assert {name: own[name].default for name in fields if name != "schedules"} == {
        name: field.default for name, field in fields.items() if name != "schedules"
    }


@pytest.mark.parametrize(
    ("solver", "schedules"),
    [("auto", ("gpipe", "1f1b")), ("exhaustive", ("gpipe", "1f1b")), ("cbc", ("gpipe",))],
)
def test_schedules_that_nobody_chose_are_those_that_the_solver_knows(
    solver: str, schedules: tuple[str, ...]
) -> None:
    assert PlanOptions(solver=solver).space == Space(schedules=schedules)
    assert PlanOptions(solver=solver, schedules=("1f1b",)).space == Space(schedules=("1f1b",))


def test_bounds_beside_an_objective_replace_its_own() -> None:
    given = Objective(kind="min-time", max_cost=1.0)

    assert PlanOptions(objective=given, max_cost=0.5).bounded_objective == Objective(
        kind="min-time", max_cost=0.5
    )
    assert PlanOptions(objective=given).bounded_objective is not None
    assert PlanOptions(objective=given).bounded_objective == given


def test_planning_needs_neither_torch_nor_an_sdk() -> None:
    code = (
        "import sys, funcpipe as fp\n"
        f"plan = fp.plan({str(ROOT / 'examples' / 'plan' / 'digits.json')!r})\n"
        "found = [name for name in ('torch', 'boto3', 'botocore') if name in sys.modules]\n"
        "sys.exit(f'imported {found}' if found or plan.num_layers != 11 else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
