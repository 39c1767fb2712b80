"""Two jobs for the emulator's benchmark: one waits for its network, one for its arithmetic."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

import funcpipe as fp

SAMPLES, WIDE, DEEP = 128, 65_536, 2048


def data(width: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, width, generator=generator)
    return TensorDataset(inputs, torch.zeros(SAMPLES, 1))


class Spread(nn.Module):
    """A few numbers become many, at no cost: what crosses the cut is large."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value.repeat(1, WIDE // value.shape[1])


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(1))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value * self.factor


class Mean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(1))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value.mean(dim=1, keepdim=True) + self.offset


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().mean()


network_bound = fp.Job(
    model=lambda: nn.Sequential(Scale(), Spread(), Mean()),
    loss=loss,
    optimizer=lambda params: torch.optim.SGD(params, lr=0.01),
    train_data=lambda: data(64),
    batch_size=SAMPLES,
    epochs=100,
    seed=0,
)

compute_bound = fp.Job(
    model=lambda: nn.Sequential(
        *[nn.Sequential(nn.Linear(DEEP, DEEP), nn.Tanh()) for _ in range(8)], nn.Linear(DEEP, 1)
    ),
    loss=loss,
    optimizer=lambda params: torch.optim.SGD(params, lr=0.01),
    train_data=lambda: data(DEEP),
    batch_size=SAMPLES,
    epochs=100,
    seed=0,
)
