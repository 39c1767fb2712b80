"""What a stage's function holds at its fullest, in bytes."""

from __future__ import annotations

from dataclasses import dataclass

from funcpipe.partitioner.plan import StagePlan
from funcpipe.partitioner.profile import ModelProfile
from funcpipe.schedule.order import share, window
from funcpipe.schedule.program import PREFETCH

__all__ = ["MemoryUse", "held_micro_batches", "memory_use"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryUse:
    """Bytes. base: before anything of the model is there. state: weights, gradients and the
    optimiser's. activations: of the micro-batches between forward and backward. transfers:
    received and not yet used, or not yet sent. sync: parts of the gradient that have arrived.
    """

    base: float
    state: float
    activations: float
    transfers: float
    sync: float

    @property
    def total(self) -> float:
        return self.base + self.state + self.activations + self.transfers + self.sync


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


def memory_use(
    profile: ModelProfile, stage: StagePlan, *, num_samples: int, held: int, is_last: bool
) -> MemoryUse:
    """Of one replica. num_samples: of a micro-batch; held: `held_micro_batches`.

    state = parameters + gradients + optimiser; activations = held x (what its layers keep + its
    output, which waits for its gradient). A stage that recomputes keeps its input instead, and in
    the backward of one micro-batch all that its layers keep. Transfers: `PREFETCH` messages that
    have come early, an output and a gradient on their way. Sync: two parts of 1/degree, one being
    added while the next one comes.
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
        activations=num_samples * activations,
        transfers=num_samples * (PREFETCH * received + outgoing + grad_out),
        sync=2 * trained / stage.replicas if stage.replicas > 1 else 0.0,
    )
