"""What reaches the driver but not its functions, over real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import funcpipe as fp
from funcpipe.errors import FuncpipeError, JobError, ModelError

JOB = """
import os, torch
from torch import nn
from torch.utils.data import TensorDataset
import funcpipe as fp

KIND = os.environ.get("FAULT_KIND", "")

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.conv = nn.Conv2d(1, 2, 3, padding=1).to(memory_format=torch.channels_last)

    def forward(self, value):
        value = torch.tanh(self.b(self.a(value)))
        return self.conv(value.view(-1, 1, 2, 2)).flatten(1)

def model():
    return nn.Sequential(Tied(), nn.Dropout(0.5 if KIND == "dropout" else 0.0), nn.Linear(8, 2))

def data():
    seed = None if KIND == "entropy" else 0
    generator = torch.Generator()
    generator.seed() if seed is None else generator.manual_seed(seed)
    inputs = torch.randn(8, 4, generator=generator)
    return TensorDataset(inputs, torch.arange(8) % 2)

def optimizer(params):
    return torch.optim.SGD(params, lr=0.9 if KIND == "rate" else 0.1)

job = fp.Job(model=model, loss=nn.functional.cross_entropy, optimizer=optimizer,
             train_data=data, batch_size=8 if KIND == "batch" else 4)
"""


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("rate", JobError, "the optimiser is not the same"),
        ("batch", JobError, "the job is not the same"),
        ("dropout", ModelError, "plain attributes of layer '1'"),
        ("entropy", JobError, "is not the same in this function"),
    ],
)
def test_what_does_not_reach_functions_is_refused_by_them(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    error: type[FuncpipeError],
    words: str,
) -> None:
    (tmp_path / "job.py").write_text(JOB)
    monkeypatch.setenv("FAULT_KIND", kind)
    with pytest.raises(error, match=words):
        fp.train(
            str(tmp_path / "job.py"),
            stages=1,
            store=str(tmp_path / "store"),
            emulate="none",
            run_dir=tmp_path / "run",
        )


def test_tied_and_channels_last_weights_come_back(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    job = str(tmp_path / "job.py")
    fp.train(job, stages=1, store=str(tmp_path / "store"), emulate="none", run_dir=tmp_path / "run")
    got = load_file(tmp_path / "run" / "model.safetensors")
    want = fp.reference(job).state_dict
    assert set(got) == set(want)
    for name, tensor in want.items():
        torch.testing.assert_close(got[name], tensor)
    assert torch.equal(got["0.a.weight"], got["0.b.weight"])
