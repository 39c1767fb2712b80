"""A small residual network on scikit-learn's digits: 1,797 real handwritten digits, 8 x 8 pixels.

    funcpipe train examples/digits/job.py --stages 2 --replicas 2

Eleven layers of a plain `nn.Sequential`, so that 1, 2, 3 or 4 stages (and more) are possible.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import funcpipe as fp

NUM_TRAIN = 1437
BATCH_SIZE = 128
EPOCHS = 8
STEPS = EPOCHS * math.ceil(NUM_TRAIN / BATCH_SIZE)
WARM_UP_STEPS = 15


def norm(channels: int) -> nn.Module:
    # GroupNorm looks at one sample at a time. BatchNorm's statistics would be those of a
    # micro-batch, so the trained model would depend on how the batch was cut.
    return nn.GroupNorm(4, channels)


class Residual(nn.Module):
    """Two convolutions beside a shortcut. One layer to funcpipe: a cut never falls inside it."""

    def __init__(self, channels_in: int, channels_out: int, *, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, stride=stride, padding=1, bias=False),
            norm(channels_out),
            nn.ReLU(),
            nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False),
            norm(channels_out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Conv2d(channels_in, channels_out, 1, stride=stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        return F.relu(self.body(images) + self.shortcut(images))


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, bias=False),
        norm(32),
        nn.ReLU(),
        Residual(32, 32),
        Residual(32, 32),
        Residual(32, 64, stride=2),
        Residual(64, 64),
        Residual(64, 64),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(64 * 4 * 4, 10),
    )


def load(*, train: bool) -> TensorDataset:
    # Imported here: functions in the middle of the pipeline read no data and need no scikit-learn.
    from sklearn.datasets import load_digits

    pixels, digits = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 8 - 1
    labels = torch.tensor(digits, dtype=torch.long)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    chosen = order[:NUM_TRAIN] if train else order[NUM_TRAIN:]
    return TensorDataset(images[chosen], labels[chosen])


def loss(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, label_smoothing=0.1)


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax(dim=1) == target).float().mean()


def learning_rate(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    def factor(step: int) -> float:
        decay = 0.5 + 0.5 * math.cos(math.pi * min(1.0, step / STEPS))
        return min(1.0, (step + 1) / WARM_UP_STEPS) * decay

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


job = fp.Job(
    model=build_model,
    loss=loss,
    optimizer=lambda params: torch.optim.SGD(params, lr=0.02, momentum=0.9, weight_decay=5e-4),
    lr_scheduler=learning_rate,
    train_data=lambda: load(train=True),
    eval_data=lambda: load(train=False),
    metrics={"accuracy": accuracy},
    batch_size=BATCH_SIZE,
    epochs=EPOCHS,
    seed=0,
)
