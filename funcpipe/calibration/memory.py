"""Memory of a profile, raised by what a run was seen to hold."""

from __future__ import annotations

from dataclasses import dataclass, replace

from funcpipe.calibration.observed import Observed
from funcpipe.partitioner.cost import evaluate
from funcpipe.partitioner.memory import held_micro_batches
from funcpipe.partitioner.plan import Plan
from funcpipe.partitioner.profile import LayerProfile, ModelProfile
from funcpipe.partitioner.setting import Setting

__all__ = ["with_memory"]


def with_memory(
    profile: ModelProfile, plan: Plan, setting: Setting, observed: Observed
) -> ModelProfile:
    """Raised until every stage is planned to hold what it was seen to hold, and never lowered.

    Base and data are measured apart. Of the rest, first what computing needs for a while, since
    what is kept is known by its shapes; then what the optimiser does; what is left is then counted
    as kept.
    """
    base = max([profile.base_memory_bytes, *(seen.base_bytes for seen in observed.stages)])
    data = max([profile.data_bytes, *(seen.data_bytes for seen in observed.stages)])
    profile = replace(profile, base_memory_bytes=base, data_bytes=data)
    for share in (_to_workspace, _to_step_workspace, _to_activations):
        planned = evaluate(replace(setting, profile=profile), plan).stages
        layers = list(profile.layers)
        for number, stage in enumerate(plan.stages):
            seen, memory = observed.stages[number], planned[number].memory
            lack = seen.over_base_bytes + (seen.base_bytes or memory.base) - memory.total
            if lack > 0:
                own = layers[stage.first_layer : stage.stop_layer]
                layers[stage.first_layer : stage.stop_layer] = share(
                    own, lack, _Size.of(setting, plan, number)
                )
        profile = replace(profile, layers=tuple(layers))
    return profile


@dataclass(frozen=True, kw_only=True)
class _Size:
    """samples: of a micro-batch. held: micro-batches between their forward and backward."""

    samples: int
    held: int

    @staticmethod
    def of(setting: Setting, plan: Plan, number: int) -> _Size:
        samples = min(plan.micro_batch_size, setting.batch_size)
        held = held_micro_batches(
            schedule=plan.schedule,
            stage=number,
            num_stages=len(plan.stages),
            degree=plan.stages[number].replicas,
            num_micro_batches=setting.num_micro_batches(samples),
            in_flight=plan.in_flight,
        )
        return _Size(samples=samples, held=1 if plan.stages[number].recompute else max(1, held))


def _to_workspace(layers: list[LayerProfile], lack: float, size: _Size) -> list[LayerProfile]:
    """One layer's counts at a time, so all may need it."""
    more = lack / size.samples
    return [replace(one, workspace_bytes=one.workspace_bytes + more) for one in layers]


def _to_step_workspace(layers: list[LayerProfile], lack: float, _: _Size) -> list[LayerProfile]:
    """As for a workspace: one layer's counts."""
    return [replace(one, step_workspace_bytes=one.step_workspace_bytes + lack) for one in layers]


def _to_activations(layers: list[LayerProfile], lack: float, size: _Size) -> list[LayerProfile]:
    more = lack / size.samples / size.held / len(layers)
    return [replace(one, activation_bytes=one.activation_bytes + more) for one in layers]
