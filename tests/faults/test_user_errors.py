"""What is wrong with a job is said before anything is started."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from .harness import Driver, assert_clear, assert_nothing_left
from .jobs import line_marked, write_job

LOSS = r"job.py:\d+ in loss: def loss\(output, target\):"


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """A job's mistake, and what is said about it."""

    error: str
    words: str
    where: str | None = None
    """The user's line, where it is not the one that is marked ``# here``."""
    job: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


REFUSED = {
    "does not import": Wrong(
        job={"top": "import no_such_package  # here"},
        error="JobImportError",
        words=r"importing job raised ModuleNotFoundError: No module named 'no_such_package'; inst",
    ),
    "does not parse": Wrong(
        job={"top": "def broken(:  # here"},
        error="JobImportError",
        words=r"importing job raised SyntaxError",
    ),
    "raises while imported": Wrong(
        job={"top": "print(1 / 0, file=sys.stderr)  # here"},
        error="JobImportError",
        words=r"importing job raised ZeroDivisionError: division by zero",
    ),
    "ends python": Wrong(
        job={"top": "sys.exit('enough')  # here"},
        error="JobImportError",
        words=r"ended Python \(sys.exit\)",
    ),
    "trains while imported": Wrong(
        job={"top": "fp.train(__file__)  # here"},
        error="JobError",
        words=r"put the call under if __name__ == '__main__':",
    ),
    "vector loss": Wrong(
        job={"lost": "return F.cross_entropy(output, target, reduction='none')"},
        options={"micro_batch_size": 2},
        error="LossError",
        words=r"returned a tensor of shape \(2,\); it must return one number(.|\n)*loss.mean\(\)",
        where=LOSS,
    ),
    "loss is no tensor": Wrong(
        job={"lost": "return 1.0"},
        where=LOSS,
        error="LossError",
        words=r"returned a float; it must return a tensor with one element",
    ),
    "layers that do not fit": Wrong(
        job={"layers": "nn.Linear(4, 8), nn.ReLU(), nn.Linear(9, 3),"},
        error="UserCodeError",
        words=r"mat1 and mat2 shapes cannot be multiplied \(1x8 and 9x3\)(.|\n)*"
        r"in layer 2 \(2: \S*Linear\)",
    ),
    "a model of another kind": Wrong(
        job={"top": "class Net(nn.Module):\n    pass\nmodel = Net"},
        error="ModelError",
        words=r"nn.Sequential",
    ),
    "the model raises": Wrong(
        job={"top": "def model():\n    raise ValueError('no such size')  # here"},
        error="UserCodeError",
        words=r"building the model raised ValueError: no such size",
    ),
    "the model ends python": Wrong(
        job={"top": "def model():\n    sys.exit(0)  # here"},
        error="UserCodeError",
        words=r"building the model raised SystemExit: 0",
    ),
    "the data raises": Wrong(
        job={"sized": "raise OSError('the tape is torn')  # here"},
        error="UserCodeError",
        words=r"loading the data raised OSError: the tape is torn",
    ),
    "the optimiser raises": Wrong(
        job={"top": "def Optimizer(p, lr):\n    raise ValueError('odd')  # here"},
        error="UserCodeError",
        words=r"making the optimiser raised ValueError: odd",
    ),
    "more stages than layers": Wrong(
        options={"stages": 6},
        error="PlanError",
        words=r"6 stages.*5 layers|5 layers.*6 stages",
    ),
    "unknown platform": Wrong(
        options={"platform": "mainframe"},
        error="PlatformError",
        words=r"unknown platform 'mainframe'; known: local",
    ),
    "unknown option": Wrong(
        options={"stage": 2},
        error="PlanError",
        words=r"unknown option 'stage'; did you mean 'stages'",
    ),
    "unknown store": Wrong(
        options={"store": "ftp://somewhere/else"},
        error="StoreError",
        words=r"unknown store 'ftp://somewhere/else'; give auto, minio, ",
    ),
    "a store of one process": Wrong(
        options={"store": "memory:x"},
        error="StoreError",
        words=r"the memory store is for one process; functions cannot reach it",
    ),
    "an endpoint for a directory": Wrong(
        options={"endpoint": "http://127.0.0.1:9000"},
        error="StoreError",
        words=r"--endpoint and --region belong to an S3 URL",
    ),
    "unknown schedule": Wrong(
        options={"schedule": "fifo"}, error="PlanError", words=r"'fifo'.*gpipe"
    ),
}


@pytest.mark.parametrize("wrong", REFUSED.values(), ids=REFUSED.keys())
def test_refused_before_anything_is_started(wrong: Wrong, driver: Driver, tmp_path: Path) -> None:
    job = write_job(tmp_path, **wrong.job)

    ended = driver.train(tmp_path, job, **wrong.options)

    assert ended.error["type"] == wrong.error, ended.text
    assert re.search(wrong.words, ended.text), ended.text
    if where := wrong.where or line_marked(job):
        assert re.fullmatch(where, ended.error.get("where", "")), ended.text
    assert_clear(ended)
    assert_nothing_left(tmp_path)
    assert ended.events == []
    assert not (tmp_path / "run").exists()


def test_a_job_file_that_is_not_there(driver: Driver, tmp_path: Path) -> None:
    job = write_job(tmp_path)

    ended = driver.train(tmp_path, job.with_name("jop.py"))

    assert ended.error["type"] == "JobError"
    assert "did you mean job.py?" in ended.text
    assert_clear(ended)


def test_a_run_folder_that_is_taken_is_left_as_it_is(driver: Driver, tmp_path: Path) -> None:
    job = write_job(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/notes.txt").write_text("mine")

    ended = driver.train(tmp_path, job)

    assert ended.error["type"] == "JobError"
    assert "is not empty; name a new one with --run-dir" in ended.text
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"]
    assert_nothing_left(tmp_path)
