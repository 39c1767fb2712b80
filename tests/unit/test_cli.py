"""The command line: what it parses, what it prints where, and how it ends."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

import funcpipe
from funcpipe import api, cli
from funcpipe.cli_plan_options import BY_NAME, PLANNER, flag_of
from funcpipe.driver.auto import split
from funcpipe.driver.options import PLATFORMS, RunOptions
from funcpipe.emulator.server import KINDS
from funcpipe.errors import FuncpipeError, LossError, PlanError, Stopped, describe
from funcpipe.partitioner.plan import METHODS, SCHEDULES, Plan, StagePlan
from funcpipe.planning import PlanOptions
from funcpipe.report.events import EventLog
from funcpipe.report.summary import Summary, read_summary, write_summary

JOB = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
import funcpipe as fp

def data():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(32, 4, generator=generator)
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))

job = fp.Job(
    model=lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)),
    loss=nn.functional.mse_loss,
    optimizer=lambda params: torch.optim.SGD(params, lr=0.05),
    train_data=data,
    eval_data=data,
    batch_size=8,
    epochs=1000,
)
"""
PLAN = Plan(stages=(StagePlan(first_layer=0, stop_layer=3),), micro_batch_size=2)


def summary_of(**changes: Any) -> Summary:
    known: dict[str, Any] = {
        "run_id": "20270105-101502-3fa2c1",
        "status": "done",
        "job": "job.py",
        "plan": PLAN.to_dict(),
        "platform": "local",
        "store": "seaweedfs",
        "if_absent": True,
        "steps": 2,
        "epochs": 1,
        "losses": (2.0, float("nan")),
        "metrics": {"accuracy": 0.5},
    }
    return Summary(**known | changes)


class FakeTrain:
    """Stands in for `api.train`: plays a run's events, writes its folder, returns or raises."""

    def __init__(self, folder: Path, error: BaseException | None = None) -> None:
        self.folder = folder
        self.error = error
        self.calls: list[tuple[Any, dict[str, Any]]] = []

    def __call__(self, job: Any, *, on_event: Any, **options: Any) -> Summary:
        self.calls.append((job, options))
        on_event({"kind": "run_started", "t": 0.0, "run_id": "r", "job": job, **self._place()})
        on_event({"kind": "step", "t": 1.0, "step": 1, "total": 2, "loss": 2.0, "alive": 2})
        summary = summary_of()
        if self.error is not None:
            failed = isinstance(self.error, FuncpipeError) and not isinstance(self.error, Stopped)
            changes = {"status": "failed", "error": describe(self.error)} if failed else {}
            summary = summary_of(**({"status": "stopped"} | changes))
        write_summary(summary, self.folder / "summary.json")
        if self.error is not None:
            raise self.error
        return summary

    def _place(self) -> dict[str, Any]:
        return {"folder": str(self.folder), "platform": "local", "store": "auto"}


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTrain:
    monkeypatch.delenv("FUNCPIPE_TRACEBACK", raising=False)
    monkeypatch.chdir(tmp_path)
    fake = FakeTrain(tmp_path / "out")
    monkeypatch.setattr(api, "train", fake)
    monkeypatch.setattr(api, "choose", lambda *_, **__: None)  # as where a plan's shape is given
    return fake


def options_of(command: str) -> dict[str, argparse.Action]:
    """Option name without dashes -> its action."""
    parser = cli.build_parser()
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return {
        text.removeprefix("--"): action
        for action in commands.choices[command]._actions
        for text in action.option_strings
        if text.startswith("--")
    }


# -- options ---------------------------------------------------------------------------------


def test_the_options_are_those_of_a_run() -> None:
    own = {"help", "json", "traceback"}
    own |= {flag_of(name, BY_NAME[name]).removeprefix("--").replace("-", "_") for name in PLANNER}
    names = {name.replace("-", "_") for name in options_of("train")} - own
    # but for the profile, which nothing on the command line knows
    assert names == {item.name for item in fields(RunOptions)} - {"profile"}
    assert names == set(cli.OPTIONS)


def test_every_option_explains_itself_and_its_default() -> None:
    defaults = {item.name: item.default for item in fields(RunOptions)}
    for name, action in options_of("train").items():
        assert action.help
        default = defaults.get(name.replace("-", "_"))
        if default is not None and default is not MISSING:
            assert f"(default: {default})" in action.help


def test_choices_are_those_that_exist() -> None:
    options = options_of("train")
    assert tuple(options["schedule"].choices or ()) == SCHEDULES
    assert tuple(options["sync"].choices or ()) == METHODS
    assert all(name in str(options["store"].help) for name in ("auto", *KINDS))
    assert all(f"`{name}`" in str(options["platform"].help) for name in PLATFORMS)


