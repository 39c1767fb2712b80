"""Whole runs by functions of their own: code from the bundle, other stores, memory of a stage."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import funcpipe as fp
from funcpipe.emulator.server import RunningServer, start_server
from funcpipe.report.text import summary_text
from tests.transparency.compare import EXACT, assert_equal_tensors

pytestmark = pytest.mark.timeout(180)

JOB = """
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import funcpipe as fp
from parts.block import Block

print("the job is", __file__)


def model():
    return nn.Sequential(Block(), Block(), nn.Linear(2, 2)).double()


def data():
    rows = [float(word) for word in Path("tables/rows.txt").read_text().split()]
    inputs = torch.tensor(rows, dtype=torch.float64).reshape(-1, 2)
    return TensorDataset(inputs, (torch.arange(len(inputs)) % 3 > 0).long())


def ignoring(output, target):
    return F.cross_entropy(output, target, ignore_index=0)


job = fp.Job(
    model=model,
    loss=ignoring,
    loss_weight=lambda target: float((target != 0).sum()),
    optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    train_data=data,
    batch_size=4,
    include=("tables",),
)
"""
BLOCK = """
import torch
from torch import nn

print("the block is", __file__)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, value):
        return value + torch.tanh(self.linear(value))
"""


def make_tree(folder: Path) -> Path:
    """A job with a module and a table of its own; the last of its three batches is smaller."""
    (folder / "parts").mkdir(parents=True)
    (folder / "tables").mkdir()
    (folder / "job.py").write_text(JOB)
    (folder / "parts" / "block.py").write_text(BLOCK)
    rows = "".join(f"{row * 0.3 - 1.2} {1 - row * 0.25}\n" for row in range(11))
    (folder / "tables" / "rows.txt").write_text(rows)
    return folder / "job.py"


def assert_equals_reference(path: str | None, want: Any) -> None:
    assert path is not None
    assert_equal_tensors(load_file(path), want.state_dict, EXACT)


def test_functions_run_from_the_bundle_and_not_from_the_user_s_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a job whose folder is gone by the time a function has begun to import
    file = make_tree(tmp_path / "mine")
    monkeypatch.chdir(file.parent)
    want = fp.reference(str(file), 2)
    gone: list[str] = []

    def listen(event: Mapping[str, Any]) -> None:
        if event["kind"] == "function_started" and not gone:
            shutil.rmtree(file.parent)
            gone.append(str(file.parent))

    # when it is trained over a directory as the store
    summary = fp.train(
        str(file),
        stages=1,
        replicas=2,
        micro_batch_size=2,
        store=str(tmp_path / "objects"),
        emulate="none",
        run_dir=tmp_path / "run",
        on_event=listen,
    )
    # then it is the plain model, and each function had the job and its module in its own folder
    assert gone
    assert_equals_reference(summary.model_path, want)
    assert list(summary.losses) == pytest.approx(list(want.losses), rel=1e-12)
    logs = [path.read_text() for path in sorted((tmp_path / "run" / "logs").glob("*.log"))]
    folders = [folders_in(log) for log in logs]
    assert len(folders) == 2
    assert all(set(found) == {"job.py", "parts/block.py"} for found in folders)
    own = {found["job.py"] for found in folders}
    assert len(own) == 2
    assert own == {found["parts/block.py"] for found in folders}
    assert str(file.parent) not in own
    # and nothing of the run is left where it ran or in the store
    assert not any(Path(folder).exists() for folder in own)
    assert [path for path in (tmp_path / "objects").rglob("*") if path.is_file()] == []


def folders_in(log: str) -> dict[str, str]:
    """Below which folder a function found each file."""
    found = {}
    for path in re.findall(r"^the (?:job|block) is (.*)$", log, re.MULTILINE):
        name = next(name for name in ("parts/block.py", "job.py") if path.endswith(f"/{name}"))
        found[name] = path.removesuffix(f"/{name}")
    return found


def test_a_store_that_ignores_conditional_writes_is_said_so_and_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make_tree(tmp_path / "mine")
    monkeypatch.chdir(file.parent)
    events: list[Mapping[str, Any]] = []
    summary = fp.train(
        str(file),
        stages=2,
        replicas=1,
        micro_batch_size=3,
        store="juicefs",
        emulate="none",
        run_dir=tmp_path / "run",
        on_event=events.append,
    )
    assert_equals_reference(summary.model_path, fp.reference(str(file), 3))
    assert not summary.if_absent
    assert any("IGNORES conditional writes" in note for note in summary.notes)
    assert "ignores conditional writes" in summary_text(summary)
    assert any(
        one["kind"] == "note" and one["level"] == "warning" and "IGNORES" in one["text"]
        for one in events
    )
    # its leases are settled by reading them back
    assert summary.requests_by_kind["GET lease"] == 2
    assert "LIST" not in summary.requests


NUM_STAGES = 4


@pytest.mark.server
def test_a_worker_holds_its_own_stage_and_little_else(tmp_path: Path) -> None:
    # given a model of more than 400 MB of equal layers, one a stage: the hardest case, since
    # whatever is copied is copied as a quarter of the model
    with start_server("seaweedfs", folder=tmp_path) as server:
        stored = measure(server, "store")
        # when each of four stages is built and run forward, in processes of their own
        with ThreadPoolExecutor(NUM_STAGES) as pool:
            stages = list(pool.map(partial(measure, server), map(str, range(NUM_STAGES))))
    # then none has ever held more than 0.30 of the model's bytes above what it began with
    assert stored["build"] == "meta"
    assert stored["model_bytes"] > 400e6
    assert sum(stage["stage_bytes"] for stage in stages) == stored["model_bytes"]
    shares = [stage["over_base"] / stored["model_bytes"] for stage in stages]
    print(f"shares of the model: {[round(share, 3) for share in shares]}")
    assert max(shares) <= 0.30
    # and the measurement sees at least what must be there
    assert min(shares) >= 1 / NUM_STAGES
    # the driver held the model, and one layer as it is stored
    assert stored["over_base"] <= 1.35 * stored["model_bytes"]


def measure(server: RunningServer, part: str) -> dict[str, Any]:
    script = Path(__file__).parent / "stage_memory.py"
    done = subprocess.run(
        [sys.executable, script, server.url, server.endpoint, str(NUM_STAGES), part],
        env={**os.environ, **server.credentials.to_environment()},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured
