"""Measuring with real functions: a whole profile, too little memory, an error, an interrupt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import funcpipe as fp
from funcpipe.errors import UserCodeError

from .helpers import eventually, processes_with

pytestmark = pytest.mark.timeout(180)

JOB = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

import funcpipe as fp


class Layer(nn.Module):
    def __init__(self, megabytes):
        super().__init__()
        self.megabytes = megabytes
        self.linear = nn.Linear(16, 16)

    def forward(self, value):
        value = self.linear(value)
        spare = torch.ones(len(value), self.megabytes << 18)
        return value + spare[:, :1]


job = fp.Job(
    model=lambda: nn.Sequential(Layer(1), Layer({megabytes})),
    loss=nn.MSELoss(),
    optimizer=lambda params: torch.optim.Adam(params),
    train_data=lambda: TensorDataset(torch.ones(32, 16), torch.ones(32, 16)),
    batch_size=16,
)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def write(folder: Path, text: str) -> str:
    file = folder / "job.py"
    file.write_text(text)
    return str(file)


def objects_in(folder: Path) -> list[Path]:
    return [path for path in (folder / "store").rglob("*") if path.is_file()]


def test_a_small_job_is_measured_and_sizes_that_do_not_fit_are_told(folder: Path) -> None:
    # Given a layer that needs 100 MB for each sample for a while, and two memory sizes, one of
    # which has no room for 16 of them
    job = write(folder, JOB.replace("{megabytes}", "100"))
    events: list[Any] = []
    # When
    profile = fp.profile(
        job, tiers_mb=(1024, 3538), micro_batch_sizes=(1, 16), repeats=1,
        store=str(folder / "store"), on_event=events.append,
    )  # fmt: skip
    # Then
    assert [layer.name for layer in profile.layers] == ["0 Layer", "1 Layer"]
    assert profile.micro_batch_sizes == (1, 16)
    assert all(time > 0 for layer in profile.layers for row in layer.forward_s for time in row)
    assert profile.layers[1].parameter_bytes == 4 * 16 * 17
    assert profile.layers[1].optimizer_factor == pytest.approx(2, rel=0.1)
    assert profile.layers[1].workspace_bytes >= 100 << 20
    assert profile.layers[0].workspace_bytes < 20 << 20
    assert profile.layers[0].output_bytes == 64
    assert profile.put_cpu_s > 0
    assert [one["micro_batch_sizes"] for one in profile.measured["points"]] == [[1], [1, 16]]
    assert any("micro-batches of 16 are left out" in one.get("text", "") for one in events)
    assert objects_in(folder) == []


def test_an_error_of_the_model_reaches_the_user(folder: Path) -> None:
    # Given a layer that fails in a function only
    text = JOB.replace("{megabytes}", "1").replace(
        "value = self.linear(value)",
        "value = self.linear(value)\n        if len(value) == 4: raise ValueError('four')",
    )
    with pytest.raises(UserCodeError, match="four") as caught:
        fp.profile(
            write(folder, text), tiers_mb=1769, micro_batch_sizes=4, repeats=1,
            store=str(folder / "store"),
        )  # fmt: skip
    assert "job.py" in str(caught.value)
    assert objects_in(folder) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupt_gives_everything_back(folder: Path, number: signal.Signals) -> None:
    # Given a measurement that is under way
    slow = JOB.replace("{megabytes}", "1").replace(
        "value = self.linear(value)", "import time; time.sleep(0.5); value = self.linear(value)"
    )
    arguments = ["profile", write(folder, slow), "--store", str(folder / "store")]
    with subprocess.Popen(
        [sys.executable, "-m", "funcpipe", *arguments],
        env={**os.environ, "TMPDIR": str(folder)},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        while "1/5" not in process.stderr.readline():
            pass
        assert eventually(lambda: bool(processes_with(f"{folder}/funcpipe")), within_s=30)
        # When
        process.send_signal(number)
        # Then
        killed = number is signal.SIGKILL
        assert process.wait(timeout=60) == (-number if killed else 130)
        assert killed or "stopped: interrupted" in process.stderr.read()
    # what is killed gives nothing back itself: its guards do, but for what lies in another's store
    assert eventually(lambda: processes_with(str(folder)) == [], within_s=30 if killed else 0)
    assert eventually(lambda: left_in(folder) == [], within_s=30 if killed else 0)
    assert killed or objects_in(folder) == []


def left_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith("funcpipe")]
