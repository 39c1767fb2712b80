"""Where a module keeps tensors: the slots that can be packed, and those that cannot.

A *slot* is a place that can be read and filled again: a parameter, a buffer, or an attribute that
is a tensor or a list, tuple or dict of tensors. A tensor anywhere else (inside an object of
another type, a closure, a ``functools.partial``, a hook) is *hidden*: it is found, to say so, but
not moved.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

__all__ = ["MODULE_FIELDS", "Kind", "Slot", "fill", "hidden_tensors", "slots", "storage_key"]

Kind = Literal["parameter", "buffer", "attribute"]
Step = str | int

MODULE_FIELDS = frozenset(nn.Module().__dict__)
_MAX_DEPTH = 8


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One place of a tensor. `name` is unique in its module tree."""

    name: str
    kind: Kind
    owner: nn.Module
    path: tuple[Step, ...]
    tensor: Tensor
    persistent: bool


def storage_key(tensor: Tensor) -> int:
    """Equal for tensors that share memory, on the meta device too, while both are alive."""
    if tensor.layout is not torch.strided:
        return id(tensor)
    return int(tensor.untyped_storage()._cdata)


def slots(module: nn.Module) -> Iterator[Slot]:
    """Every slot of `module` and of what is in it, in an order that its structure fixes.

    A module or tensor that is reached twice is there twice, under both names, as in a state dict.
    """
    for prefix, owner in module.named_modules(remove_duplicate=False):
        dot = f"{prefix}." if prefix else ""
        for name, parameter in owner._parameters.items():
            if parameter is not None:
                yield Slot(
                    name=f"parameter/{dot}{name}",
                    kind="parameter",
                    owner=owner,
                    path=(name,),
                    tensor=parameter,
                    persistent=True,
                )
        for name, buffer in owner._buffers.items():
            if buffer is not None:
                yield Slot(
                    name=f"buffer/{dot}{name}",
                    kind="buffer",
                    owner=owner,
                    path=(name,),
                    tensor=buffer,
                    persistent=name not in owner._non_persistent_buffers_set,
                )
        for name, value in owner.__dict__.items():
            if name in MODULE_FIELDS:
                continue
            for path, tensor in _inside(value, (name,)):
                trail = "/".join(str(step) for step in path)
                yield Slot(
                    name=f"attribute/{dot}{trail}",
                    kind="attribute",
                    owner=owner,
                    path=path,
                    tensor=tensor,
                    persistent=False,
                )


def _inside(value: object, path: tuple[Step, ...]) -> Iterator[tuple[tuple[Step, ...], Tensor]]:
    """Tensors of plain nested containers. Keys are taken only if they write and read alike."""
    if isinstance(value, Tensor):
        yield path, value
    elif len(path) > _MAX_DEPTH:
        return
    elif isinstance(value, list | tuple) and type(value) in (list, tuple):
        for index, item in enumerate(value):
            yield from _inside(item, (*path, index))
    elif isinstance(value, dict) and _plain_keys(value):
        for key, item in value.items():
            yield from _inside(item, (*path, key))


def _plain_keys(value: dict[Any, Any]) -> bool:
    names = {str(key) for key in value}
    return len(names) == len(value) and all(
        type(key) is int or (type(key) is str and "/" not in key) for key in value
    )


def fill(slot: Slot, tensor: Tensor) -> None:
    """Put `tensor` where `slot` is. Lists and dicts are changed in place, tuples made anew."""
    head, *rest = slot.path
    if slot.kind == "parameter":
        if not isinstance(tensor, nn.Parameter):
            raise TypeError(f"{slot.name} takes an nn.Parameter, not a {type(tensor).__name__}")
        slot.owner._parameters[str(head)] = tensor
    elif slot.kind == "buffer":
        slot.owner._buffers[str(head)] = tensor
    else:
        fields = slot.owner.__dict__
        fields[str(head)] = _replaced(fields[str(head)], rest, tensor)


def _replaced(value: Any, path: list[Step], tensor: Tensor) -> Any:
    if not path:
        return tensor
    head, *rest = path
    if isinstance(value, tuple):
        items = list(value)
        items[int(head)] = _replaced(items[int(head)], rest, tensor)
        return tuple(items)
    value[head] = _replaced(value[head], rest, tensor)
    return value


def hidden_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """(where, tensor) of tensors that `module` reaches by attributes, but not through a slot.

    Looks into objects' attributes, containers, partial functions, closures, bound methods and
    hooks, some levels deep; what an extension type keeps to itself is not seen.
    """
    known = {id(slot.tensor) for slot in slots(module)}
    seen = {id(owner) for owner in module.modules()}
    found: list[tuple[str, Tensor]] = []
    for prefix, owner in module.named_modules():
        for name, value in owner.__dict__.items():
            if name in ("_parameters", "_buffers", "_modules"):
                continue
            where = f"{prefix}.{name}" if prefix else name
            _search(value, where, seen=seen, known=known, found=found, depth=0)
    for slot in slots(module):
        for name, value in getattr(slot.tensor, "__dict__", {}).items():
            _search(value, f"{slot.name}.{name}", seen=seen, known=known, found=found, depth=0)
        hooks = getattr(slot.tensor, "_backward_hooks", None)
        _search(hooks, f"a hook of {slot.name}", seen=seen, known=known, found=found, depth=0)
    return found


def _search(
    value: object,
    where: str,
    *,
    seen: set[int],
    known: set[int],
    found: list[tuple[str, Tensor]],
    depth: int,
) -> None:
    if isinstance(value, Tensor):
        if id(value) not in known:
            known.add(id(value))
            found.append((where, value))
        return
    if depth > _MAX_DEPTH or id(value) in seen or isinstance(value, _CLOSED):
        return
    seen.add(id(value))
    for name, child in _children(value):
        _search(child, f"{where}{name}", seen=seen, known=known, found=found, depth=depth + 1)


_CLOSED = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    torch.dtype,
    torch.device,
)


def _children(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{index}]", item) for index, item in enumerate(value))
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, types.MethodType):
        yield from ((".__self__", value.__self__), (".__func__", value.__func__))
    elif isinstance(value, types.FunctionType):
        yield from _captured(value)
    elif isinstance(value, weakref.ReferenceType):
        return
    for name in _slot_names(type(value)):
        if hasattr(value, name):
            yield f".{name}", getattr(value, name)
    fields = getattr(value, "__dict__", None)
    if isinstance(fields, dict):
        yield from ((f".{name}", item) for name, item in fields.items())


def _captured(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f".<{name}>", cell.cell_contents
        except ValueError:  # a cell that is still empty
            continue
    yield ".__defaults__", function.__defaults__
    yield ".__kwdefaults__", function.__kwdefaults__


def _slot_names(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        names = base.__dict__.get("__slots__", ())
        yield from (names,) if isinstance(names, str) else names
