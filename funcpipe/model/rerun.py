"""What makes it possible to run a forward pass twice as if it had run once."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from funcpipe.errors import ModelError
from funcpipe.model.packing import is_dense
from funcpipe.model.tensors import MODULE_FIELDS
from funcpipe.model.values import tensors_in

__all__ = ["ModuleState", "Snapshot", "twin"]

_MAX_DEPTH = 8
_MAX_ITEMS = 1000  # of a container that is looked into: a vocabulary is no state


def twin(value: Any) -> Any:
    """`value` in memory of its own, equal in bits, layout and ``requires_grad``.

    Raises `ModelError` for an object, among the inputs that a job's `collate` made, that cannot be
    copied.
    """
    memo: dict[int, Any] = {id(tensor): _twin(tensor) for tensor in tensors_in(value)}
    try:
        return copy.deepcopy(value, memo)
    except Exception as error:
        raise ModelError(
            "a stage that recomputes runs its layers twice on each micro-batch, the first time on "
            f"a copy of it, and the {type(value).__name__} that arrived cannot be copied "
            f"({type(error).__name__}: {error}). Return tensors from the data set and "
            "job.collate, or leave this stage out of `recompute`"
        ) from error


def _twin(tensor: Tensor) -> Tensor:
    plain = tensor.detach()
    if plain.layout is torch.strided and plain.numel() and not is_dense(plain):
        # Kernels, and so bits, may depend on the strides: of an expanded tensor, say.
        pairs = zip(plain.shape, plain.stride(), strict=True)
        extent = 1 + sum((size - 1) * stride for size, stride in pairs)
        window = plain.as_strided((extent,), (1,)).clone()
        plain = window.as_strided(plain.shape, plain.stride())
    else:
        plain = plain.clone()
    return plain.requires_grad_(tensor.requires_grad)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Kept:
    """An object and what was in it: a tensor's elements, a container's items; else None."""

    value: Any
    content: Any = None


Snapshot = Mapping[int, Mapping[str, _Kept]]
"""By the number of a module: its buffers and attributes."""


class ModuleState:
    """What forward passes change in `modules` beside gradients: buffers and plain attributes.

    Tensors and small lists, tuples and dicts among the attributes are followed; what modules keep
    elsewhere (in objects of other classes, in globals) is not seen. Parameters are left alone.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._modules = tuple(modules)

    def take(self) -> Snapshot:
        """All of it as it is now, to be put back."""
        return {
            number: {name: _kept(value) for name, value in _fields(module).items()}
            for number, module in enumerate(self._modules)
        }

    def let_go(self) -> None:
        """Detach results that modules hold as attributes, whose graph would be held with them."""
        for module in self._modules:
            for name, value in _fields(module).items():
                module.__dict__[name] = _detached(value)

    def changed(self, before: Snapshot) -> Snapshot:
        """The part of `before` that has been changed since, as it was."""
        found = {number: self._changed(number, fields) for number, fields in before.items()}
        return {number: fields for number, fields in found.items() if fields is not None}

    def _changed(self, number: int, before: Mapping[str, _Kept]) -> Mapping[str, _Kept] | None:
        now = _fields(self._modules[number])
        slim = {name: _slimmed(kept) for name, kept in before.items()}
        same = now.keys() == before.keys() and all(
            now[name] is kept.value and slim[name].content is None for name, kept in before.items()
        )
        return None if same else slim

    def put(self, snapshot: Snapshot) -> None:
        """Make the modules of `snapshot` what they were, in the memory in which they were it."""
        for number, fields in snapshot.items():
            own = self._modules[number].__dict__
            for name in _fields(self._modules[number]).keys() - fields.keys():
                del own[name]
            for name, kept in fields.items():
                own[name] = _put(kept)


def _fields(module: nn.Module) -> dict[str, Any]:
    return {
        name: value
        for name, value in module.__dict__.items()
        if name == "_buffers" or name not in MODULE_FIELDS
    }


def _kept(value: Any, depth: int = 0) -> _Kept:
    if isinstance(value, Tensor):
        # What takes part in a graph is no state: a parameter, or a result that is looked at later.
        follow = not value.requires_grad and value.layout is torch.strided
        return _Kept(value=value, content=value.detach().clone() if follow else None)
    if type(value) not in (list, tuple, dict) or len(value) > _MAX_ITEMS or depth > _MAX_DEPTH:
        return _Kept(value=value)
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return _Kept(value=value, content={key: _kept(item, depth + 1) for key, item in items})


def _detached(value: Any, depth: int = 0) -> Any:
    """`value`, a container changed in place, without tensors that are results of a graph."""
    if isinstance(value, Tensor):
        return value if value.grad_fn is None else value.detach()
    if type(value) not in (list, tuple, dict) or len(value) > _MAX_ITEMS or depth > _MAX_DEPTH:
        return value
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = {key: _detached(item, depth + 1) for key, item in items}
    changed = {key: item for key, item in found.items() if item is not value[key]}
    if isinstance(value, tuple):
        return tuple(found.values()) if changed else value
    for key, item in changed.items():
        value[key] = item
    return value


def _slimmed(kept: _Kept) -> _Kept:
    """Without the content wherever `kept.value` still has it."""
    value, content = kept.value, kept.content
    if content is None or (isinstance(value, Tensor) and torch.equal(value, content)):
        return _Kept(value=value)
    if isinstance(value, Tensor):
        return kept
    slim = {key: _slimmed(item) for key, item in content.items()}
    if _holds(value, slim) and all(item.content is None for item in slim.values()):
        return _Kept(value=value)
    return _Kept(value=value, content=slim)


def _holds(container: Any, items: Mapping[Any, _Kept]) -> bool:
    """Whether `container` holds the very objects of `items`, and no others."""
    now = container if isinstance(container, dict) else dict(enumerate(container))
    return list(now) == list(items) and all(now[key] is items[key].value for key in items)


def _put(kept: _Kept) -> Any:
    value, content = kept.value, kept.content
    if content is None:
        return value
    if isinstance(value, Tensor):
        if not torch.equal(value, content):
            # Past autograd, which would refuse to go backward through what has been changed since.
            value.data.copy_(content)
        return value
    items = {key: _put(item) for key, item in content.items()}
    if not _holds(value, content):
        value.clear()
        value.update(items) if isinstance(value, dict) else value.extend(items.values())
    return value
