"""`funcpipe profile` and `fp.profile`: when they measure, what they keep, print and write."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import funcpipe as fp
from funcpipe import cli
from funcpipe.cli_profile import GROUPS, OPTIONS
from funcpipe.driver import profiling
from funcpipe.driver.measuring import Bench
from funcpipe.driver.profile_options import ProfileOptions
from funcpipe.errors import JobError, UserCodeError
from funcpipe.profiles import Point
from tests.unit.made_up import result

JOB = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

import funcpipe as fp

WIDTH = 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, value):
        return helper(self.linear(value))


def helper(value):
    return value.relu()


job = fp.Job(
    model=lambda: nn.Sequential(Block(), Block()),
    loss=nn.MSELoss(),
    optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    train_data=lambda: TensorDataset(torch.ones(8, WIDTH), torch.ones(8, WIDTH)),
    batch_size=4,
)
"""
Shown = pytest.CaptureFixture[str]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Sequence[int], Sequence[int]]]:
    """What is asked to be measured; made up instead, since functions are started elsewhere."""
    asked: list[tuple[Sequence[int], Sequence[int]]] = []

    def measure(bench: Bench, tiers: Sequence[int], sizes: Sequence[int]) -> list[Point]:
        asked.append((tuple(tiers), tuple(sizes)))
        assert bytes(bench.store.get(f"{bench.root}/model/manifest.json"))
        ranges = ((result(range(len(bench.costs)), sizes),),)
        return [Point(memory_mb=1769, vcpu=1.0, dilation=1.0, sizes=tuple(sizes), ranges=ranges)]

    monkeypatch.setattr(profiling, "measure", measure)
    return asked


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "jobs" / "tiny" / "job.py"
    file.parent.mkdir(parents=True)
    file.write_text(JOB)
    return file


def run(job: Path, *options: str) -> int:
    return cli.main(["profile", str(job), "--store", str(job.parents[2] / "store"), *options])


def shown_json(shown: Shown) -> Any:
    return json.loads(shown.readouterr().out)


def test_the_options_are_the_fields_and_their_flags_are_told() -> None:
    assert set(OPTIONS) == {one.name for one in fields(ProfileOptions)}
    flags = [settings["flag"] for group in GROUPS.values() for settings in group.values()
             if "flag" in settings]  # fmt: skip
    assert flags == ["--tiers", "--micro-batches"]
    parsed = cli.build_parser().parse_args(["profile", "j.py", "--tiers", "512,1769"])
    assert isinstance(parsed, argparse.Namespace)
    assert parsed.tiers_mb == (512, 1769)


def test_it_is_measured_once_and_again_when_something_has_changed(
    job: Path, measured: list[Any], shown: Shown
) -> None:
    # When nothing is kept yet
    assert run(job, "--json") == 0
    first = shown_json(shown)
    # Then it is measured and kept
    assert (first["cached"], first["reasons"]) == (False, ["none is kept of this job"])
    assert measured == [((1024, 1769, 3538, 7076, 10240), (1, 2, 4))]
    assert json.loads(Path(first["path"]).read_text()) == first["profile"]
    assert first["profile"]["name"] == "tiny"
    assert first["profile"]["late_s"] == pytest.approx(0.018)
    # When asked again, also with another learning rate, comments and lines
    job.write_text("# a comment\n" + JOB.replace("lr=0.1", "lr=0.2"))
    assert run(job, "--json") == 0
    again = shown_json(shown)
    assert (again["cached"], again["reasons"]) == (True, [])
    assert again["profile"] == first["profile"]
    assert len(measured) == 1
    # When what the model computes changes, in a function that a layer calls
    job.write_text(JOB.replace("value.relu()", "value.relu().relu()"))
    assert run(job, "--json") == 0
    changed = shown_json(shown)
    assert changed["reasons"] == ["the code of the model or the data has changed"]
    # When it is asked for
    assert run(job, "--json", "--fresh") == 0
    assert shown_json(shown)["reasons"] == ["it was asked for"]
    assert len(measured) == 3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("batch_size=4", "batch_size=8"), "the batch has changed: 4 samples -> 8 samples"),
        (("WIDTH = 4", "WIDTH = 5"), "the model's layers have changed"),
        (("SGD(params, lr=0.1)", "SGD(params, lr=0.1, momentum=0.9)"),
         "the optimiser has changed: SGD () -> SGD (momentum)"),
        (("nn.MSELoss()", "nn.L1Loss()"), "the loss has changed"),
    ],
)  # fmt: skip
def test_the_reason_names_what_has_changed(
    job: Path, measured: list[Any], shown: Shown, change: tuple[str, str], reason: str
) -> None:
    run(job, "--json")
    shown_json(shown)
    job.write_text(JOB.replace(*change))
    assert run(job, "--json") == 0
    assert reason in shown_json(shown)["reasons"]
    assert len(measured) == 2


