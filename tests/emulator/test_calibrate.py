"""Plan, train, calibrate and plan again, from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import funcpipe as fp
from funcpipe import cli
from funcpipe.partitioner.plan import Plan
from funcpipe.partitioner.profile import LayerProfile, ModelProfile
from funcpipe.report.summary import read_summary
from funcpipe.schedule.count import requests_per_step
from funcpipe.schedule.program import Shape

pytestmark = pytest.mark.timeout(180)

JOB = f"{Path(__file__).with_name('limit_jobs.py')}:good"
FIGURES = ("time.cold_start_s=0.1", "network.latency_s=0.005", "cpu.vcpu=0.9")
SET = [word for figure in FIGURES for word in ("--set", figure)]


def profile() -> ModelProfile:
    """Of the two layers of the job, which take next to no time, says this."""
    layers = tuple(
        LayerProfile(
            name=name, forward_s=((1e-6,),), backward_s=((1e-6,),), parameter_bytes=64,
            output_bytes=32, activation_bytes=32,
        )
        for name in ("First", "Last")
    )  # fmt: skip
    return ModelProfile(name="good", layers=layers, batch_size=4)


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert cli.main([*map(str, arguments), "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def planned(capsys: pytest.CaptureFixture[str], profile: Path, output: Path) -> dict[str, Any]:
    return run(
        capsys, "plan", "--profile", profile, "-o", output, *SET, "--min-stages", 2,
        "--micro-batch-sizes", 2, "--degrees", 1, "--schedules", "gpipe", "--tiers-mb", 1024,
    )  # fmt: skip


def test_the_second_prediction_is_nearer_to_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a plan for two stages, and its run
    known, plan, folder = tmp_path / "known.json", tmp_path / "plan.json", tmp_path / "run"
    profile().save(known)
    first = planned(capsys, known, plan)["estimate"]
    run(
        capsys, "train", JOB, "--plan", plan, "--store", tmp_path / "objects",
        "--run-dir", folder, *SET, "--dilation", 1,
    )  # fmt: skip
    # then its summary says what was measured, beside what the plan says
    summary = read_summary(folder / "summary.json")
    assert summary.plan["predicted"]["step_s"] == first["step_s"]
    assert summary.measured is not None
    assert [one["over_base_bytes"] for one in summary.measured["stages"]] == [
        one.peak_bytes - one.base_bytes for one in summary.functions
    ]
    # and what it counts of a step is what the schedule says
    counted = dict(summary.measured["requests"])
    counted.pop("GET_MISSED", None)
    expected = requests_per_step(Shape(degrees=(1, 1), trains=(True, True)), num_micro_batches=2)
    assert counted == {name: count for name, count in expected.items() if count}
    assert (
        counted["PUT"] * summary.steps
        == sum(summary.requests_by_kind[f"PUT {kind}"] for kind in ("act", "grad")) + summary.steps
    )
    # when
    better = tmp_path / "better.json"
    told = run(capsys, "calibrate", folder, "--profile", known, "-o", better)
    # then the calibrated profile predicts more of the run than the first one did
    measured = told["observed"]["step_s"]
    assert measured == summary.measured["step_s"]
    second = planned(capsys, better, tmp_path / "again.json")
    assert Plan.load(tmp_path / "again.json") == Plan.load(plan)
    step_s = second["estimate"]["step_s"]
    assert abs(step_s - measured) < abs(first["step_s"] - measured)
    # and plans to hold at least what was held
    for one, seen in zip(second["estimate"]["stages"], told["observed"]["stages"], strict=True):
        memory = one["memory_bytes"]
        held = seen["over_base_bytes"]
        assert memory["total"] >= (seen["base_bytes"] + held) * (1 - 1e-9)
        assert memory["base"] >= seen["base_bytes"]
    assert any("was calibrated by run" in note for note in second["notes"])


def test_a_run_that_is_told_of_the_profile_keeps_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    fp.train(
        JOB, profile=profile(), run_dir=folder, store=str(tmp_path / "objects"), emulate="none",
        steps=1,
    )  # fmt: skip
    assert ModelProfile.load(folder / "profile.json") == profile()
    # and a run of one step on no platform has nothing measured
    assert read_summary(folder / "summary.json").measured is None
