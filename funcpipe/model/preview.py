"""A few samples through the whole model: finds what does not fit, and weighs the layers."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from funcpipe.job import Job
from funcpipe.model import rng
from funcpipe.model.chain import Chain
from funcpipe.model.losses import scalar_loss
from funcpipe.model.values import tensors_in

__all__ = ["weigh_layers"]

FLOPS_PER_ELEMENT = 10.0
"""What an element of a layer's output weighs beside its multiplications: memory traffic."""


def weigh_layers(job: Job, chain: Chain, inputs: Any, target: Any) -> list[float]:
    """Relative cost of each layer, from its floating-point operations on a micro-batch.

    The same model and input shapes give the same weights on every machine, which measured
    seconds would not. Runs in evaluation mode without gradients; random states and training
    modes are left as they were. Raises what the model raises, with the layer in its notes.
    """
    weights = []
    modes = [(m, m.training) for layer in chain.layers for m in layer.module.modules()]
    with rng.preserved(), torch.no_grad():
        value = inputs
        for layer in chain.layers:
            layer.module.eval()
            counter = FlopCounterMode(display=False)
            try:
                with counter:
                    value = layer.module(value)
            except Exception as error:
                kind = type(layer.module).__name__
                error.add_note(f"in layer {layer.index} ({layer.name}: {kind})")
                raise
            elements = sum(tensor.numel() for tensor in tensors_in(value))
            weights.append(counter.get_total_flops() + FLOPS_PER_ELEMENT * elements)
        scalar_loss(job, value, target)
    for module, mode in modes:
        module.training = mode
    return weights