def test_only_what_was_given_is_passed_on(train: FakeTrain) -> None:
    assert cli.main(["train", "job.py"]) == 0
    assert train.calls == [("job.py", {})]


def test_every_option_reaches_the_run(train: FakeTrain) -> None:
    # Given every option at once, the plan aside, which excludes others
    given = (
        "--stages 3 --replicas 2,2,1 --micro-batch-size 4 --schedule 1f1b --in-flight 6 "
        "--sync three-phase --platform local --store s3://b/p --endpoint http://h --region r "
        "--threads 2 --run-dir d --steps 5 --report-every 2 --memory-mb 512,512,1024 "
        "--emulate mine.json --set network.latency_s=0.05 --set time.limit_s=60 --dilation 2.5 "
        "--emulate-seed 7 --recompute 0,2"
    )
    # When
    assert cli.main(["train", "pkg.mod:attr", *given.split()]) == 0
    # Then the API takes all of them as they are
    ((job, options),) = train.calls
    assert job == "pkg.mod:attr"
    chosen = RunOptions.of(options)
    assert chosen == RunOptions(
        stages=3,
        replicas=(2, 2, 1),
        micro_batch_size=4,
        schedule="1f1b",
        in_flight=6,
        sync="three-phase",
        platform="local",
        store="s3://b/p",
        endpoint="http://h",
        region="r",
        threads=2,
        run_dir=Path("d"),
        steps=5,
        report_every=2,
        memory_mb=(512, 512, 1024),
        emulate="mine.json",
        set={"network.latency_s": "0.05", "time.limit_s": "60"},
        dilation=2.5,
        emulate_seed=7,
        recompute=(0, 2),
    )
    assert {item.name for item in fields(RunOptions)} - options.keys() == {"plan", "profile"}


