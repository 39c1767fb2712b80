"""What a stage's function holds at its fullest, in bytes."""

from __future__ import annotations

from dataclasses import dataclass

from funcpipe.partitioner.plan import StagePlan
from funcpipe.partitioner.profile import ModelProfile
from funcpipe.schedule.order import share, window
from funcpipe.schedule.program import PREFETCH

__all__ = ["MemoryUse", "held_micro_batches", "memory_use", "parts_held"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryUse:
    """Bytes. base: before anything of the model is there. state: weights, gradients and the
    optimiser's. data: of the data set. transfers: received and not yet used, or not yet sent.

    The others are there one after the other. activations: of the micro-batches between forward and
    backward; workspace: what the forward or backward under way needs beside them. sync: parts of
    the gradient that have arrived, when all backwards are done. step_workspace: what the
    optimiser's step needs, when these are added.
    """

    base: float
    state: float
    data: float
    transfers: float
    activations: float
    workspace: float
    sync: float
    step_workspace: float

    @property
    def total(self) -> float:
        fixed = self.base + self.state + self.data + self.transfers
        return fixed + max(self.activations + self.workspace, self.sync, self.step_workspace)


def held_micro_batches(
    *, schedule: str, stage: int, num_stages: int, degree: int, num_micro_batches: int,
    in_flight: int | None = None,
) -> int:  # fmt: skip
    """How many micro-batches one replica keeps between their forward and their backward.

    gpipe: all of its own. 1f1b: those of its own within the stage's window.
    """
    own = len(share(num_micro_batches, 0, degree))
    if schedule == "gpipe":
        return own
    depth = num_stages if in_flight is None else in_flight
    return min(own, -(-window(stage, num_stages, depth) // degree))


def parts_held(degree: int) -> int:
    """How many parts of a gradient a replica has received and not added yet, at the most."""
    return min(2, degree - 1)


def memory_use(
    profile: ModelProfile, stage: StagePlan, *, num_samples: int, held: int, is_last: bool
) -> MemoryUse:
    """Of one replica. num_samples: of a micro-batch; held: `held_micro_batches`.

    state = parameters + gradients + optimiser; activations = held x (what its layers keep + its
    output, which waits for its gradient). A stage that recomputes keeps its input instead, and in
    the backward of one micro-batch all that its layers keep. Workspaces: of the layer that needs
    the most, for layers run one after the other, and optimisers go from parameter to parameter on a
    CPU; of one that does not, a profile has for every layer what all of them need.
    Transfers: `PREFETCH` messages that have come early, an output and a gradient on their way.
    Sync: parts of 1/degree, one being added while the next one comes; of two replicas each gets
    one. What is sent is read where it lies. Data: at the first stage, which reads inputs, and at
    the last, which reads targets.
    """
    layers = profile.layers[stage.first_layer : stage.stop_layer]
    before = profile.layers[stage.first_layer - 1] if stage.first_layer else None
    incoming = profile.input_bytes if before is None else before.output_bytes
    outgoing = 0.0 if is_last else layers[-1].output_bytes
    grad_in = 0.0 if is_last else layers[-1].output_gradient
    grad_out = 0.0 if before is None else before.output_gradient
    kept = sum(layer.activation_bytes for layer in layers)
    trained = sum(layer.trained for layer in layers)
    if stage.recompute:
        activations = held * (incoming + outgoing) + kept
    else:
        activations = held * (kept + outgoing)
    received = max(0.0 if before is None else incoming, grad_in)
    return MemoryUse(
        base=profile.base_memory_bytes,
        state=sum(
            layer.parameter_bytes + layer.trained * (1 + layer.optimizer_factor) for layer in layers
        ),
        data=profile.data_bytes if before is None or is_last else 0.0,
        transfers=num_samples * (PREFETCH * received + outgoing + grad_out),
        activations=num_samples * activations,
        workspace=max(
            num_samples * layer.workspace_bytes + layer.fixed_workspace_bytes for layer in layers
        ),
        sync=parts_held(stage.replicas) * trained / stage.replicas,
        step_workspace=max(layer.step_workspace_bytes for layer in layers),
    )
