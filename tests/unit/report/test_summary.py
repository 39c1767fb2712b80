"""A run's summary: there and back through JSON, and as text."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from funcpipe.errors import FuncpipeError
from funcpipe.report.summary import FunctionSummary, Summary, read_summary, write_summary
from funcpipe.report.text import print_summary, summary_text

PLAN = {
    "version": 1,
    "stages": [
        {"first_layer": 0, "stop_layer": 5, "replicas": 2, "memory_mb": None},
        {"first_layer": 5, "stop_layer": 11, "replicas": 1, "memory_mb": None},
    ],
    "micro_batch_size": 32,
    "schedule": "1f1b",
    "in_flight": 4,
    "sync": "pipelined",
}

FUNCTIONS = tuple(
    FunctionSummary(
        stage=stage,
        replica=replica,
        layers=("0-4", "5-10")[stage],
        seconds=60.1,
        compute_s=31.2,
        waiting_s=20.5,
        transfer_s=12.8,
        peak_bytes=331_000_000,
        base_bytes=262_000_000,
        data_s=1.2 * (1 - stage),
        data_bytes=41_000_000 * (1 - stage),
        start_s=2.4,
        requests=2340,
    )
    for stage, replica in ((1, 0), (0, 1), (0, 0))
)

DONE = Summary(
    run_id="r42",
    status="done",
    job="examples/digits/job.py",
    plan=PLAN,
    platform="local",
    store="seaweedfs",
    if_absent=True,
    notes=("one thread per function",),
    steps=180,
    epochs=15,
    seconds={
        "setup": 5.2,
        "training": 72.0,
        "evaluation": 0.4,
        "export": 0.2,
        "total": 77.8,
        "step": 0.4,
    },
    losses=(2.31, 1.0, 0.52),
    metrics={"accuracy": 0.98611, "loss": 0.61},
    requests={"GET": 3900, "PUT": 4000, "DELETE": 2100, "GET_MISSED": 310},
    requests_by_kind={"PUT act": 720, "GET act": 720, "GET_MISSED act": 200, "PUT report": 1360},
    bytes={"up": 123_456_789, "down": 1_234_567_890},
    driver_requests={"PUT": 22, "GET": 400},
    functions=FUNCTIONS,
    model_path="runs/r42/model.safetensors",
)

FAILED = Summary(
    run_id="r43",
    status="failed",
    error={
        "type": "LossError",
        "message": "the loss is nan",
        "stage": 1,
        "replica": 0,
        "step": 7,
        "where": "job.py:31 in loss: return F.cross_entropy(a, b)",
    },
    job="job.py",
    plan={},
    platform="local",
    store="directory",
    if_absent=False,
    steps=1,
    epochs=1,
    losses=(float("nan"),),
)

GOLDEN_DONE = """\
Run r42: done after 180 steps, 77.8 s

accuracy       0.9861
loss           0.6100
training loss  2.3100 -> 0.5200
seconds        setup 5.2, training 72.0, evaluation 0.4, export 0.2, total 77.8; step 0.400
job            examples/digits/job.py, 15 epochs
plan           2 stages x 2,1 replicas, micro-batches of 32, 1f1b, 4 in flight, pipelined
               synchronisation
ran on         local, store seaweedfs
note           one thread per function
requests       PUT 4,000, GET 3,900, missed GET 310, DELETE 2,100; 10,310 in all, 57.3 per step
of the driver  PUT 22, GET 400
bytes          123.5 MB up, 1.2 GB down

objects   PUT GET missed GET
act       720 720        200
report  1,360   0          0

                        over  base data start data compute transfer waiting total
stage replica layers base MB    MB   MB     s    s       s        s       s     s requests
0           0    0-4    69.0 262.0 41.0   2.4  1.2    31.2     12.8    20.5  60.1    2,340
0           1    0-4    69.0 262.0 41.0   2.4  1.2    31.2     12.8    20.5  60.1    2,340
1           0   5-10    69.0 262.0    -   2.4    -    31.2     12.8    20.5  60.1    2,340

Trained model: runs/r42/model.safetensors
  from safetensors.torch import load_file
  model.load_state_dict(load_file('runs/r42/model.safetensors'))
"""

GOLDEN_FAILED = """\
Run r43: failed after 1 step

  LossError: the loss is nan [stage 1, replica 0, step 7]
    at job.py:31 in loss: return F.cross_entropy(a, b)

training loss  nan -> nan
job            job.py, 1 epoch
plan           none
ran on         local, store directory
warning        this store ignores conditional writes, so leases are not exclusive

