"""The computation of one stage: its layers, micro-batch by micro-batch, and its optimiser."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from funcpipe.errors import ModelError
from funcpipe.model import rng
from funcpipe.model.chain import Layer, class_name, parameters_of
from funcpipe.model.gradients import FlatGradients
from funcpipe.model.losses import (
    Evaluation,
    checked_loss,
    evaluate_loss,
    evaluate_metrics,
)
from funcpipe.model.optimizer import make_optimizer
from funcpipe.model.rerun import ModuleState, Snapshot, twin
from funcpipe.model.tensors import slots
from funcpipe.model.values import check_value, map_leaves, map_tensors, paired, tensors_in

if TYPE_CHECKING:
    from funcpipe.job import Job

__all__ = ["Stage"]


class _Boundary(torch.autograd.Function):
    """The same data as a tensor that is no leaf, so that a layer may change it in place.

    The data is not copied. The result is no view of the leaf for autograd, which would refuse.
    """

    @staticmethod
    def forward(ctx: Any, leaf: Tensor) -> Tensor:
        return leaf.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


@dataclass(frozen=True, kw_only=True, eq=False)
class _InFlight:
    """What a forward pass leaves for its backward pass.

    `inputs` is the received value with its leaves for autograd, None in place of all else;
    `outputs` likewise the result (on the last stage the scaled loss).
    """

    inputs: Any
    outputs: Any

    @property
    def has_graph(self) -> bool:
        return any(True for _ in tensors_in(self.outputs))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Call:
    """A forward pass: what `Stage.forward` was given."""

    step: int
    micro_batch: int
    value: Any
    scale: float
    target: Any


@dataclass(frozen=True, kw_only=True, eq=False)
class _Again:
    """What a forward pass leaves that is run again: `call`, and what it changed, as it was."""

    call: _Call
    state: Snapshot


class Stage:
    """Consecutive layers of a model of `num_layers`, trained as a part of the whole.

    For each step: `forward` and, in the schedule's order, `backward` for each micro-batch of this
    replica; then, once ``gradients.buffers`` hold the sums over all replicas, `step`. One thread
    at a time may use a stage. Exceptions of user code pass, with a note that names the layer.

    With `recompute`, a micro-batch between its passes keeps what was received and no activations:
    `backward` computes them again, from the same random numbers, buffers and attributes. Results,
    gradients and what is left in the layers are the same bits.
    """

    def __init__(
        self, layers: Sequence[Layer], *, job: Job, num_layers: int, recompute: bool = False
    ) -> None:
        indices = [layer.index for layer in layers]
        if not indices or indices != list(range(indices[0], indices[0] + len(indices))):
            raise ValueError(f"a stage needs consecutive layers, not {indices}")
        self.layers = tuple(layers)
        self.num_layers = num_layers
        self.is_first = indices[0] == 0
        self.is_last = indices[-1] == num_layers - 1
        self._job = job
        self._in_flight: dict[int, _InFlight | _Again] = {}
        self._recompute = recompute
        self._state = ModuleState(self._modules())
        self._training: bool | None = None
        named = parameters_of(self.layers)
        self.gradients = FlatGradients(named)
        self._frozen = [(name, item) for name, item in named if not item.requires_grad]
        self.optimizer, self.scheduler = make_optimizer(job, [item for _, item in named])
        self._own_memory = {
            slot.tensor.untyped_storage().data_ptr()
            for layer in self.layers
            for slot in slots(layer.module)
            if slot.tensor.layout is torch.strided
        }

    def _modules(self) -> list[nn.Module]:
        """All that run: the layers', and the loss's where it is a module."""
        found = [module for layer in self.layers for module in layer.module.modules()]
        if self.is_last and isinstance(self._job.loss, nn.Module):
            found += self._job.loss.modules()
        return found

    @property
    def num_in_flight(self) -> int:
        """Micro-batches between their forward and their backward pass."""
        return len(self._in_flight)

    def forward(
        self, *, step: int, micro_batch: int, value: Any, scale: float = 1.0, target: Any = None
    ) -> Any:
        """Run micro-batch `micro_batch` (its number in the whole step) forward, in train mode.

        `value` is the input on the first stage, else what the previous stage returned; its tensors
        may be changed. Returns the value for the next stage: no graph, ``requires_grad`` says
        which tensors want a gradient. The last stage takes `target` and `scale` (see
        `sampling.loss_scales`), and returns the micro-batch's share of the batch's loss as a
        float. Raises `LossError`, `ModelError` for a value that cannot travel.
        """
        if micro_batch in self._in_flight:
            raise ValueError(f"micro-batch {micro_batch} is already in flight")
        call = _Call(step=step, micro_batch=micro_batch, value=value, scale=scale, target=target)
        kept: _InFlight | _Again
        kept, result = self._compute_first(call) if self._recompute else self._compute(call)
        self._in_flight[micro_batch] = kept
        return result

    def _compute(self, call: _Call) -> tuple[_InFlight, Any]:
        """Run a micro-batch forward; its graph, and what `forward` returns."""
        self._set_training(True)
        value: Any = call.value
        inputs: Any = None
        seed, step, micro_batch = self._job.seed, call.step, call.micro_batch
        with rng.preserved(), torch.enable_grad():
            if not self.is_first:
                value = map_tensors(value, _as_leaf)
                inputs = map_leaves(value, _wanting_or_none)
                value = map_tensors(value, _entered)
            for layer in self.layers:
                rng.scope(seed, step, micro_batch, layer.index)
                value = self._run(layer, value)
            if not self.is_last:
                outputs = map_leaves(value, _wanting_or_none)
                return _InFlight(inputs=inputs, outputs=outputs), self._sendable(value)
            rng.scope(seed, step, micro_batch, self.num_layers)
            scaled, share = None, 0.0
            if call.scale != 0:
                loss = checked_loss(
                    self._job, value, call.target, step=step, micro_batch=micro_batch
                )
                scaled = loss * call.scale
                share = float(scaled.detach())
        return _InFlight(inputs=inputs, outputs=scaled), share

    def _compute_first(self, call: _Call) -> tuple[_InFlight | _Again, Any]:
        """As `_compute`, without the graph, which is made again when it is needed.

        It is made here, too, and let go: with gradients switched off, layers could compute in
        another way, and what wants a gradient would not be known. The layers may change the copy
        that they get; what was received is as it was when they run again.
        """
        value, target = twin((call.value, call.target))
        before = self._state.take()
        kept, result = self._compute(replace(call, value=value, target=target))
        self._state.let_go()
        if not kept.has_graph:
            return _InFlight(inputs=map_leaves(kept.inputs, _nothing), outputs=None), result
        return _Again(call=call, state=self._state.changed(before)), result

    def _compute_again(self, again: _Again) -> _InFlight:
        """The graph of a micro-batch that has been forward; the layers are left as they are."""
        now = self._state.take()
        self._state.put(again.state)
        try:
            return self._compute(again.call)[0]
        finally:
            self._state.put(now)

    def backward(self, *, micro_batch: int, gradient: Any = None) -> Any:
        """Run a micro-batch backward, adding to `gradients`, and free what its forward pass kept.

        `gradient` is nested as the value that `forward` returned, with None for whatever has no
        gradient; not used on the last stage. Returns the like for the previous stage; None on the
        first one.
        """
        kept = self._in_flight.pop(micro_batch)
        if isinstance(kept, _Again):
            if not self.is_last and not any(True for _ in tensors_in(gradient)):
                return None if self.is_first else map_leaves(kept.call.value, _nothing)
            kept = self._compute_again(kept)
        if self.is_last:
            if kept.outputs is not None:
                torch.autograd.backward(kept.outputs)
        else:
            pairs = [pair for pair in paired(kept.outputs, gradient) if pair[1] is not None]
            if pairs:
                roots, gradients = zip(*pairs, strict=True)
                torch.autograd.backward(roots, gradients)
        if self.is_first:
            return None
        return map_tensors(kept.inputs, lambda leaf: leaf.grad)

    def evaluate(self, *, value: Any, target: Any = None, count: int = 0) -> Any:
        """Run `count` samples forward in eval mode, without gradients.

        Returns the value for the next stage, or on the last one the `Evaluation` of `target`.
        """
        self._set_training(False)
        with torch.no_grad():
            for layer in self.layers:
                value = self._run(layer, value)
            if not self.is_last:
                return self._sendable(value)
            loss_sum, weight = evaluate_loss(self._job, value, target, count)
            return Evaluation(
                loss_sum=loss_sum,
                weight=weight,
                metric_sums=evaluate_metrics(self._job, value, target, count),
                count=count,
            )

    def step(self, *, step: int) -> None:
        """Step the optimiser and the scheduler with the summed gradients; begin the next step.

        Random numbers that an optimiser draws are the same in every replica of the stage.
        """
        if self._in_flight:
            raise ValueError(f"micro-batches {sorted(self._in_flight)} have had no backward pass")
        for name, parameter in self._frozen:
            if parameter.grad is not None:
                raise ModelError(
                    f"{name} was frozen when the run began and has got a gradient since: which "
                    "parameters are trained must be settled in job.model()"
                )
        self.gradients.finish()
        if self.optimizer is not None:
            with rng.preserved():
                rng.scope(self._job.seed, step, self.layers[0].index, rng.OPTIMIZER)
                self.optimizer.step()
            if self.scheduler is not None:
                self.scheduler.step()
        self.gradients.zero()

    def _run(self, layer: Layer, value: Any) -> Any:
        with _named(layer):
            return layer.module(value)

    def _sendable(self, value: Any) -> Any:
        layer = self.layers[-1]
        check_value(value, f"layer {layer.index} ({layer.name}: {class_name(layer.module)})")
        return map_tensors(value, self._sent)

    def _sent(self, tensor: Tensor) -> Tensor:
        plain = tensor.detach()
        # It is still being sent when the next micro-batch or step changes our own tensors.
        if plain.untyped_storage().data_ptr() in self._own_memory:
            plain = plain.clone()
        return plain.requires_grad_(tensor.requires_grad)

    def _set_training(self, training: bool) -> None:
        if self._training is not training:
            for layer in self.layers:
                layer.module.train(training)
            self._training = training


@contextmanager
def _named(layer: Layer) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(f"in layer {layer.index} ({layer.name}: {class_name(layer.module)})")
        raise


def _as_leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _entered(tensor: Tensor) -> Tensor:
    if not tensor.requires_grad:
        return tensor
    entered: Tensor = _Boundary.apply(tensor)  # type: ignore[no-untyped-call]
    return entered


def _wanting_or_none(leaf: Any) -> Tensor | None:
    return leaf if isinstance(leaf, Tensor) and leaf.requires_grad else None


def _nothing(_leaf: Any) -> None:
    return None
