"""`funcpipe calibrate` on folders as runs leave them, and on others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from funcpipe import cli
from funcpipe.calibration.compare import predicted_step_s
from funcpipe.partitioner.plan import Plan
from funcpipe.partitioner.platform import load_platform
from funcpipe.partitioner.profile import ModelProfile
from funcpipe.report.summary import FunctionSummary, Summary, write_summary

from .made_up import PLAN, layer, platform, profile, setting, simulated

TRUTH = profile(layer("first", 0.3, 0.2), layer("second", 0.3, 0.2))


def summary(**fields: Any) -> Summary:
    held = {"seconds": 1.0, "compute_s": 1.0, "waiting_s": 0.0, "transfer_s": 0.0,
            "base_bytes": 10**8}  # fmt: skip
    functions = tuple(
        FunctionSummary(stage=s, replica=0, layers=f"{s}-{s}", peak_bytes=4 * 10**8, **held)
        for s in (0, 1)
    )
    given = {"run_id": "r7", "status": "done", "job": "job.py", "plan": {}, "platform": "local",
             "store": "x", "if_absent": True, "steps": 6, "epochs": 1,
             "functions": functions}  # fmt: skip
    return Summary(**(given | fields))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run whose steps took longer than predicted."""
    folder = tmp_path / "runs" / "r7"
    folder.mkdir(parents=True)
    predicted = {"step_s": predicted_step_s(setting(profile()), PLAN)}
    Plan(**(PLAN.__dict__ | {"predicted": predicted})).save(folder / "plan.json")
    save(folder / "platform.json", platform().to_dict())
    save(folder / "timeline.json", simulated(setting(TRUTH), PLAN))
    write_summary(summary(), folder / "summary.json")
    profile().save(folder / "profile.json")
    return folder


def save(path: Path, data: object) -> None:
    path.write_text(json.dumps(data), encoding="utf-8")


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert cli.main(["calibrate", *map(str, arguments)]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    return told.err


def test_the_corrected_profile_lies_in_the_folder_and_predicts_the_run(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a run that is called by its id
    monkeypatch.chdir(run.parent.parent)
    # when
    assert cli.main(["calibrate", "r7"]) == 0
    # then what is printed names the run, both predictions and the file
    out = capsys.readouterr().out
    assert out.startswith("Run r7 on aws-lambda, 4 steady steps (quartiles 0.0% apart)\n")
    assert "step, as the plan says" in out
    assert out.count("stage 1: memory over base") == 2
    assert f"The corrected profile is in {Path('runs', 'r7', 'calibrated.json')}" in out
    # and the profile, read again, predicts the run
    found = ModelProfile.load(run / "calibrated.json")
    truth_s = predicted_step_s(setting(TRUTH), PLAN)
    assert predicted_step_s(setting(found), PLAN) == pytest.approx(truth_s, rel=1e-6)


def test_json_has_all_of_it_and_another_file_may_be_named(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a profile that the run was not told of
    other = tmp_path / "other.json"
    (run / "profile.json").rename(other)
    target = tmp_path / "better.json"
    # when
    arguments = ["calibrate", str(run), "--profile", str(other), "-o", str(target), "--json"]
    assert cli.main(arguments) == 0
    # then
    told = json.loads(capsys.readouterr().out)
    assert told["written_to"] == str(target)
    assert ModelProfile.from_dict(told["profile"]) == ModelProfile.load(target)
    before, after = (
        next(row for row in told[when] if row["name"] == "step") for when in ("before", "after")
    )
    assert before["measured"] == after["measured"] == told["observed"]["step_s"]
    assert abs(after["off"]) < 1e-6 < abs(before["off"])
    assert not (run / "calibrated.json").exists()


def test_a_run_without_a_profile_needs_one(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "profile.json").unlink()
    assert "has no profile.json" in (told := refused(capsys, run))
    assert "--profile FILE" in told


def test_the_profile_that_is_read_is_not_replaced(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (run / "profile.json").read_bytes()
    told = refused(capsys, run, "-o", run / "profile.json")
    assert "cannot write the profile to" in told
    assert "it is the profile that is read" in told
    assert (run / "profile.json").read_bytes() == before


@pytest.mark.parametrize("name", ["plan.json", "summary.json", "timeline.json", "platform.json"])
def test_nor_is_what_the_run_left(run: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    before = (run / name).read_bytes()
    assert "it is the run that is read" in refused(capsys, run, "-o", run / name)
    assert (run / name).read_bytes() == before


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("began_at", None), ("began_at", {}), ("rows", None), ("rows", {}), ("rows", [5]),
        ("rows", [[]]), ("rows", [[0, "0F0", "x", 1, 0, 0, 0, 0]]),
        ("rows", [[0, "0X0", 0, 1, 0, 0, 0, 0]]), ("rows", [[0, None, 0, 1, 0, 0, 0, 0]]),
        ("format", 2), ("format", "x"),
    ],
)  # fmt: skip
def test_a_damaged_timeline_is_told(
    run: Path, capsys: pytest.CaptureFixture[str], place: str, value: object
) -> None:
    data = json.loads((run / "timeline.json").read_text())
    (data if place == "format" else data["workers"][0])[place] = value
    save(run / "timeline.json", data)
    told = refused(capsys, run)
    assert "timeline.json is no timeline that tells of batches" in told


def test_standard_output_is_taken(run: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["calibrate", str(run), "-o", "/dev/stdout"])
    assert ended.value.code == 2


def test_runs_that_show_nothing_are_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # given one step
    save(run / "timeline.json", simulated(setting(TRUTH), PLAN, num_steps=1))
    assert "more --steps" in refused(capsys, run)
    # on no platform
    save(run / "platform.json", load_platform("none").to_dict())
    assert "--emulate none" in refused(capsys, run)
    # that was stopped
    write_summary(summary(status="stopped"), run / "summary.json")
    assert "is stopped" in refused(capsys, run)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "it is not JSON"),
        ("[]", "no timeline that tells of batches"),
        ('{"run": {}, "workers": []}', "'num_train'"),
        (
            '{"format": 1, "run": {"num_train": 8, "num_steps": 1, "batch_size": 8}, '
            '"workers": []}',
            "tells of 0 functions, and plan.json beside it of 2",
        ),
    ],
)
def test_files_that_are_none_are_told(
    run: Path, capsys: pytest.CaptureFixture[str], content: str, expected: str
) -> None:
    (run / "timeline.json").write_text(content, encoding="utf-8")
    told = refused(capsys, run)
    assert expected in told
    assert "timeline.json" in told


def test_a_profile_of_other_layers_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile(layer("only", 1.0, 1.0)).save(run / "profile.json")
    assert "the plan covers 2 layers" in refused(capsys, run)