def test_a_damaged_file_is_measured_again_with_the_reason(
    job: Path, measured: list[Any], shown: Shown
) -> None:
    run(job, "--json")
    Path(shown_json(shown)["path"]).write_text("{")
    assert run(job, "--json") == 0
    (reason,) = shown_json(shown)["reasons"]
    assert "the one that is kept is damaged" in reason
    assert len(measured) == 2


def test_where_nothing_can_be_kept_it_is_told_and_the_profile_is_there(
    job: Path, measured: list[Any], shown: Shown, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert run(job, "--json") == 0
    out, err = shown.readouterr()
    assert json.loads(out)["path"] is None
    assert "warning: the profile cannot be kept" in err


def test_the_text_has_a_row_for_each_layer_and_where_it_was_written(
    job: Path, measured: list[Any], shown: Shown, tmp_path: Path
) -> None:
    assert run(job, "-o", "out.json") == 0
    out = shown.readouterr().out
    assert "measured   now: none is kept of this job" in out
    assert "written to out.json" in out
    assert "profile    tiny: 2 layers" in out
    assert fp.ModelProfile.load(tmp_path / "out.json").num_layers == 2


def test_the_job_is_not_overwritten(job: Path, measured: list[Any], shown: Shown) -> None:
    assert run(job, "-o", str(job)) == 1
    assert "it is the job that is read" in shown.readouterr().err
    assert (measured, job.read_text()) == ([], JOB)


def test_nor_is_one_that_is_named_as_a_module(
    job: Path, measured: list[Any], shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(job.parent))
    monkeypatch.chdir(job.parent)
    for name in (job.stem, f"{job.stem}:job"):
        assert cli.main(["profile", name, "-o", job.name]) == 1
        assert "it is the job that is read" in shown.readouterr().err
    assert (measured, job.read_text()) == ([], JOB)


@pytest.mark.parametrize(
    "points", [5, None, {"a": 1}, [{"memory_mb": "x"}], [{"memory_mb": [1]}], [7], []]
)
def test_what_a_kept_profile_says_of_itself_is_not_believed(
    job: Path, measured: list[Any], shown: Shown, points: Any
) -> None:
    run(job, "--json")
    path = Path(shown_json(shown)["path"])
    kept = json.loads(path.read_text())
    kept["measured"] |= {"points": points, "at": "then\x1b[31m"}
    path.write_text(json.dumps(kept))
    assert run(job) == 0
    out = shown.readouterr().out
    assert "measured   before" in out
    assert "\x1b" not in out
    assert len(measured) == 1


def test_a_batch_is_no_larger_than_the_data(job: Path, measured: list[Any], shown: Shown) -> None:
    job.write_text(JOB.replace("batch_size=4", "batch_size=100"))
    assert run(job, "--json") == 0
    told = shown_json(shown)
    assert told["profile"]["batch_size"] == 8
    assert max(measured[0][1]) == 8
    assert run(job, "--fresh") == 0
    text = "the job's batch of 100 samples is more than its data has: a step has 8"
    assert text in " ".join(shown.readouterr().err.split())


@pytest.mark.parametrize("number", ["0", "1001", "99999999999", "x"])
def test_repeats_have_a_bound_that_is_told(job: Path, shown: Shown, number: str) -> None:
    with pytest.raises(SystemExit) as ended:
        run(job, "--repeats", number)
    assert ended.value.code == 2
    assert "expected a whole number from 1 to 1,000" in shown.readouterr().err


def test_what_functions_raise_ends_it_and_nothing_stays_in_the_store(
    job: Path, shown: Shown, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(bench: Bench, *_: object) -> list[Point]:
        raise UserCodeError("the model raised ValueError")

    monkeypatch.setattr(profiling, "measure", fail)
    assert run(job) == 1
    assert "error: the model raised ValueError" in shown.readouterr().err
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []
    assert not (tmp_path / "cache").exists()


def test_from_python(job: Path, measured: list[Any], tmp_path: Path) -> None:
    events: list[Any] = []
    store = str(tmp_path / "store")
    found = fp.profile(str(job), tiers_mb=1769, micro_batch_sizes=[2, 4], store=store,
                       on_event=events.append)  # fmt: skip
    assert found.micro_batch_sizes == (2, 4)
    assert measured == [((1769,), (2, 4))]
    assert [event["kind"] for event in events] == ["profile_started", "profile_ended"]


def test_it_is_not_measured_while_the_job_is_imported(job: Path) -> None:
    job.write_text(JOB + "\nfp.profile(job)\n")
    with pytest.raises(JobError, match=r"fp\.profile was called while the job file"):
        fp.profile(str(job))


@pytest.fixture
def shown(capsys: Shown) -> Shown:
    return capsys
