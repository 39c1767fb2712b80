"""A small job in a directory, for functions that measure it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from funcpipe import bundle
from funcpipe.driver.prepare import store_model
from funcpipe.keys import Run
from funcpipe.locate import load_job
from funcpipe.model.build import build_model
from funcpipe.model.chain import chain_of
from funcpipe.profiletask import ProfileTask
from funcpipe.store.open import StoreSpec
from funcpipe.worker.profiler import main

JOB = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

import funcpipe as fp


def data():
    return TensorDataset(torch.randn(10, 8), torch.randn(10, 1))


def loss(output, target):
    if FAILS:
        raise ValueError("no such loss")
    return nn.functional.mse_loss(output, target)


FAILS = False
job = fp.Job(
    model=lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)),
    loss=loss,
    optimizer=lambda params: torch.optim.Adam(params, lr=0.1),
    train_data=data,
    eval_data=data,
    batch_size=8,
    seed=0,
)
"""
ROOT = "profiles/x"


class Stored:
    """A job in a store; runs tasks there and reads what they leave."""

    def __init__(self, folder: Path, text: str = JOB) -> None:
        (folder / "job").mkdir()
        (folder / "job" / "small.py").write_text(text)
        loaded = load_job(folder / "job" / "small.py")
        self.spec = StoreSpec(url=str(folder / "objects"))
        self.store, self.run = self.spec.open(), Run(ROOT)
        self.packed = bundle.pack(loaded)
        self.store.put(self.run.bundle(self.packed.digest), self.packed.data)
        store_model(loaded.job, chain_of(build_model(loaded.job)), self.store, self.run)

    def task(self, first: int = 0, stop: int = 3, **changes: Any) -> ProfileTask:
        fields: dict[str, Any] = {
            "root": ROOT,
            "entry": self.packed.entry,
            "digest": self.packed.digest,
            "store": self.spec,
            "first_layer": first,
            "stop_layer": stop,
            "num_layers": 3,
            "sizes": (1, 4),
            "warmup": 1,
            "repeats": 2,
            "least_s": 0.0,
            "token": f"t{first}-{stop}",
        }
        return ProfileTask(**(fields | changes))

    def profile(self, task: ProfileTask) -> int:
        return main(json.loads(task.encode()))

    def said(self, key: str) -> Any:
        return json.loads(bytes(self.store.get(key)))
