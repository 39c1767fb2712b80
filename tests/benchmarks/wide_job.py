"""A wide perceptron for the benchmark of predictions: 85 MB of weights in each of four layers.

With its gradient and momentum a layer holds 255 MB, which is what makes memory and gradients, and
not activations, the matter of its plans.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import funcpipe as fp

WIDTH, LAYERS, CLASSES = 4608, 4, 10
NUM_SAMPLES, BATCH_SIZE = 256, 64


def build_model() -> nn.Module:
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS - 1)]
    return nn.Sequential(*layers, nn.Sequential(nn.Linear(WIDTH, WIDTH), Classes()))


class Classes(nn.Module):
    """The mean over as many groups of units as there are classes."""

    def forward(self, hidden: Tensor) -> Tensor:
        kept = hidden[:, : WIDTH // CLASSES * CLASSES]
        scores: Tensor = kept.reshape(len(hidden), CLASSES, -1).mean(dim=2)
        return scores


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(NUM_SAMPLES, WIDTH, generator=generator)
    return TensorDataset(inputs, torch.randint(CLASSES, (NUM_SAMPLES,), generator=generator))


job = fp.Job(
    model=build_model,
    loss=nn.functional.cross_entropy,
    optimizer=lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9),
    train_data=data,
    batch_size=BATCH_SIZE,
    epochs=100,
    seed=0,
)
