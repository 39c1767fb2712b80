"""Buffers and keys as every back-end wants them: aligned, flat, checked."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar, cast

import numpy as np

from funcpipe.store.base import Buffer, Data

__all__ = [
    "ALIGNMENT_BYTES",
    "aligned_buffer",
    "batches",
    "check_key",
    "check_prefix",
    "check_range",
    "equal",
    "is_key",
    "pieces",
    "total_bytes",
]

T = TypeVar("T")

ALIGNMENT_BYTES = 64
_MAX_KEY_CHARACTERS = 900  # S3 allows 1,024 bytes; the rest is left for a store's prefix
_MAX_SEGMENT_CHARACTERS = 255  # what a file name may have
_KEY = re.compile(r"[A-Za-z0-9._\-]+(?:/[A-Za-z0-9._\-]+)*")
_PREFIX = re.compile(r"(?:[A-Za-z0-9._\-]+/)*[A-Za-z0-9._\-]*")


_PAGES_BYTES = 4 << 20
"""From here on a buffer has pages of its own, which go back to the system with it: in the heap,
what was once a part of a gradient would stay beside the model."""


def aligned_buffer(num_bytes: int) -> memoryview:
    """A new writable buffer of `num_bytes` unspecified bytes, aligned to 64 bytes."""
    if num_bytes < 0:
        raise ValueError(f"a buffer needs a size of 0 bytes or more, not {num_bytes}")
    if num_bytes >= _PAGES_BYTES:
        return memoryview(mmap.mmap(-1, num_bytes))
    room = np.empty(num_bytes + ALIGNMENT_BYTES, dtype=np.uint8)
    begin = -room.ctypes.data % ALIGNMENT_BYTES
    return memoryview(room[begin : begin + num_bytes].data)


def pieces(data: Data) -> list[memoryview]:
    """`data` as flat byte views of its buffers, in order and without copies; empty ones dropped.

    Anything with the buffer protocol and contiguous memory will do; else `TypeError`.
    """
    if isinstance(data, str):
        raise TypeError("an object's data are bytes, found a str: encode it first")
    try:
        single = memoryview(data)  # type: ignore[arg-type]
    except TypeError:
        if not isinstance(data, Iterable):
            raise TypeError(
                f"an object's data are one buffer or several, found {type(data).__name__}"
            ) from None
        views = [memoryview(cast(Buffer, buffer)) for buffer in data]
    else:
        views = [single]
    return [_flat(view) for view in views if view.nbytes]


def _flat(view: memoryview) -> memoryview:
    if not view.c_contiguous:
        raise TypeError("an object's data need contiguous memory: copy the buffer first")
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def total_bytes(data: Data) -> int:
    """The length of the object that `data` makes."""
    return sum(view.nbytes for view in pieces(data))


def equal(data: Data, body: memoryview) -> bool:
    """Whether `body` holds exactly the bytes of `data`; joins nothing."""
    views = pieces(data)
    if sum(view.nbytes for view in views) != body.nbytes:
        return False
    begin = 0
    for view in views:
        if view != body[begin : begin + view.nbytes]:
            return False
        begin += view.nbytes
    return True


def check_key(key: str) -> str:
    """`key` if it is one that every back-end can hold, else `ValueError`."""
    if not isinstance(key, str) or not is_key(key):
        raise ValueError(
            f"not a key: {_shown(key)}. A key has 1 to {_MAX_KEY_CHARACTERS} of the characters "
            f"A-Z a-z 0-9 . _ - /, and no segment that is empty, '.', '..' or longer than "
            f"{_MAX_SEGMENT_CHARACTERS}"
        )
    return key


def is_key(text: str) -> bool:
    """Whether every back-end can hold an object of that name."""
    return (
        _KEY.fullmatch(text) is not None
        and len(text) <= _MAX_KEY_CHARACTERS
        and not _bad_segment(text)
    )


def check_prefix(prefix: str) -> str:
    """`prefix` if a key could start with it (the empty one included), else `ValueError`."""
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix) or _bad_segment(prefix):
        raise ValueError(
            f"not a prefix of keys: {_shown(prefix)}. It has only the characters "
            "A-Z a-z 0-9 . _ - /, does not start with / and has no segment that is '.' or '..'"
        )
    return prefix


def _bad_segment(key: str) -> bool:
    return any(
        segment in (".", "..") or len(segment) > _MAX_SEGMENT_CHARACTERS
        for segment in key.split("/")
    )


def _shown(key: object) -> str:
    text = repr(key)
    return text if len(text) <= 80 else f"{text[:80]}... ({len(text)} characters)"


def check_range(start: int, stop: int | None) -> None:
    """`ValueError` unless the bounds are usable as ``start:stop`` of an object."""
    if start < 0 or (stop is not None and stop < 0):
        raise ValueError(f"a range counts bytes from 0 upwards, found start={start}, stop={stop}")


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Consecutive lists of at most `size` items."""
    source = iter(items)
    while batch := list(islice(source, size)):
        yield batch
