"""What may pass between layers that lie in different stages: nested values with tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from funcpipe.errors import ModelError

__all__ = ["check_value", "map_leaves", "map_tensors", "paired", "tensors_in"]

_PLAIN = (type(None), bool, int, float, str)


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """`value`'s nesting with every leaf, tensor or not, changed; in the order of `tensors_in`."""
    if isinstance(value, tuple | list):
        items = [map_leaves(item, change) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, dict):
        return {key: map_leaves(item, change) for key, item in value.items()}
    return change(value)


def map_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """`value` with every tensor changed."""
    return map_leaves(value, lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf)


def tensors_in(value: Any) -> Iterator[Tensor]:
    for tensor, _ in paired(value, None):
        yield tensor


def paired(value: Any, other: Any) -> Iterator[tuple[Tensor, Any]]:
    """Each tensor of `value` with what is in its place in `other` (None where that ends)."""
    if isinstance(value, Tensor):
        yield value, other
    elif isinstance(value, tuple | list):
        for index, item in enumerate(value):
            yield from paired(item, None if other is None else other[index])
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from paired(item, None if other is None else other[key])


def check_value(value: Any, where: str) -> None:
    """Raise `ModelError` for what would come out of the store as something else, or not at all."""
    if isinstance(value, Tensor):
        if value.layout is not torch.strided or value.is_quantized:
            raise ModelError(f"{where} returned a tensor that is not dense ({value.layout})")
    elif type(value) in (tuple, list, torch.Size):
        for item in value:
            check_value(item, where)
    elif type(value) is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise ModelError(f"{where} returned a dict with the key {key!r}; keys must be str")
            check_value(item, where)
    elif type(value) not in _PLAIN:
        kind = type(value)
        raise ModelError(
            f"{where} returned a {kind.__module__}.{kind.__qualname__}. Between stages there can "
            "be tensors, None, bool, int, float, str, and tuples, lists and dicts of these: return "
            "one of them, or cut the model elsewhere"
        )
