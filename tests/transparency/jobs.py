"""Small float64 jobs, each with one thing that tends to break pipelines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from funcpipe.job import Job

WIDTH, CLASSES = 6, 3


def data(num_samples: int = 24) -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(num_samples, WIDTH, generator=generator, dtype=torch.float64)
    return TensorDataset(inputs, torch.randint(0, CLASSES, (num_samples,), generator=generator))


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=0.01)


def adam(params: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(params, lr=0.01)


def job(layers: Callable[[], list[nn.Module]], **changes: Any) -> Job:
    def model() -> nn.Module:
        return nn.Sequential(*layers()).to(torch.float64)

    fields: dict[str, Any] = {
        "model": model,
        "loss": F.cross_entropy,
        "optimizer": sgd,
        "train_data": data,
        "batch_size": 8,
        "epochs": 2,
        "seed": 3,
    }
    return Job(**(fields | changes))


class Residual(nn.Module):
    """A skip connection within one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU())

    def forward(self, value: Tensor) -> Tensor:
        return value + self.inner(value)


def plain() -> list[nn.Module]:
    return [
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()),
        Residual(),
        nn.LayerNorm(WIDTH),
        nn.Linear(WIDTH, CLASSES),
    ]


def with_dropout() -> list[nn.Module]:
    return [
        nn.Linear(WIDTH, WIDTH),
        nn.Dropout(0.5),
        Residual(),
        nn.Dropout(0.3),
        nn.Linear(WIDTH, CLASSES),
    ]


def with_batch_norm() -> list[nn.Module]:
    """Buffers that each forward pass updates; with stages cut evenly, one begins in place."""
    return [
        nn.Linear(WIDTH, WIDTH),
        nn.BatchNorm1d(WIDTH),
        nn.ReLU(inplace=True),
        nn.Dropout(0.3),
        nn.BatchNorm1d(WIDTH, momentum=None),
        nn.Linear(WIDTH, CLASSES),
    ]


def with_frozen_first() -> list[nn.Module]:
    layers = plain()
    for parameter in layers[0].parameters():
        parameter.requires_grad_(False)
    return layers


def with_frozen_between() -> list[nn.Module]:
    layers = plain()
    for layer in layers[1:3]:
        for parameter in layer.parameters():
            parameter.requires_grad_(False)
    return layers


def with_bare_ends() -> list[nn.Module]:
    """Layers without parameters first, at a cut and last, one of them in place."""
    return [
        nn.Flatten(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(inplace=True),
        nn.Linear(WIDTH, CLASSES),
        nn.Identity(),
    ]


class Untouched(nn.Module):
    """Has a parameter that no sample uses: its gradient is None, and weight decay must not act."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.spare = nn.Parameter(torch.ones(3))

    def forward(self, value: Tensor) -> Tensor:
        return torch.tanh(self.linear(value))


def with_untouched() -> list[nn.Module]:
    return [Untouched(), nn.Linear(WIDTH, WIDTH), Untouched(), nn.Linear(WIDTH, CLASSES)]


class Rare(nn.Module):
    """Uses its second branch only for micro-batches whose first input is positive."""

    def __init__(self) -> None:
        super().__init__()
        self.always = nn.Linear(WIDTH, WIDTH)
        self.rare = nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = self.always(value)
        return out + self.rare(value) if float(value[0, 0].detach()) > 0 else out


def with_rare_branch() -> list[nn.Module]:
    return [Rare(), nn.Tanh(), Rare(), nn.Linear(WIDTH, CLASSES)]


class Split(nn.Module):
    """From a tensor to a nested value: a mask, a number and None travel with it."""

    def forward(self, value: Tensor) -> Any:
        return value, {"mask": value > 0, "scale": 2, "nothing": None}, (value.argmax(1), True)


class Middle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Any) -> Any:
        tensor, extra, rest = value
        return self.linear(tensor) * extra["scale"], extra, rest


class Join(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, CLASSES)

    def forward(self, value: Any) -> Tensor:
        tensor, extra, (index, flag) = value
        out: Tensor = self.linear(tensor.masked_fill(extra["mask"], 0.5))
        return out * (1 + index.unsqueeze(1)) if flag and extra["nothing"] is None else out


def with_nested_values() -> list[nn.Module]:
    return [nn.Linear(WIDTH, WIDTH), Split(), Middle(), Middle(), Join()]


def sum_loss(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, reduction="sum")


def ignoring_loss(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, ignore_index=0)


def counted_labels(target: Tensor) -> float:
    return float((target != 0).sum())


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax(1) == target).double().mean()
