"""What the layers of a stage take: shares of the time of whole passes, and bytes.

Passes go through `Stage` itself; what is measured is told from it by hooks that are taken away
again. Bytes are those of a micro-batch of the size that the passes have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from funcpipe.model.allocations import Phase, traced
from funcpipe.model.chain import Layer
from funcpipe.model.stage import Stage
from funcpipe.model.tensors import slots
from funcpipe.model.values import tensors_in

__all__ = [
    "Kept",
    "hold_still",
    "kept_by_layer",
    "marked",
    "optimizer_bytes",
    "shares",
    "step_by_layer",
    "step_workspaces",
    "trained_bytes",
    "weight_bytes",
    "workspaces",
]

Mark = Callable[[str, int], None]
"""Told that the forward ("F") or the backward ("B") of that layer of the stage begins."""


@contextmanager
def marked(
    stage: Stage, mark: Mark, *, put_out: Callable[[int, Any], None] | None = None
) -> Iterator[None]:
    """Tell of every layer's forward and backward as it begins, and of every output.

    The last layer's backward begins with the pass's, and is not told. Nor is that of a layer
    whose output has no gradient.
    """
    handles = []
    last = len(stage.layers) - 1
    for number, layer in enumerate(stage.layers):

        def begins(_module: Any, _inputs: Any, number: int = number) -> None:
            mark("F", number)

        def ends(_module: Any, _inputs: Any, output: Any, number: int = number) -> None:
            if put_out is not None:
                put_out(number, output)
            for tensor in tensors_in(output) if number < last else ():
                if tensor.requires_grad:
                    register: Any = tensor.register_hook
                    register(lambda _gradient: mark("B", number))

        handles.append(layer.module.register_forward_pre_hook(begins))
        handles.append(layer.module.register_forward_hook(ends))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


# -- times -----------------------------------------------------------------------------------


def shares(stage: Stage, forward: Callable[[], Any], backward: Callable[[], Any],
           clock: Callable[[], float]) -> tuple[list[float], list[float]]:  # fmt: skip
    """Seconds of `clock` that each layer has of one forward and of one backward.

    What a pass does before its first layer's is the first one's, after its last layer's the
    last one's; the layers' seconds are therefore all of the pass's.
    """
    told: list[tuple[str, int, float]] = []
    with marked(stage, lambda kind, number: told.append((kind, number, clock()))):
        began = clock()
        forward()
        middle = clock()
        backward()
        ended = clock()
    num_layers = len(stage.layers)
    begins = {number: at for kind, number, at in told if kind == "F"}
    edges = [began, *(begins[number] for number in range(1, num_layers)), middle]
    forwards = [until - since for since, until in pairwise(edges)]
    # A layer of several outputs begins when the last of their gradients is there.
    arrived = {number: at for kind, number, at in told if kind == "B"}
    backwards, until = [0.0] * num_layers, ended
    for number in range(num_layers - 1):
        at = min(arrived.get(number, until), until)
        backwards[number], until = until - at, at
    backwards[-1] = until - middle
    return forwards, backwards


def step_by_layer(stage: Stage, clock: Callable[[], float]) -> list[float]:
    """Seconds of `clock` that the optimiser takes for each layer's parameters.

    What it takes whatever it steps is spread over all layers that are trained.
    """
    trained = [trained_bytes(layer) > 0 for layer in stage.layers]
    if stage.optimizer is None or not any(trained):
        return [0.0] * len(stage.layers)
    nothing = _timed_step(stage, None, clock)
    alone = [
        max(0.0, _timed_step(stage, layer, clock) - nothing) if trains else 0.0
        for layer, trains in zip(stage.layers, trained, strict=True)
    ]
    common = nothing / sum(trained)
    return [one + common * trains for one, trains in zip(alone, trained, strict=True)]


def _timed_step(stage: Stage, layer: Layer | None, clock: Callable[[], float]) -> float:
    with _only(stage, layer):
        began = clock()
        stage.optimizer.step()  # type: ignore[union-attr]
        return clock() - began


@contextmanager
def _only(stage: Stage, layer: Layer | None) -> Iterator[None]:
    """Gradients of that layer alone: an optimiser passes over parameters without."""
    own = set() if layer is None else {id(one) for one in layer.module.parameters()}
    for other in stage.layers:
        for parameter in other.module.parameters():
            if id(parameter) not in own:
                parameter.grad = None
    try:
        yield
    finally:
        stage.gradients.zero()


def hold_still(stage: Stage) -> None:
    """Let steps compute all that they do, and change no weight: the learning rate is 0 from now."""
    stage.scheduler = None
    for group in stage.optimizer.param_groups if stage.optimizer is not None else ():
        rate = group.get("lr")
        if rate is not None:
            group["lr"] = torch.zeros_like(rate) if isinstance(rate, Tensor) else 0.0


# -- bytes -----------------------------------------------------------------------------------


def weight_bytes(layer: Layer) -> int:
    """Parameters, buffers and tensor attributes, each memory once."""
    sizes = {
        slot.tensor.untyped_storage().data_ptr(): slot.tensor.nbytes for slot in slots(layer.module)
    }
    return sum(sizes.values())


def trained_bytes(layer: Layer) -> int:
    return sum(one.nbytes for one in layer.module.parameters() if one.requires_grad)


def optimizer_bytes(stage: Stage) -> list[int]:
    """The state that the optimiser keeps of each layer's parameters, once it has stepped."""
    if stage.optimizer is None:
        return [0] * len(stage.layers)
    state: Any = stage.optimizer.state
    return [
        sum(
            item.nbytes
            for parameter in layer.module.parameters()
            for item in state.get(parameter, {}).values()
            if isinstance(item, Tensor)
        )
        for layer in stage.layers
    ]


