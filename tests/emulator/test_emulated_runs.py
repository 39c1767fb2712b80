"""Whole runs on an emulated platform: how its limits end them, and that their bill is right."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import funcpipe as fp
from funcpipe.errors import (
    FuncpipeError,
    OutOfMemory,
    PlanError,
    PlatformError,
    Stopped,
    TimeLimitExceeded,
)
from funcpipe.report.summary import Summary, read_summary
from tests.transparency.compare import EXACT, assert_equal_tensors

from .bill_from_events import bill_from_files
from .helpers import left_of

pytestmark = pytest.mark.timeout(180)

JOBS = Path(__file__).with_name("limit_jobs.py")
ROOT = Path(__file__).resolve().parents[2]
QUICK = {"time.cold_start_s": "0.1", "network.latency_s": "0.001", "cpu.vcpu": "0.9"}
NAMES = ("stage0-replica0", "stage1-replica0", "stage1-replica1")


@dataclass
class Ran:
    folder: Path
    error: FuncpipeError | None = None
    events: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def summary(self) -> Summary:
        return read_summary(self.folder / "summary.json")

    def of(self, kind: str) -> list[Mapping[str, Any]]:
        return [event for event in self.events if event["kind"] == kind]


def train(
    folder: Path,
    job: str = "good",
    figures: Mapping[str, str] | None = None,
    on_event: Callable[[Mapping[str, Any]], None] | None = None,
    **options: Any,
) -> Ran:
    """Two stages, the second with two replicas, one micro-batch for each in every step."""
    ran = Ran(folder / "run")

    def listen(event: Mapping[str, Any]) -> None:
        ran.events.append(event)
        if on_event is not None:
            on_event(event)

    chosen: dict[str, Any] = {
        "stages": 2,
        "replicas": (1, 2),
        "micro_batch_size": 2,
        "store": str(folder / "objects"),
        "run_dir": ran.folder,
        "memory_mb": 512,
        "dilation": 1.0,
    }
    if options.get("emulate") != "none":
        chosen["set"] = QUICK | dict(figures or {})
    try:
        fp.train(f"{JOBS}:{job}", on_event=listen, **(chosen | options))
    except FuncpipeError as error:
        ran.error = error
    return ran


def interrupt_at_second_step(event: Mapping[str, Any]) -> None:
    if event["kind"] == "step" and event["step"] == 1:
        os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Ran]]:
    """Runs that several tests look at, each done once."""

    @cache
    def run(name: str) -> Ran:
        folder = tmp_path_factory.mktemp(name)
        match name:
            case "good":
                return train(folder)
            case "hoarding":
                return train(folder, "hoarding")
            case "interrupted":
                return train(folder, "long", on_event=interrupt_at_second_step)
            case "twice":
                return train(folder, figures={"invocation.duplicate_rate": "1"}, emulate_seed=3)
            case _:
                raise ValueError(name)

    return run


Runs = Callable[[str], Ran]


# -- limits ----------------------------------------------------------------------------------


def test_out_of_memory_is_told_as_that_and_nothing_else(runs: Runs) -> None:
    ran = runs("hoarding")
    # the function whose memory it was is named, with what it could have had
    assert type(ran.error) is OutOfMemory
    assert (ran.error.stage, ran.error.replica) in [(1, 0), (1, 1)]
    text = str(ran.error)
    # the report of the first step may have died with the function, on its way
    assert ran.summary.steps in (0, 1)
    assert f"ran out of memory, after {ran.summary.steps} of 4 steps" in text
    assert "512 MB (a tier of aws-lambda)" in text
    assert "--memory-mb" in text
    # in the events too, and the others were only stopped for it
    reasons = {one["name"]: one["reason"] for one in ran.of("delivery")}
    mine = f"stage{ran.error.stage}-replica{ran.error.replica}"
    assert reasons.pop(mine) == "out-of-memory"
    assert set(reasons) == set(NAMES) - {mine}
    assert "out-of-memory" not in reasons.values()
    summary = ran.summary
    assert summary.status == "failed"
    assert summary.error is not None
    assert summary.error["type"] == "OutOfMemory"


def test_a_function_over_its_time_is_named(tmp_path: Path) -> None:
    ran = train(tmp_path, "dawdling", {"time.limit_s": "2"})
    assert type(ran.error) is TimeLimitExceeded
    assert "exceeded the time limit" in str(ran.error)
    assert "ends a function after 2 s" in str(ran.error)
    reasons = {one["name"]: one["reason"] for one in ran.of("delivery")}
    assert reasons[f"stage{ran.error.stage}-replica{ran.error.replica}"] == "time-limit"


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        (
            {"figures": {"invocation.concurrency": "2"}},
            PlanError,
            "needs 3 functions at once; AWS Lambda.* runs 2",
        ),
        ({"memory_mb": 100}, PlanError, "stage 0: 100 MB is no memory size"),
        ({"emulate": "aws-lamda"}, PlatformError, "aws-lamda.*aws-lambda"),
        ({"figures": {"time.limt_s": "4"}}, PlatformError, "time.limt_s.*time.limit_s"),
        ({"figures": {"time.limit_s": "soon"}}, PlatformError, "time.limit_s"),
    ],
)
def test_what_the_platform_has_not_is_refused_before_anything_starts(
    options: dict[str, Any], kind: type[FuncpipeError], text: str, tmp_path: Path
) -> None:
    ran = train(tmp_path, **options)
    assert type(ran.error) is kind
    with pytest.raises(kind, match=text):
        raise ran.error
    assert ran.events == []
    assert list(tmp_path.iterdir()) == []


# -- duplicates ------------------------------------------------------------------------------


def test_duplicates_change_nothing_but_the_bill(runs: Runs) -> None:
    once, twice = runs("good"), runs("twice")
    assert once.error is None
    assert twice.error is None
    models = [Path(str(ran.summary.model_path)).read_bytes() for ran in (once, twice)]
    assert models[0] == models[1]
    want = fp.reference(f"{JOBS}:good", 2).state_dict
    assert_equal_tensors(load_file(str(twice.summary.model_path)), want, EXACT)
    deliveries = {
        name: Counter(one["name"] for one in ran.of("delivery"))
        for name, ran in (("once", once), ("twice", twice))
    }
    assert deliveries == {"once": dict.fromkeys(NAMES, 1), "twice": dict.fromkeys(NAMES, 2)}
    assert {one["delivery"] for one in twice.of("delivery")} == {1, 2}
    charges = twice.summary.bill["charges"] if twice.summary.bill else []
    invoked = [one["quantity"] for one in charges if one["cause"] == "invocations"]
    assert sum(invoked) == 6


# -- the bill --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["good", "hoarding", "interrupted", "twice"])
def test_the_bill_is_the_prices_applied_to_the_events(name: str, runs: Runs) -> None:
    ran = runs(name)
    if name == "interrupted":
        assert type(ran.error) is Stopped
    found = ran.summary.bill
    assert found is not None

    want = bill_from_files(ran.folder / "events.jsonl", ran.folder / "platform.json")

    assert want.deliveries >= 3
    assert found["total"] == pytest.approx(float(want.total), rel=1e-9)
    for key, sums in (("cause", want.by_cause), ("name", want.by_name)):
        dollars: Counter[str] = Counter()
        for charge in found["charges"]:
            dollars[charge[key]] += charge["dollars"]
        assert dict(dollars) == pytest.approx({k: float(v) for k, v in sums.items()}, rel=1e-9)
    # to the last request
    requests = {
        cause: sum(one["quantity"] for one in found["charges"] if one["cause"] == cause)
        for cause in ("PUT", "GET", "missed GET", "LIST", "DELETE")
    }
    counted = dict(want.requests)
    counted["missed GET"] = counted.pop("GET_MISSED", 0)
    assert {cause: count for cause, count in requests.items() if count} == {
        cause: count for cause, count in counted.items() if count
    }


def test_events_tell_of_the_platform_and_of_what_was_spent(runs: Runs) -> None:
    ran = runs("good")
    (emulator,) = ran.of("emulator")
    assert (emulator["platform"], emulator["dilation"]) == ("aws-lambda", 1.0)
    assert emulator["why"].startswith("fixed by the user")
    assert emulator["missing"]  # no machine enforces everything
    # what was spent grows with every step, up to the bill
    spent = [one["dollars"] for one in ran.of("step")]
    for one in ran.of("step"):
        assert sum(one["by_cause"].values()) == pytest.approx(one["dollars"], rel=1e-12)
        assert sum(one["by_name"].values()) == pytest.approx(one["dollars"], rel=1e-12)
        assert {"compute", "initialisation", "PUT"} <= set(one["by_cause"])
    (bill,) = ran.of("bill")
    assert len(spent) == 4
    assert spent[0] > 0
    assert spent == sorted(set(spent))
    assert spent[-1] < bill["dollars"]
    # every function was started once, cold, and billed for that
    assert {one["name"] for one in ran.of("delivery")} == set(NAMES)
    for one in ran.of("delivery"):
        assert (one["cold"], one["init_ms"], one["memory_mb"]) == (True, 100, 512)
        assert one["reason"] == "done"
        assert one["run_ms"] > 0
        assert one["bytes_up"] > 0
    kinds = [event["kind"] for event in ran.events]
    assert kinds.index("emulator") < kinds.index("function_started") < kinds.index("delivery")
    assert kinds.index("delivery") < kinds.index("bill") < kinds.index("run_ended")
    written = (ran.folder / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in written] == kinds


def test_the_summary_s_functions_add_up_to_the_bill(runs: Runs) -> None:
    summary = runs("good").summary
    assert summary.bill is not None
    of_all = [one["dollars"] for one in summary.bill["charges"]]
    others = [
        one["dollars"] for one in summary.bill["charges"] if one["name"] in ("driver", "store")
    ]
    dollars = [one.dollars for one in summary.functions]
    assert len(dollars) == 3
    assert all(one is not None and one > 0 for one in dollars)
    assert sum(filter(None, dollars)) == pytest.approx(sum(of_all) - sum(others), rel=1e-9)
    assert [one.cold_starts for one in summary.functions] == [1, 1, 1]
    assert [one.memory_mb for one in summary.functions] == [512] * 3
    assert summary.emulation is not None
    assert summary.emulation["platform"] == "aws-lambda"


def test_a_run_without_a_platform_has_no_bill(tmp_path: Path) -> None:
    none = {"emulate": "none", "memory_mb": None, "dilation": None}
    ran = train(tmp_path, stages=1, replicas=1, steps=1, **none)
    assert ran.error is None
    assert ran.summary.bill is None


# -- side by side ----------------------------------------------------------------------------


@pytest.mark.server
def test_two_runs_at_once_from_one_folder_do_not_disturb_each_other(tmp_path: Path) -> None:
    # Given: two drivers, each with a store server, in one working folder and one temporary folder.
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    figures = [f"--set={path}={value}" for path, value in QUICK.items()]
    options = ["--stages", "2", "--memory-mb", "512", "--dilation", "1", "--store", "seaweedfs"]
    command = [sys.executable, "-m", "funcpipe", "train", f"{JOBS}:good", *options, *figures]
    both = [
        subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(2)
    ]

    # When
    printed = [one.communicate(timeout=150)[0] for one in both]

    # Then: each has its own run with the same model, and nothing is left of either.
    assert [one.returncode for one in both] == [0, 0], printed
    models = [path.read_bytes() for path in (tmp_path / "runs").glob("*/model.safetensors")]
    assert len(models) == 2
    assert models[0] == models[1]
    # torch makes an empty folder of its own wherever its optimisers are used.
    left = {path.name for path in temporary.iterdir()}
    assert {name for name in left if not name.startswith("torchinductor_")} == set()
    assert left_of(str(tmp_path)) == {}
