"""The user's loss and metrics, called and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from funcpipe.errors import JobError, LossError
from funcpipe.model.sampling import loss_weight_of

if TYPE_CHECKING:
    from funcpipe.job import Job

__all__ = ["Evaluation", "checked_loss", "evaluate_loss", "evaluate_metrics"]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Sums over evaluated samples; add them up, then ask for the `results`.

    `loss_sum` and `weight` are those of a mean loss: ``loss_sum / weight`` is the loss over all.
    For a sum loss `loss_sum` alone is. `metric_sums` are means times samples.
    """

    loss_sum: float
    weight: float
    metric_sums: Mapping[str, float]
    count: int

    def __add__(self, other: Evaluation) -> Evaluation:
        return Evaluation(
            loss_sum=self.loss_sum + other.loss_sum,
            weight=self.weight + other.weight,
            metric_sums={
                name: total + other.metric_sums[name] for name, total in self.metric_sums.items()
            },
            count=self.count + other.count,
        )

    def results(self, loss_reduction: Literal["mean", "sum"]) -> dict[str, float]:
        """``loss`` and each metric over all samples; NaN where nothing counted."""
        loss = self.loss_sum
        if loss_reduction == "mean":
            loss = self.loss_sum / self.weight if self.weight else math.nan
        metrics = {
            name: total / self.count if self.count else math.nan
            for name, total in self.metric_sums.items()
        }
        return {"loss": loss, **metrics}


def checked_loss(job: Job, output: Any, target: Any, *, step: int, micro_batch: int) -> Tensor:
    """``job.loss(output, target)`` as a finite 0-d tensor that can go backward, or `LossError`."""
    loss = scalar_loss(job, output, target)
    value = float(loss.detach())
    if not math.isfinite(value):
        raise LossError(
            f"job.loss(output, target) is {value}. Lower the learning rate, or look for invalid "
            "inputs and targets in these samples",
            step=step + 1,  # as people count
            micro_batch=micro_batch,
        )
    if not loss.requires_grad:
        raise LossError(
            "job.loss(output, target) does not depend on any trainable parameter: all are frozen, "
            "or the loss or a layer detaches what it computes from them",
            step=step + 1,  # as people count
            micro_batch=micro_batch,
        )
    return loss


def scalar_loss(job: Job, output: Any, target: Any) -> Tensor:
    loss = job.loss(output, target)
    if not isinstance(loss, Tensor):
        raise LossError(
            f"job.loss(output, target) returned a {type(loss).__name__}; it must return a tensor "
            "with one element"
        )
    if loss.numel() != 1:
        raise LossError(
            f"job.loss(output, target) returned a tensor of shape {tuple(loss.shape)}; it must "
            "return one number for the micro-batch. Reduce it as the job declares, "
            f"loss_reduction={job.loss_reduction!r}: loss.{job.loss_reduction}(), or "
            f"reduction={job.loss_reduction!r} in torch's losses"
        )
    if not loss.is_floating_point():
        raise LossError(
            f"job.loss(output, target) returned a tensor of {loss.dtype}; it must be floating point"
        )
    return loss.reshape(())


def evaluate_loss(job: Job, output: Any, target: Any, count: int) -> tuple[float, float]:
    """(loss x weight, weight) of `count` samples; for a sum loss (loss, 1)."""
    if job.loss_reduction == "sum":
        return float(scalar_loss(job, output, target)), 1.0
    weight = loss_weight_of(job, num_samples=count, target=target)
    if weight == 0:
        return 0.0, 0.0
    return float(scalar_loss(job, output, target)) * weight, weight


def evaluate_metrics(job: Job, output: Any, target: Any, count: int) -> dict[str, float]:
    """Each metric, a mean over `count` samples, times `count`."""
    sums: dict[str, float] = {}
    for name, metric in job.metrics.items():
        value = metric(output, target)
        if isinstance(value, Tensor) and value.numel() != 1:
            raise JobError(
                f"job.metrics[{name!r}](output, target) returned a tensor of shape "
                f"{tuple(value.shape)}; it must return one number, the mean over its samples"
            )
        if not isinstance(value, Tensor | int | float):
            raise JobError(
                f"job.metrics[{name!r}](output, target) returned a {type(value).__name__}; it must "
                "return one number, the mean over its samples"
            )
        sums[name] = float(value) * count
    return sums
