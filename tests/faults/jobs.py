"""A small job with places where something can go wrong."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["line_marked", "write_job"]

JOB = """
import collections, importlib, os, signal, subprocess, sys, threading, time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import funcpipe as fp

FAULT = Path({fault!r})
IN_FUNCTION = Path.cwd() != Path({folder!r})
calls = collections.Counter()


def fault():
    # When it happened; how long the run needs to end is counted from here.
    FAULT.write_text(repr(time.time()))


def nth(what):
    # How often this process has come by, in a function; 0 in the driver.
    calls[what] += IN_FUNCTION
    return calls[what]


class Watched(nn.Linear):
    def forward(self, x):
        {watched}
        return super().forward(x)


class Handed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        {handed}
        return gradient


class Marked(nn.Module):
    def forward(self, x):
        return Handed.apply(x) if self.training else x


class Optimizer(torch.optim.SGD):
    def step(self, closure=None):
        {stepped}
        return super().step(closure)


def loss(output, target):
    {lost}
    return F.cross_entropy(output, target)


def model():
    return nn.Sequential(
        {layers}
    )


class Wide(nn.Module):
    # What it hands on has 8 MB a sample.
    def forward(self, x):
        if self.training:
            fault()
        return x[:, :1].repeat(1, 2_000_000)


class Narrow(nn.Module):
    def forward(self, x):
        return x[:, :8]


class Data(TensorDataset):
    def __getitem__(self, index):
        {loaded}
        return super().__getitem__(index)


def data():
    size = 16
    {sized}
    return Data(torch.linspace(-1, 1, size * 4).reshape(size, 4), torch.arange(size) % 3)


{top}
job = fp.Job(
    model=model, loss=loss, optimizer=lambda p: Optimizer(p, lr=0.1), train_data=data,
    batch_size=4, epochs={epochs}, seed=0,
)
"""
LAYERS = "Watched(4, 8), nn.ReLU(), nn.Linear(8, 8), Marked(), Watched(8, 3),"
SLOTS = ("watched", "handed", "stepped", "lost", "loaded", "sized", "top")


def write_job(folder: Path, *, layers: str = LAYERS, epochs: int = 3, **lines: str) -> Path:
    """A job file with `lines` put in its places: `SLOTS`. ``# here`` marks the guilty line."""
    unknown = set(lines) - set(SLOTS)
    if unknown:
        raise ValueError(f"no such places in the job: {unknown}")
    texts = dict.fromkeys(SLOTS, "pass") | {"layers": layers, "epochs": str(epochs)}
    for name, text in lines.items():
        place = re.search(rf"^( *)\{{{name}\}}", JOB, re.MULTILINE)
        indent = place[1] if place else ""
        texts[name] = text.replace("\n", f"\n{indent}")
    home = folder / "home"
    home.mkdir(parents=True, exist_ok=True)
    path = home / "job.py"
    path.write_text(JOB.format(fault=str(folder / "fault"), folder=str(home), **texts))
    return path


def line_marked(job: Path) -> str | None:
    """``job.py:12 ...: source`` of the line marked ``# here``, as a pattern; None without."""
    for number, line in enumerate(job.read_text().splitlines(), 1):
        if line.endswith("# here"):
            return rf"{job.name}:{number}(?: in [\w<>]+|): {re.escape(line.strip())}"
    return None