def test_the_examples_in_the_help_are_understood(
    train: FakeTrain, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["train", "--help"])
    assert ended.value.code == 0
    examples = re.findall(r"^  funcpipe (train .*)$", capsys.readouterr().out, re.M)
    assert len(examples) >= 4
    for line in examples:
        assert cli.main(line.partition(" >")[0].split()) == 0
        own, planner = split({k: v for k, v in train.calls[-1][1].items() if k != "plan"})
        RunOptions.of(own)
        PlanOptions.of(planner)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("", "COMMAND"),
        ("trian job.py", "'trian'"),
        ("train", "JOB"),
        ("train job.py --stage 2", "unknown option --stage; did you mean --stages?"),
        ("train job.py --run_dir=x", "did you mean --run-dir?"),
        ("train job.py other.py", "unrecognized arguments: other.py"),
        ("train job.py --stages 0", "from 1 to 1,000,000,000, found '0'"),
        ("train job.py --steps -1", "--steps"),
        ("train job.py --replicas 2,x", "such as 2,1; found '2,x'"),
        ("train job.py --plan=", "--plan: expected the name of a file, found an empty one"),
        (
            "train job.py --recompute some",
            "--recompute: expected none, all, choose, or numbers of stages from 0",
        ),
        ("train job.py --recompute 0,-1", "--recompute: expected none, all, choose, or numbers"),
        ("train job.py --dilation 1_0", "--dilation: expected a number, found '1_0'"),
        ("train job.py --emulate-seed 1_0", "--emulate-seed: expected a whole number of at most"),
        ("train job.py --schedule gpip", "'gpip'"),
        ("report", "RUN"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_is_wrong(
    train: FakeTrain, capsys: pytest.CaptureFixture[str], line: str, told: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(line.split())
    shown = capsys.readouterr()
    assert (ended.value.code, shown.out) == (2, "")
    assert told in shown.err
    assert train.calls == []


def test_it_tells_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"funcpipe {funcpipe.__version__}\n"


# -- what it prints, and how it ends -----------------------------------------------------------


def test_progress_goes_to_stderr_and_the_summary_to_stdout(
    train: FakeTrain, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", "job.py"]) == 0
    shown = capsys.readouterr()
    assert "step 1/2" in shown.err
    assert "step 1/2" not in shown.out
    assert shown.out.startswith("Run 20270105-101502-3fa2c1: done after 2 steps")


def test_json_stands_alone_on_stdout(train: FakeTrain, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "job.py", "--json"]) == 0
    shown = capsys.readouterr()
    told = json.loads(shown.out)
    assert told == summary_of().to_dict()
    assert told["losses"] == [2.0, None]
    assert "step 1/2" in shown.err


def test_an_error_is_told_with_its_place_and_where_more_is_written(
    train: FakeTrain, capsys: pytest.CaptureFixture[str]
) -> None:
    where = "job.py:7 in loss: return x.log()"
    train.error = LossError("the loss is nan", stage=1, replica=0, step=3, where=where)
    assert cli.main(["train", "job.py"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"error: the loss is nan [stage 1, replica 0, step 3]\n  at {where}\n" in shown.err
    assert f"written down in {train.folder}: events.jsonl" in shown.err
    assert "Traceback" not in shown.err


def test_a_failed_run_has_its_json_too(
    train: FakeTrain, capsys: pytest.CaptureFixture[str]
) -> None:
    train.error = LossError("the loss is nan", stage=1)
    assert cli.main(["train", "job.py", "--json"]) == 1
    shown = capsys.readouterr()
    told = json.loads(shown.out)
    assert (told["status"], told["error"]["type"]) == ("failed", "LossError")
    assert "error: the loss is nan [stage 1]" in shown.err


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Stopped("stopped by SIGINT")])
def test_a_stopped_run_ends_with_130(
    train: FakeTrain, capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    train.error = error
    assert cli.main(["train", "job.py", "--traceback"]) == 130
    shown = capsys.readouterr()
    assert shown.out == ""
    assert re.search(r"^stopped", shown.err, re.M)
    assert "Traceback" not in shown.err


@pytest.mark.parametrize("way", ["option", "variable"])
@pytest.mark.parametrize("error", [ZeroDivisionError("oh"), PlanError("oh")])
def test_the_trace_is_shown_on_demand(
    train: FakeTrain,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    error: Exception,
) -> None:
    train.error = error
    if way == "variable":
        monkeypatch.setenv("FUNCPIPE_TRACEBACK", "1")
    assert cli.main(["train", "job.py", *(["--traceback"] if way == "option" else [])]) == 1
    shown = capsys.readouterr().err
    assert "Traceback (most recent call last)" in shown
    assert "raise self.error" in shown


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (ZeroDivisionError("oh"), True),
        (FuncpipeError("unexpected KeyError: 'x'"), True),
        (PlanError("no such plan"), False),
        (OSError("no space left"), False),
    ],
)
def test_what_must_be_a_defect_of_ours_is_called_one(
    train: FakeTrain, capsys: pytest.CaptureFixture[str], error: Exception, ours: bool
) -> None:
    train.error = error
    assert cli.main(["train", "job.py"]) == 1
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    assert ("a defect of funcpipe" in shown) is ours


def test_a_display_that_breaks_does_not_end_the_training(
    train: FakeTrain, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Gone:
        encoding = "utf-8"

        def write(self, text: str) -> int:
            raise BrokenPipeError

        def flush(self) -> None:
            raise BrokenPipeError

        def isatty(self) -> bool:
            return False

    monkeypatch.setattr(sys, "stderr", Gone())
    assert cli.main(["train", "job.py"]) == 0
    assert "done after 2 steps" in capsys.readouterr().out


# -- report ----------------------------------------------------------------------------------


def test_report_prints_the_summary_again(
    train: FakeTrain, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train.folder = Path("runs/one")
    assert cli.main(["train", "job.py"]) == 0
    first = capsys.readouterr().out
    for name in ("one", "runs/one", str(Path("runs/one").absolute())):
        assert cli.main(["report", name]) == 0
        assert capsys.readouterr().out == first
    assert cli.main(["report", "one", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == summary_of().to_dict()


def test_report_of_a_run_that_died_tells_its_events(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given a run whose driver was killed while it wrote an event
    events: list[Mapping[str, Any]] = [
        {"kind": "run_started", "t": 0.1, "run_id": "r", "job": "job.py", "store": "auto"},
        {"kind": "plan", "t": 0.2, "plan": PLAN.to_dict(), "steps": 9},
        {"kind": "note", "t": 0.3, "text": "beware", "level": "warning"},
        *(
            {"kind": "step", "t": 1.0 + k, "step": k, "total": 9, "loss": 1 / k}
            for k in range(1, 6)
        ),
    ]
    with EventLog(tmp_path / "events.jsonl") as log:
        for event in events:
            log.append(event)
    with open(tmp_path / "events.jsonl", "ab") as file:
        file.write(b'{"kind":"st')
    # When
    assert cli.main(["report", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert cli.main(["report", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    # Then it says so, and what is known
    assert "no summary.json" in shown.err
    assert "step 1/9" in shown.out
    assert "step 5/9" in shown.out
    assert "step 3/9" not in shown.out
    assert "warning: beware" in shown.out
    assert (told["status"], told["from"], told["run_id"]) == ("unknown", "events.jsonl", "r")
    assert (told["steps"], told["total_steps"]) == (5, 9)
    assert told["losses"] == [1 / k for k in range(1, 6)]
    assert (told["notes"], told["plan"]) == (["beware"], PLAN.to_dict())


def test_report_of_a_run_that_died_at_once_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "events.jsonl").write_bytes(b"")
    assert cli.main(["report", str(tmp_path)]) == 0
    assert "nothing" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("20270105-101502-3fa2c2", "did you mean 20270105-101502-3fa2c1?"),
        ("x", "the last ones in runs are 20270105-101502-3fa2c1"),
        ("runs", "neither summary.json nor events.jsonl"),
    ],
)
def test_report_of_no_run_says_which_there_are(
    train: FakeTrain, capsys: pytest.CaptureFixture[str], name: str, told: str
) -> None:
    Path("runs/20270105-101502-3fa2c1").mkdir(parents=True)
    assert cli.main(["report", name]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert told in shown.err


# -- whole runs ------------------------------------------------------------------------------


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "funcpipe", *arguments]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "job.py").write_text(JOB, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_job_is_trained_and_reported(place: Path) -> None:
    # Given a plan in a file
    PLAN.save(place / "plan.json")
    # When
    line = (
        "train job.py --plan plan.json --store store --run-dir out --steps 2 --emulate none --json"
    )
    done = subprocess.run(command(*line.split()), capture_output=True, text=True, check=False)
    # Then
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told == read_summary(place / "out" / "summary.json").to_dict()
    assert (told["status"], told["steps"], told["plan"]) == ("done", 2, PLAN.to_dict())
    assert Path(told["model_path"]).is_file()
    assert not any(path.is_file() for path in (place / "store").rglob("*"))


def test_ctrl_c_ends_a_run_with_130_and_leaves_nothing(place: Path) -> None:
    # Given a run in the middle of its training, in a process group of its own as in a shell
    temporary = place / "tmp"
    temporary.mkdir()
    line = "train job.py --replicas 2 --store store --run-dir out --emulate none"
    with subprocess.Popen(
        command(*line.split()),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
        start_new_session=True,
        preexec_fn=_heed_interrupts,  # noqa: PLW1509 - nothing but a signal's disposition
    ) as run:
        assert run.stderr is not None
        assert any("step 1/" in text for text in run.stderr)
        assert len(processes_below(temporary)) >= 4
        # When Ctrl-C is pressed
        os.killpg(run.pid, signal.SIGINT)
        out, err = run.communicate()
    # Then
    assert (run.returncode, out) == (130, "")
    assert "stopped" in err
    assert read_summary(place / "out" / "summary.json").status == "stopped"
    assert not any(path.is_file() for path in (place / "store").rglob("*"))
    assert processes_below(temporary) == []
    assert [path.name for path in temporary.iterdir() if "funcpipe" in path.name] == []


def _heed_interrupts() -> None:
    # A shell without job control has its background processes ignore them.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def processes_below(folder: Path) -> list[str]:
    """Processes with `folder` in their command line or environment."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                text = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            except OSError:
                continue
            if os.fsencode(folder) in text:
                found.append(process.name)
    return found


@pytest.mark.parametrize("module", ["funcpipe.cli", "argparse", "funcpipe.planning", "numpy"])
def test_ctrl_c_while_modules_are_loaded_ends_with_130(place: Path, module: str) -> None:
    # Given a process that gets the signal when it looks for a module
    code = f"""
import os, runpy, signal, sys

class Pressed:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Pressed())
sys.argv = ["funcpipe", "plan", "--profile", "some.json"]
runpy.run_module("funcpipe", run_name="__main__", alter_sys=True)
"""
    (place / "some.json").write_text("{}", encoding="utf-8")
    # When
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=_heed_interrupts,
    )
    # Then
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopped: interrupted\n")


@pytest.mark.parametrize("line", ["platforms", "platforms aws-lambda --json", "report out --json"])
def test_a_full_disk_behind_the_output_is_told(place: Path, line: str) -> None:
    write_summary(summary_of(), place / "out" / "summary.json")
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            command(*line.split()), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    told = "error: cannot write to standard output: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, told)


def test_a_reader_that_has_gone_is_no_error(place: Path) -> None:
    write_summary(summary_of(), place / "out" / "summary.json")
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        command("report", "out"), stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")