@dataclass(frozen=True, kw_only=True)
class Kept:
    """activation: what each layer keeps from forward to backward. output, gradient: what crosses
    a cut behind it, and what comes back.
    """

    activation: tuple[int, ...]
    output: tuple[int, ...]
    gradient: tuple[int, ...]


@dataclass
class _Held:
    """One memory: its bytes, and the last layer that keeps it."""

    num_bytes: int
    layer: int
    storage: Any


class _Keeper:
    """Notes, while a stage runs forward, what autograd keeps and what layers return."""

    def __init__(self, stage: Stage) -> None:
        num_layers = len(stage.layers)
        self._own = {
            slot.tensor.untyped_storage().data_ptr()
            for layer in stage.layers
            for slot in slots(layer.module)
        }
        self._layer = 0
        self._kept: dict[int, _Held] = {}
        self._made: dict[int, int] = {}
        self.output, self.gradient = [0] * num_layers, [0] * num_layers

    def begin(self, kind: str, number: int) -> None:
        if kind == "F":
            self._layer = number

    def keep(self, tensor: Tensor) -> Tensor:
        if tensor.layout is torch.strided:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._own:
                held = _Held(storage.nbytes(), self._layer, storage)
                self._kept[storage.data_ptr()] = held
        return tensor

    def put_out(self, number: int, result: Any) -> None:
        for tensor in tensors_in(result):
            self.output[number] += tensor.nbytes
            self.gradient[number] += tensor.nbytes if tensor.requires_grad else 0
            if tensor.layout is torch.strided:
                self._made[tensor.untyped_storage().data_ptr()] = number

    def by_layer(self, *, is_last: bool) -> tuple[int, ...]:
        num_layers = len(self.output)
        activation = [0] * num_layers
        for address, one in self._kept.items():
            layer = one.layer
            if self._made.get(address) == layer and not (is_last and layer == num_layers - 1):
                layer += 1
            if layer < num_layers:
                activation[layer] += one.num_bytes
        return tuple(activation)


def kept_by_layer(stage: Stage, value: Any, forward: Callable[[], Any]) -> Kept:
    """What autograd keeps of one forward. value: what the pass takes.

    A memory counts once, for the last layer that keeps it: a layer's input, where it is needed, is
    the layer's. So is what the layer before keeps of its own output, which is there all the same;
    behind the last layer that is what crosses the cut. A stage that is not the first holds its
    input in any case.
    """
    keeper = _Keeper(stage)
    if not stage.is_first:
        for tensor in tensors_in(value):
            if tensor.requires_grad:
                keeper.keep(tensor)
    with (
        marked(stage, keeper.begin, put_out=keeper.put_out),
        torch.autograd.graph.saved_tensors_hooks(keeper.keep, lambda tensor: tensor),
    ):
        forward()
    return Kept(
        activation=keeper.by_layer(is_last=stage.is_last),
        output=tuple(keeper.output),
        gradient=tuple(keeper.gradient),
    )


def workspaces(
    stage: Stage, kept: Kept, forward: Callable[[], Any], backward: Callable[[], Any]
) -> list[int]:
    """What each layer's forward or backward needs at its fullest, beside what `kept` counts.

    Beside what it and the layers before it keep, and in the forward its output. forward, backward:
    one whole pass, with the loading of its inputs.
    """
    with traced() as trace:
        trace.mark("F 0")

        def mark(kind: str, number: int) -> None:
            if (kind, number) != ("F", 0):
                trace.mark(f"{kind} {number}")

        with marked(stage, mark):
            forward()
            trace.mark(f"B {len(stage.layers) - 1}")
            backward()
    return _beside(trace.phases, kept, is_last=stage.is_last)


def _beside(phases: Sequence[Phase], kept: Kept, *, is_last: bool) -> list[int]:
    needs = [0] * len(kept.activation)
    for phase in phases:
        kind, number = phase.name[0], int(phase.name[2:])
        counted = sum(kept.activation[: number + 1])
        if kind == "F" and not (is_last and number == len(needs) - 1):
            counted += kept.output[number]
        needs[number] = max(needs[number], phase.peak - counted)
    return needs


def step_workspaces(stage: Stage) -> list[int]:
    """What the optimiser's step needs for a while for each layer's parameters.

    To be taken as the most over a stage's layers. Where all at once need more than each by itself
    (optimisers that go over all tensors together), every layer has what all of them need.
    """
    if stage.optimizer is None:
        return [0] * len(stage.layers)
    alone = [_step_peak(stage, (layer,)) for layer in stage.layers]
    together = _step_peak(stage, stage.layers)
    if together > 1.25 * max(alone):
        return [together if trained_bytes(layer) else 0 for layer in stage.layers]
    return alone


def _step_peak(stage: Stage, layers: Sequence[Layer]) -> int:
    own = {id(one) for layer in layers for one in layer.module.parameters()}
    for layer in stage.layers:
        for parameter in layer.module.parameters():
            if id(parameter) not in own:
                parameter.grad = None
    with traced() as trace:
        trace.mark("step")
        stage.optimizer.step()  # type: ignore[union-attr]
    stage.gradients.zero()
    return max(phase.peak for phase in trace.phases)
