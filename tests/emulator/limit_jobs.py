"""Jobs of two layers of which one misbehaves in a function, when a certain sample comes by."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import funcpipe as fp

MARK = 1000.0
HELD: list[bytes] = []


class First(nn.Module):
    """Lets the mark pass, and has something to train."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, value: Tensor) -> Tensor:
        return value * self.scale


class Last(nn.Module):
    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.act = act

    def forward(self, value: Tensor) -> Tensor:
        if "FUNCPIPE_FUNCTION" in os.environ and float(value.detach().max()) > MARK / 2:
            self.act()
        out: Tensor = self.linear(value.clamp(-3, 3))
        return out


def behave() -> None:
    pass


def hoard() -> None:
    HELD.extend(b"x" * (20 << 20) for _ in range(30))


def dawdle() -> None:
    time.sleep(60)


def data() -> TensorDataset:
    """16 samples; in batches of 4 the marked one, the 7th, is of the second."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(16, 4, generator=generator, dtype=torch.float64)
    inputs[6, 0] = MARK
    return TensorDataset(inputs, torch.arange(16) % 3)


def model(act: Callable[[], None]) -> nn.Module:
    return nn.Sequential(First(), Last(act)).double()


def job(act: Callable[[], None], epochs: int = 1) -> fp.Job:
    return fp.Job(
        model=partial(model, act),
        loss=F.cross_entropy,
        optimizer=lambda params: torch.optim.SGD(params, lr=1e-4, momentum=0.9),
        train_data=data,
        batch_size=4,
        epochs=epochs,
        shuffle=False,
    )


good = job(behave)
long = job(behave, epochs=50)
hoarding = job(hoard)
dawdling = job(dawdle)
