"""Plain PyTorch in one process: the yardstick that a split run is held against.

Written without the stages' code on purpose. What it shares with them defines the run: how the
model is built, which samples are in which micro-batch, and the seeds of random numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from funcpipe.errors import LossError
from funcpipe.model import rng
from funcpipe.model.build import build_data, build_model
from funcpipe.model.chain import Layer, chain_of
from funcpipe.model.sampling import Fetcher, batch_ids, micro_batches, num_batches

if TYPE_CHECKING:
    from funcpipe.job import Job

__all__ = ["Reference", "reference"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Reference:
    """What plain PyTorch gives.

    `losses` has one number per step; `metrics` those of the evaluation at the end (``loss`` too),
    empty without eval_data; `gradients` are the first step's by parameter name, None where
    autograd gives none.
    """

    state_dict: dict[str, Tensor]
    losses: tuple[float, ...]
    metrics: dict[str, float]
    gradients: dict[str, Tensor | None]


def reference(
    job: Job, micro_batch_size: int | None = None, *, steps: int | None = None
) -> Reference:
    """Train `job` in this process, with gradients accumulated over micro-batches.

    `micro_batch_size` None takes each batch whole. `steps` None trains all epochs. Random numbers
    depend on the micro-batches: to compare a run with dropout, take the run's micro-batch size.
    """
    model = build_model(job)
    chain = chain_of(model)
    parameters = list(model.parameters())
    optimizer = job.optimizer(parameters)
    scheduler = None if job.lr_scheduler is None else job.lr_scheduler(optimizer)
    fetcher = _fetcher(job, evaluation=False)
    size = micro_batch_size or job.batch_size
    if steps is None:
        steps = job.epochs * num_batches(fetcher.num_samples, job.batch_size)
    losses: list[float] = []
    gradients: dict[str, Tensor | None] = {}
    model.train()
    for step in range(steps):
        optimizer.zero_grad(set_to_none=True)
        batches = _batches(job, fetcher, step, size)
        losses.append(_accumulate(job, model, chain.layers, batches, step))
        if step == 0:
            gradients = {
                name: None if parameter.grad is None else parameter.grad.clone()
                for name, parameter in model.named_parameters()
            }
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return Reference(
        state_dict={name: tensor.clone() for name, tensor in model.state_dict().items()},
        losses=tuple(losses),
        metrics=_evaluate(job, model, size),
        gradients=gradients,
    )


def _fetcher(job: Job, *, evaluation: bool) -> Fetcher:
    return Fetcher(build_data(job, evaluation=evaluation), seed=job.seed, collate=job.collate)


def _batches(
    job: Job, fetcher: Fetcher, step: int, micro_batch_size: int
) -> list[tuple[Any, Any, float]]:
    """(input, target, weight) of each micro-batch of step `step`."""
    ids = batch_ids(
        seed=job.seed,
        num_samples=fetcher.num_samples,
        batch_size=job.batch_size,
        step=step,
        shuffle=job.shuffle,
    )
    batches = []
    for number, part in enumerate(micro_batches(ids, micro_batch_size)):
        inputs, target = fetcher.load(part, step=step, micro_batch=number)
        batches.append((inputs, target, _weight(job, len(part), target)))
    return batches


def _accumulate(
    job: Job,
    model: nn.Module,
    layers: tuple[Layer, ...],
    batches: list[tuple[Any, Any, float]],
    step: int,
) -> float:
    """Leave the whole batch's gradient in the parameters; returns its loss."""
    whole = 1.0 if job.loss_reduction == "sum" else sum(weight for _, _, weight in batches)
    if whole == 0:
        raise LossError("the weight of the whole batch is 0: its mean loss does not exist")
    total = 0.0
    for number, (inputs, target, weight) in enumerate(batches):
        seed = partial(rng.scope, job.seed, step, number)
        with rng.preserved():
            output = _seeded_forward(model, layers, inputs, seed)
            if weight:
                seed(len(layers))
                loss = job.loss(output, target) * (weight / whole)
                torch.autograd.backward(loss)
                total += loss.item()
    return total


def _weight(job: Job, size: int, target: Any) -> float:
    if job.loss_reduction == "sum":
        return 1.0
    return float(size) if job.loss_weight is None else float(job.loss_weight(target))


def _seeded_forward(
    model: nn.Module, layers: tuple[Layer, ...], inputs: Any, seed: Callable[[int], None]
) -> Any:
    """``model(inputs)``, with `seed(index)` called before each layer runs."""
    handles = [
        layer.module.register_forward_pre_hook(_before(seed, layer.index), prepend=True)
        for layer in layers
    ]
    try:
        return model(inputs)
    finally:
        for handle in handles:
            handle.remove()


def _before(seed: Callable[[int], None], index: int) -> Callable[[nn.Module, Any], None]:
    def hook(module: nn.Module, inputs: Any) -> None:
        seed(index)

    return hook


def _evaluate(job: Job, model: nn.Module, batch_size: int) -> dict[str, float]:
    if job.eval_data is None:
        return {}
    fetcher = _fetcher(job, evaluation=True)
    sums = dict.fromkeys(("loss", *job.metrics), 0.0)
    whole = 0.0
    model.eval()
    with torch.no_grad():
        for number, ids in enumerate(micro_batches(range(fetcher.num_samples), batch_size)):
            inputs, target = fetcher.load(ids, step=0, micro_batch=number)
            output = model(inputs)
            weight = _weight(job, len(ids), target)
            if weight:
                sums["loss"] += float(job.loss(output, target)) * weight
            whole += weight
            for name, metric in job.metrics.items():
                sums[name] += float(metric(output, target)) * len(ids)
    if job.loss_reduction == "mean":
        sums["loss"] = sums["loss"] / whole if whole else float("nan")
    return {
        name: total if name == "loss" else total / fetcher.num_samples
        for name, total in sums.items()
    }
