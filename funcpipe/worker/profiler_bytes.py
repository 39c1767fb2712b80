"""What the layers of a profiled stage take of memory, from micro-batches of two sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from safetensors.torch import save

from funcpipe.model.chain import Layer, separate, state_of
from funcpipe.model.measure import (
    Kept,
    kept_by_layer,
    optimizer_bytes,
    step_workspaces,
    trained_bytes,
    weight_bytes,
    workspaces,
)
from funcpipe.usercode import user_code
from funcpipe.worker.estimates import line
from funcpipe.worker.memory import forget_peak, peak_bytes, resident_bytes
from funcpipe.worker.profiler_passes import Passes, Times

__all__ = ["measure_bytes"]

HEAP_FACTOR = 1.16
"""Memory that a heap takes for what is kept in it, gaps included, by what is kept.

In runs of a transformer that keeps 235 MB in one, four or eight micro-batches, 26 to 35 MB were
held that nothing else explained.
"""

_SLACK = 1 << 20


def measure_bytes(passes: Passes, times: Times) -> dict[str, Any]:
    """``{"layers": [fields of each layer]}``; bytes per sample where the profile has them so.

    fixed_workspace_bytes: what forward or backward needs for a while whatever the size, such as
    the gradient of a weight before it is added to those of other micro-batches.
    step_workspace_bytes: of the optimiser's step or of storing the trained weights, whichever
    needs more; a stage needs the most over its layers.
    """
    stage, task = passes.built.stage, passes.task
    sizes = sorted({task.sizes[0], task.sizes[-1]})
    kept: list[Kept] = []
    needs: list[list[int]] = []
    for size in sizes:
        passes.prepare(size)
        kept.append(_kept(passes))
        needs.append(
            workspaces(stage, kept[-1], lambda: passes.forward(0), lambda: passes.backward(0))
        )
    with user_code("the optimiser step", roots=passes.built.roots):
        steps = step_workspaces(stage)
    optimizer = optimizer_bytes(stage)
    unseen = passes.context.unseen_file_bytes
    layers = []
    for number, layer in enumerate(stage.layers):
        spare = line(sizes, [need[number] for need in needs])
        layers.append(
            {
                "parameter_bytes": weight_bytes(layer),
                "trained_bytes": trained_bytes(layer),
                "optimizer_bytes": optimizer[number],
                "activation_bytes": HEAP_FACTOR
                * _each(sizes, [one.activation[number] for one in kept]),
                "output_bytes": _each(sizes, [one.output[number] for one in kept]),
                "output_gradient_bytes": _each(sizes, [one.gradient[number] for one in kept]),
                "workspace_bytes": spare.slope,
                "fixed_workspace_bytes": spare.fixed,
                "step_workspace_bytes": max(steps[number], _export_bytes(layer, unseen)),
            }
        )
    return {"layers": layers}


def _kept(passes: Passes) -> Kept:
    value, _ = passes.load(0) if passes.built.stage.is_first else (passes.received(), None)
    kept = kept_by_layer(passes.built.stage, value, lambda: passes.forward(0, value))
    passes.backward(0)
    return kept


def _each(sizes: Sequence[int], values: Sequence[int]) -> float:
    """Per sample, as the largest micro-batch has it."""
    return values[-1] / sizes[-1]


def _export_bytes(layer: Layer, unseen: int) -> int:
    """What storing a layer's trained weights takes for a while, when the run ends."""
    forget_peak()
    before = resident_bytes(unseen_file_bytes=unseen)
    state = separate(state_of((layer,)))
    if peak_bytes(unseen_file_bytes=unseen) > before + _SLACK:
        return 2 * weight_bytes(layer)  # this kernel does not forget peaks: as seen elsewhere
    save(state)
    return max(0, peak_bytes(unseen_file_bytes=unseen) - before)
