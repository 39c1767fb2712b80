"""A few samples through the whole model: finds what does not fit, and weighs the layers."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from funcpipe.job import Job
from funcpipe.model import rng
from funcpipe.model.chain import Chain, class_name
from funcpipe.model.losses import evaluate_metrics, scalar_loss
from funcpipe.model.values import tensors_in

__all__ = ["Weighed", "weigh_layers"]

FLOPS_PER_ELEMENT = 10.0
"""What an element of a layer's output weighs beside its multiplications: memory traffic."""


@dataclass(frozen=True, kw_only=True)
class Weighed:
    """A layer, tried on a few samples: its relative cost, and the bytes of what it puts out."""

    cost: float
    output_bytes: int


def weigh_layers(job: Job, chain: Chain, inputs: Any, target: Any) -> list[Weighed]:
    """Each layer's relative cost, from its floating-point operations, and its output's size.

    The same model and input shapes give the same weights on every machine, which measured
    seconds would not. Runs copies of the layers, one at a time, in evaluation mode without
    gradients: layers may count their calls or keep results, and `chain` is yet to be stored as it
    was built. Random states are left as they were too. Raises what the model raises, with the
    layer in its notes.
    """
    weights = []
    with rng.preserved(), torch.no_grad():
        value = inputs
        for layer in chain.layers:
            module = _to_try(layer.module)
            counter = FlopCounterMode(display=False)
            try:
                with counter:
                    value = module(value)
            except Exception as error:
                error.add_note(f"in layer {layer.index} ({layer.name}: {class_name(module)})")
                raise
            tensors = list(tensors_in(value))
            elements = sum(tensor.numel() for tensor in tensors)
            cost = counter.get_total_flops() + FLOPS_PER_ELEMENT * elements
            num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            weights.append(Weighed(cost=cost, output_bytes=num_bytes))
        scalar_loss(job, value, target)
        evaluate_metrics(job, value, target, 1)
    return weights


def _to_try(module: nn.Module) -> nn.Module:
    """A copy in evaluation mode, or if it cannot be copied, itself."""
    try:
        return copy.deepcopy(module).eval()
    except Exception:  # noqa: BLE001 - what a user's module holds may refuse in any way
        return module.eval()
