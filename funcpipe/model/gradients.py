"""A stage's gradients in one flat buffer per dtype, which replicas sum as they are."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from funcpipe.errors import ModelError
from funcpipe.model.packing import is_dense

__all__ = ["FlatGradients"]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Place:
    name: str
    parameter: nn.Parameter
    view: Tensor
    flag: Tensor


class FlatGradients:
    """Gradients of the trainable ones of `parameters`, (name, parameter) in a fixed order.

    Parameters of one dtype and device share a buffer: their gradients one after another, each in
    its parameter's memory order, then one element per parameter that is not 0 if the parameter
    got a gradient in this step. ``parameter.grad`` is a view, so autograd accumulates in place.
    Summing the `buffers` of all replicas sums gradients and flags alike; after `finish`, what no
    replica touched has no gradient, as in plain PyTorch, where an optimiser then skips it.

    From `zero` to the optimiser's step, nothing else may set ``parameter.grad``.

    A new one is as after `zero`. Its buffers take memory from the first gradient on: a stage that
    only evaluates has none.
    """

    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
        groups: dict[tuple[torch.dtype, torch.device], list[tuple[str, nn.Parameter]]] = {}
        for name, parameter in parameters:
            if parameter.requires_grad:
                key = (parameter.dtype, parameter.device)
                groups.setdefault(key, []).append((name, parameter))
        self._buffers: list[Tensor] = []
        self._flags: list[Tensor] = []
        self._places: list[list[_Place]] = []
        for (dtype, device), members in groups.items():
            num_elements = sum(parameter.numel() for _, parameter in members)
            buffer = _zeros(num_elements + len(members), dtype, device)
            self._buffers.append(buffer)
            self._flags.append(buffer[num_elements:])
            self._places.append(list(_places(buffer, num_elements, members)))
        self._touched: set[int] = set()
        for places in self._places:
            for place in places:
                register: Any = place.parameter.register_post_accumulate_grad_hook
                register(self._hook(place))
                place.parameter.grad = place.view

    @property
    def buffers(self) -> list[Tensor]:
        """1-D, contiguous; the same objects for the life of this one."""
        return list(self._buffers)

    def zero(self) -> None:
        """Begin a step: no gradients, none touched."""
        for buffer in self._buffers:
            buffer.zero_()
        self._touched.clear()
        for places in self._places:
            for place in places:
                place.parameter.grad = place.view

    def finish(self) -> None:
        """Before the optimiser: take the gradient from parameters that nobody touched."""
        for flags, places in zip(self._flags, self._places, strict=True):
            for flag, place in zip(flags.tolist(), places, strict=True):
                if flag == 0:
                    place.parameter.grad = None

    def _hook(self, place: _Place) -> Callable[[Tensor], None]:
        key = id(place)

        def accumulated(parameter: Tensor) -> None:
            if parameter.grad is not place.view:
                raise ModelError(
                    f"the gradient of {place.name} was replaced during the backward pass, by a "
                    "hook of the model perhaps; hooks may change gradients in place only"
                )
            if key not in self._touched:
                self._touched.add(key)
                place.flag.fill_(1)

        return accumulated


def _zeros(num_elements: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Like `torch.zeros`, which however writes them: pages from the kernel are zero unwritten."""
    if device.type != "cpu":
        return torch.zeros(num_elements, dtype=dtype, device=device)
    pages = mmap.mmap(-1, num_elements * dtype.itemsize)
    return torch.frombuffer(pages, dtype=dtype)


def _places(
    buffer: Tensor, num_elements: int, members: list[tuple[str, nn.Parameter]]
) -> Iterable[_Place]:
    offset = 0
    for index, (name, parameter) in enumerate(members):
        part = buffer[offset : offset + parameter.numel()]
        # The strides that autograd itself would give: channels_last weights keep their layout.
        view = (
            part.as_strided(parameter.shape, parameter.stride())
            if is_dense(parameter)
            else part.view(parameter.shape)
        )
        flag = buffer[num_elements + index]
        yield _Place(name=name, parameter=parameter, view=view, flag=flag)
        offset += parameter.numel()
