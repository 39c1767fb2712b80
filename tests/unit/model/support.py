"""Jobs, small models and a split run by hand, for the tests of funcpipe.model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from funcpipe.model.build import build_data, build_model
from funcpipe.model.chain import chain_of, state_of
from funcpipe.model.losses import Evaluation
from funcpipe.model.sampling import Fetcher, batch_ids, loss_scales, micro_batches
from funcpipe.model.stage import Stage
from funcpipe.model.values import map_tensors


def make_job(**fields: Any) -> Any:
    defaults: dict[str, Any] = {
        "loss": F.cross_entropy,
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        "train_data": lambda: make_samples(8),
        "eval_data": None,
        "batch_size": 8,
        "epochs": 1,
        "seed": 7,
        "loss_reduction": "mean",
        "loss_weight": None,
        "metrics": {},
        "lr_scheduler": None,
        "shuffle": True,
        "collate": None,
        "eval_every": None,
        "include": (),
    }
    return SimpleNamespace(**{**defaults, **fields})


def make_samples(count: int, width: int = 6, classes: int = 4) -> list[tuple[Tensor, int]]:
    inputs = torch.randn(count, width, dtype=torch.float64)
    return [(row, index % classes) for index, row in enumerate(inputs)]


def double(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(*layers).double()


def mlp() -> nn.Sequential:
    return double(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))


@dataclass
class Trace:
    """What a split run gave, in the fields of a `Reference`."""

    state_dict: dict[str, Tensor] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    gradients: dict[str, Tensor | None] = field(default_factory=dict)
    stages: list[Stage] = field(default_factory=list)


def make_stages(job: Any, cuts: Sequence[int], *, recompute: bool = False) -> list[Stage]:
    """Stages that begin at layer 0 and at each of `cuts`."""
    layers = chain_of(build_model(job)).layers
    bounds = [0, *cuts, len(layers)]
    return [
        Stage(layers[start:stop], job=job, num_layers=len(layers), recompute=recompute)
        for start, stop in itertools.pairwise(bounds)
    ]


def crossed(value: Any) -> Any:
    """What comes off the wire: equal, in memory of its own, with the flags kept."""
    return map_tensors(
        value, lambda tensor: tensor.detach().clone().requires_grad_(tensor.requires_grad)
    )


def train(job: Any, cuts: Sequence[int], micro_batch_size: int, *, steps: int = 1) -> Trace:
    """Train split at `cuts`, in one thread: all forward, then backward in reverse, as gpipe."""
    stages = make_stages(job, cuts)
    fetcher = Fetcher(build_data(job), seed=job.seed, collate=job.collate)
    trace = Trace(stages=stages)
    for step in range(steps):
        ids = batch_ids(
            seed=job.seed,
            num_samples=fetcher.num_samples,
            batch_size=job.batch_size,
            step=step,
            shuffle=job.shuffle,
        )
        parts = micro_batches(ids, micro_batch_size)
        pairs = [fetcher.load(part, step=step, micro_batch=k) for k, part in enumerate(parts)]
        scales = loss_scales(job, [len(part) for part in parts], lambda k, of=pairs: of[k][1])
        trace.losses.append(forward_backward(stages, pairs, scales, step))
        if step == 0:
            for stage in stages:
                stage.gradients.finish()
            trace.gradients = gradients_of(stages)
        for stage in stages:
            stage.step(step=step)
    for stage in stages:
        trace.state_dict.update(state_of(stage.layers))
    if job.eval_data is not None:
        trace.metrics = evaluate(job, stages, micro_batch_size)
    return trace


def forward_backward(
    stages: list[Stage], pairs: list[tuple[Any, Any]], scales: list[float], step: int
) -> float:
    loss = 0.0
    for k, (inputs, target) in enumerate(pairs):
        value = inputs
        for stage in stages[:-1]:
            value = crossed(stage.forward(step=step, micro_batch=k, value=value))
        loss += stages[-1].forward(
            step=step, micro_batch=k, value=value, scale=scales[k], target=target
        )
    for k in reversed(range(len(pairs))):
        gradient = None
        for stage in reversed(stages):
            gradient = crossed(stage.backward(micro_batch=k, gradient=gradient))
    return loss


def gradients_of(stages: Sequence[Stage]) -> dict[str, Tensor | None]:
    return {
        f"{layer.name}.{name}": None if parameter.grad is None else parameter.grad.clone()
        for stage in stages
        for layer in stage.layers
        for name, parameter in layer.module.named_parameters()
    }


def evaluate(job: Any, stages: list[Stage], size: int) -> dict[str, float]:
    fetcher = Fetcher(build_data(job, evaluation=True), seed=job.seed, collate=job.collate)
    total: Evaluation | None = None
    for k, ids in enumerate(micro_batches(range(fetcher.num_samples), size)):
        value, target = fetcher.load(ids, step=0, micro_batch=k)
        for stage in stages:
            value = stage.evaluate(value=value, target=target, count=len(ids))
        total = value if total is None else total + value
    assert total is not None
    return total.results(job.loss_reduction)
