"""What a model is allowed to do, but will not do as its author may expect."""

from __future__ import annotations

from torch.nn.modules.batchnorm import _BatchNorm

from funcpipe.model.chain import Chain

__all__ = ["caveats"]


def caveats(chain: Chain) -> list[str]:
    """Warnings about layers whose result depends on how a batch is cut into micro-batches."""
    names = [
        layer.name
        for layer in chain.layers
        if any(isinstance(module, _BatchNorm) for module in layer.module.modules())
    ]
    if not names:
        return []
    return [
        f"batch normalisation in layer {', '.join(names)}: every micro-batch is normalised by its "
        "own statistics, so the result is not the whole batch's, and the running statistics that "
        "are exported are those of each stage's first replica. GroupNorm or LayerNorm do not "
        "depend on the batch"
    ]
