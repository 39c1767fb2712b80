"""The job's optimiser over one stage's parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from funcpipe.errors import JobError

if TYPE_CHECKING:
    from funcpipe.job import Job

__all__ = ["make_optimizer"]


def make_optimizer(
    job: Job, parameters: Sequence[nn.Parameter]
) -> tuple[Optimizer | None, Any | None]:
    """(optimiser, learning-rate scheduler or None) over `parameters`, in model order.

    They are given as ``model.parameters()`` would, frozen ones too. Where none is trainable there
    is nothing to optimise: (None, None). Raises `JobError` for optimisers and schedulers that
    need more than the gradients to step, or step anything but these parameters.
    """
    if not any(parameter.requires_grad for parameter in parameters):
        return None, None
    optimizer = job.optimizer(list(parameters))
    if not isinstance(optimizer, Optimizer):
        raise JobError(
            f"job.optimizer(params) returned a {type(optimizer).__name__}; it must return a "
            "torch.optim.Optimizer"
        )
    _check_parameters(optimizer, parameters)
    _check_step(optimizer.step, f"job.optimizer ({type(optimizer).__name__})")
    if job.lr_scheduler is None:
        return optimizer, None
    scheduler = job.lr_scheduler(optimizer)
    if not callable(getattr(scheduler, "step", None)):
        raise JobError(
            f"job.lr_scheduler(optimizer) returned a {type(scheduler).__name__}; it must return a "
            "torch.optim.lr_scheduler.LRScheduler"
        )
    _check_step(scheduler.step, f"job.lr_scheduler ({type(scheduler).__name__})")
    return optimizer, scheduler


def _check_parameters(optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> None:
    own = {id(parameter) for parameter in parameters}
    strangers = [
        tuple(parameter.shape)
        for group in optimizer.param_groups
        for parameter in group["params"]
        if id(parameter) not in own
    ]
    if strangers:
        raise JobError(
            f"job.optimizer(params) returned an optimiser of {len(strangers)} tensors that are not "
            f"among params (the first has shape {strangers[0]}); it must use params alone: every "
            "stage makes its own optimiser of its own parameters"
        )


def _check_step(step: Callable[..., Any], what: str) -> None:
    needed = [
        parameter.name
        for parameter in inspect.signature(step).parameters.values()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    if needed:
        raise JobError(
            f"{what} cannot step without {', '.join(needed)}: optimisers that evaluate the model "
            "again, and schedulers that follow a metric, are not supported. Use one whose step() "
            "needs no argument, such as SGD or Adam"
        )
