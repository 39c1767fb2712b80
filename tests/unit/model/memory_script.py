"""Prints what loading one of four stages, and running it forward, adds to a process's peak.

Run as a script, with a folder for 400 MB of files. The driver's part runs in a child, so that
the peak is the worker's alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from funcpipe.model.build import build_model
from funcpipe.model.chain import chain_of
from funcpipe.model.weights import load_layers, make_manifest, pack_layer

NUM_LAYERS = 32
WIDTH = 1792


def make_job() -> Any:
    return SimpleNamespace(
        model=lambda: nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(NUM_LAYERS))),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        lr_scheduler=None,
        seed=0,
    )


def write(folder: Path) -> None:
    job = make_job()
    chain = chain_of(build_model(job))
    entries = []
    for layer in chain.layers:
        data, entry = pack_layer(layer)
        (folder / str(layer.index)).write_bytes(data)
        entries.append(entry)
    manifest = make_manifest(job, chain, entries)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def fetch_from(folder: Path) -> Any:
    def fetch(index: int, start: int, stop: int) -> memoryview:
        block = np.empty(stop - start + 64, dtype=np.uint8)
        offset = -block.ctypes.data % 64
        view = memoryview(block)[offset : offset + stop - start]
        file = os.open(folder / str(index), os.O_RDONLY)
        try:
            assert os.preadv(file, [view], start) == stop - start
        finally:
            os.close(file)
        return view

    return fetch


def peak_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("no VmHWM")


def measure(folder: Path) -> dict[str, Any]:
    manifest = json.loads((folder / "manifest.json").read_text())
    model_bytes = sum(entry["parameter_bytes"] for entry in manifest["layers"])
    base = peak_bytes()
    layers = load_layers(make_job(), manifest, 8, 16, fetch_from(folder))
    loaded = peak_bytes()
    with torch.no_grad():
        value = torch.randn(8, WIDTH)
        for layer in layers:
            value = layer.module(value)
    forward = peak_bytes()
    return {
        "build": manifest["build"],
        "model_bytes": model_bytes,
        "loaded_share": (loaded - base) / model_bytes,
        "peak_share": (forward - base) / model_bytes,
    }


if __name__ == "__main__":
    if sys.argv[2:] == ["write"]:
        write(Path(sys.argv[1]))
    else:
        subprocess.run([sys.executable, __file__, sys.argv[1], "write"], check=True)
        print(json.dumps(measure(Path(sys.argv[1]))))
