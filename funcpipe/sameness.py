"""Proof that a function sees the job that the driver saw.

Functions import the job anew, on another machine: what it reads from the environment, from
arguments, from unseeded random numbers or from a set's order can differ there, and would train
something else without a word. The driver notes what it saw; functions compare.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import xxhash

from funcpipe import wire
from funcpipe.errors import JobError, ModelError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from funcpipe.job import Job
    from funcpipe.model.sampling import Fetcher

__all__ = [
    "check_same",
    "data_fingerprint",
    "group_options",
    "job_settings",
    "optimizer_settings",
    "weights_digest",
]

_SCALARS = ("batch_size", "epochs", "seed", "loss_reduction", "shuffle", "eval_every")


def job_settings(job: Job) -> dict[str, Any]:
    """The job's fields that are plain values."""
    return {name: getattr(job, name) for name in _SCALARS} | {"metrics": sorted(job.metrics)}


def group_options(group: Mapping[str, Any]) -> str:
    """The options of one of an optimiser's parameter groups, as text that can be compared."""
    options = {
        name: float(value) if hasattr(value, "item") else value
        for name, value in group.items()
        if name != "params"
    }
    return json.dumps(options, sort_keys=True, default=repr)


def optimizer_settings(optimizer: Optimizer | None) -> list[Any]:
    """The optimiser's class, and each group's options and number of parameters."""
    if optimizer is None:
        return []
    groups = [[group_options(group), len(group["params"])] for group in optimizer.param_groups]
    return [type(optimizer).__name__, groups]


def data_fingerprint(fetcher: Fetcher) -> str:
    """A digest of the first, the middle and the last sample; empty if they have no plain bytes."""
    last = fetcher.num_samples - 1
    ids = sorted({0, last // 2, last})
    samples = fetcher.load(ids, step=0, micro_batch=0)
    return _digest(samples)


def weights_digest(tensors: Iterable[Tensor]) -> str:
    """A digest of the tensors' bits: equal for replicas that have stayed the same; or empty."""
    return _digest(tensor.detach().cpu() for tensor in tensors)


def _digest(values: Iterable[Any]) -> str:
    """Of what travels as plain bytes; empty, and so never different, if some of it does not."""
    state = xxhash.xxh3_64()
    try:
        for frame in wire.encode(tuple(values)):
            state.update(frame)
    except ModelError:
        return ""
    return state.hexdigest()


def check_same(what: str, here: Any, there: Any) -> None:
    """`JobError` unless what this function sees is what the driver saw."""
    if json.loads(json.dumps(here)) == json.loads(json.dumps(there)):
        return
    raise JobError(
        f"{what} is not the same in this function as where the run was started: {here} here, "
        f"{there} there. Functions import the job file anew: what it reads from environment "
        "variables or arguments, draws at random without a seed, takes in a set's order or is "
        "given by the script that starts the run does not reach them. Write it into the job file"
    )