No model was written.
"""


def test_a_summary_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "run" / "summary.json"
    write_summary(DONE, path)
    assert read_summary(path) == DONE
    assert [file.name for file in path.parent.iterdir()] == ["summary.json"]


def test_a_summary_of_the_first_version_is_still_read(tmp_path: Path) -> None:
    # given a file of version 1, which knew neither bills nor platforms with memory sizes
    data = {**DONE.to_dict(), "version": 1}
    for name in ("bill", "emulation"):
        del data[name]
    for function in data["functions"]:
        for name in ("memory_mb", "cold_starts", "dollars"):
            del function[name]
    path = tmp_path / "summary.json"
    path.write_text(json.dumps(data))
    # when it is read, then it is the same run without a bill
    assert read_summary(path) == DONE


def test_what_is_not_finite_survives_strict_json(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_summary(FAILED, path)
    json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    found = read_summary(path)
    assert math.isnan(found.losses[0])
    assert dataclasses.replace(found, losses=FAILED.losses) == FAILED


def test_secrets_never_reach_the_file(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_summary(dataclasses.replace(DONE, notes=("key hush-hush",)), path, secrets=["hush-hush"])
    assert "hush" not in path.read_text()
    assert read_summary(path).notes == ("key ***",)


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_summary(DONE, path)
    with pytest.raises(TypeError):
        write_summary(dataclasses.replace(DONE, metrics={"a": object()}), path)  # type: ignore[dict-item]
    assert read_summary(path) == DONE
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[]", "expected a run's summary"),
        ("{}", "version None"),
        ('{"version": 3}', "version 3"),
        ('{"version": 2}', "run_id"),
        ('{"version": 1}', "run_id"),
        (json.dumps({**DONE.to_dict(), "bill": {"charges": [1]}}), "not a bill"),
        (json.dumps({**DONE.to_dict(), "bill": [1]}), "not a bill"),
        (json.dumps({**DONE.to_dict(), "emulation": [1]}), "emulation must be"),
        (json.dumps({**DONE.to_dict(), "extra": 1}), "extra"),
        (json.dumps({**DONE.to_dict(), "status": "fine"}), "'fine'"),
        (json.dumps({**DONE.to_dict(), "losses": 3}), "not a summary"),
        (json.dumps({**DONE.to_dict(), "metrics": [1]}), "not a summary"),
        (json.dumps({**DONE.to_dict(), "functions": [{"stage": 0}]}), "not a summary"),
    ],
)
def test_a_file_that_is_no_summary_is_said_to_be_none(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "summary.json"
    path.write_text(text)
    with pytest.raises(FuncpipeError, match=message):
        read_summary(path)


def test_a_missing_summary_is_an_error_that_names_the_path(tmp_path: Path) -> None:
    with pytest.raises(FuncpipeError, match=r"nothing\.json"):
        read_summary(tmp_path / "nothing.json")


@pytest.mark.parametrize(
    "changes", [{"status": "ok"}, {"version": 7}, {"error": {"type": "X"}}, {"status": "failed"}]
)
def test_a_summary_that_contradicts_itself_cannot_be_made(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be|error"):
        dataclasses.replace(DONE, **changes)


@pytest.mark.parametrize(("summary", "golden"), [(DONE, GOLDEN_DONE), (FAILED, GOLDEN_FAILED)])
def test_the_text_is_as_expected(summary: Summary, golden: str) -> None:
    assert summary_text(summary) == golden


def test_text_fits_the_width_and_stays_plain() -> None:
    for width in (80, 100):
        lines = summary_text(DONE, width=width).splitlines()
        assert max(len(line) for line in lines) <= width
        assert not any("…" in line or "\x1b" in line for line in lines)


def test_the_lines_to_copy_are_never_folded() -> None:
    path = "runs/" + "x" * 150 + "/model.safetensors"
    text = summary_text(dataclasses.replace(DONE, model_path=path))
    assert f"  model.load_state_dict(load_file({path!r}))\n" in text


def test_text_in_square_brackets_is_not_markup() -> None:
    text = summary_text(dataclasses.replace(DONE, notes=("see [red]this[/red]",)))
    assert "see [red]this[/red]" in text


def test_colours_are_for_terminals_only() -> None:
    terminal, pipe = io.StringIO(), io.StringIO()
    print_summary(DONE, Console(file=terminal, force_terminal=True, color_system="standard"))
    print_summary(DONE, Console(file=pipe, force_terminal=False))
    assert "\x1b[" in terminal.getvalue()
    assert pipe.getvalue() == GOLDEN_DONE


WITHOUT = "without cold starts, loading and the driver's requests"


@pytest.mark.parametrize(
    ("predicted", "shown"),
    [
        ({"step_s": 0.4321, "dollars": 0.0012, "platform": "aws-lambda"},
         f"predicted      step 0.432 s, $0.00120 per step on aws-lambda, {WITHOUT}\n"),
        ({"step_s": 2}, f"predicted      step 2.00 s, {WITHOUT}\n"),
        ({"step_s": "soon", "platform": "x"}, ""),
        (None, ""),
        ([1], ""),
    ],
)  # fmt: skip
def test_what_was_predicted_is_beside_what_came(predicted: Any, shown: str) -> None:
    one = dataclasses.replace(DONE, plan={**PLAN, "predicted": predicted})

    text = summary_text(dataclasses.replace(one, emulation={"platform": "aws-lambda"}))

    text = re.sub(r"\n {10,}(?=\S)", " ", text)  # lines that were folded
    assert (shown in text) if shown else ("predicted" not in text)


def test_what_was_predicted_for_a_platform_does_not_compare_with_a_run_on_none() -> None:
    plan = {**PLAN, "predicted": {"step_s": 2, "platform": "aws-lambda"}}

    text = summary_text(dataclasses.replace(DONE, plan=plan, emulation=None))

    assert "step 2.00 s on aws-lambda; this run was on no platform, so that the two do not" in text


@pytest.mark.parametrize(
    ("again", "told"),
    [
        ((), "synchronisation\n"),
        ((1,), "synchronisation, stage 1 recomputes\n"),
        ((0, 2), "synchronisation, stages 0,2 recompute\n"),
    ],
)
def test_the_plan_says_which_stages_recompute(again: tuple[int, ...], told: str) -> None:
    stages = [{"replicas": 1, "recompute": k in again} for k in range(3)]
    plan = {"stages": stages, "sync": "pipelined"}
    text = summary_text(dataclasses.replace(DONE, plan=plan))
    assert told in text.replace("\n               ", " ")
