"""Memory of a profile, raised by what a run was seen to hold."""

from __future__ import annotations

from dataclasses import replace

from funcpipe.calibration.observed import Observed
from funcpipe.partitioner.cost import evaluate
from funcpipe.partitioner.memory import MemoryUse
from funcpipe.partitioner.plan import Plan
from funcpipe.partitioner.profile import LayerProfile, ModelProfile
from funcpipe.partitioner.setting import Setting

__all__ = ["with_memory"]


def with_memory(
    profile: ModelProfile, plan: Plan, setting: Setting, observed: Observed
) -> ModelProfile:
    """Raised until every stage is planned to hold what it was seen to hold, and never lowered.

    Base and data are measured apart. The rest is what the optimiser needs for a while, where its
    step is planned to be the fullest; else what computing does, since what is kept is known by its
    shapes.
    """
    base = max([profile.base_memory_bytes, *(seen.base_bytes for seen in observed.stages)])
    data = max([profile.data_bytes, *(seen.data_bytes for seen in observed.stages)])
    profile = replace(profile, base_memory_bytes=base, data_bytes=data)
    planned = evaluate(replace(setting, profile=profile), plan).stages
    samples = min(plan.micro_batch_size, setting.batch_size)
    layers = list(profile.layers)
    for number, stage in enumerate(plan.stages):
        seen, memory = observed.stages[number], planned[number].memory
        lack = seen.over_base_bytes + (seen.base_bytes or memory.base) - memory.total
        if lack > 0:
            own = layers[stage.first_layer : stage.stop_layer]
            layers[stage.first_layer : stage.stop_layer] = _raised(own, memory, lack, samples)
    return replace(profile, layers=tuple(layers))


def _raised(
    layers: list[LayerProfile], memory: MemoryUse, lack: float, samples: int
) -> list[LayerProfile]:
    """A workspace is one layer's at a time, so all may need it: each has as much more."""
    passes = memory.activations + memory.workspace
    fullest = max(passes, memory.sync, memory.step_workspace)
    if memory.step_workspace == fullest:
        return [
            replace(one, step_workspace_bytes=one.step_workspace_bytes + lack) for one in layers
        ]
    more = (fullest - passes + lack) / samples
    return [replace(one, workspace_bytes=one.workspace_bytes + more) for one in layers]
