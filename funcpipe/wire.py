"""Values and their tensors as bytes: no pickle, checksummed, no needless copies.

A message is one frame::

    0    magic b"FPWR", version (u16), zero (u16)
    8    length of the header in bytes (u64)
    16   xxh3_64 of bytes 0..16 and of the header (u64)
    24   header: JSON (ASCII)
    ...  zeros up to a multiple of 64
    ...  payload: every tensor at a multiple of 64, zeros between them

All numbers are little-endian. The header holds ``value`` and ``meta`` as trees, the table of
``tensors`` and the length and xxh3_64 of the payload. In a tree, null, booleans, strings, finite
floats, lists and ints of up to 64 bits are themselves; everything else is an object with one key::

    {"t": [...]} tuple    {"d": {...}} dict    {"x": 3} tensor number 3
    {"i": "0x1f.."} int of any size            {"f": "nan" | "inf" | "-inf"}

A buffer whose start is 64-byte aligned holds every tensor 64-byte aligned, so decoding is free.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
import xxhash

from funcpipe.errors import ModelError, ObjectCorrupt
from funcpipe.store.base import Buffer

__all__ = ["ALIGNMENT", "VERSION", "Message", "decode", "encode"]

VERSION = 1
ALIGNMENT = 64

_MAGIC = b"FPWR"
_FIXED = struct.Struct("<4sHHQ")
_CHECK = struct.Struct("<Q")
_PREFIX_BYTES = _FIXED.size + _CHECK.size
_HEX = re.compile("-?0x[0-9a-f]+")
_MAX_DEPTH = 100
_MAX_DIMS = 64
_MAX_SIGNED = 2**63 - 1

# By name, so that an older torch that lacks some still imports this module.
_DTYPE_NAMES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name) for name in _DTYPE_NAMES if hasattr(torch, name)
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

_SUPPORTED = (
    "supported are dense CPU tensors, None, bool, int, float, str, and tuples, lists and dicts "
    "(with str keys) of them"
)


@dataclass(frozen=True)
class Message:
    """What `decode` returns. The tensors of `value` alias the decoded buffer."""

    value: Any
    meta: dict[str, Any]


def encode(value: Any, *, meta: Mapping[str, Any] | None = None) -> list[Buffer]:
    """`value` as buffers that follow each other, for `ObjectStore.put`.

    Contiguous tensors are not copied: their buffers are read-only views, which must be used up
    before a tensor changes. Other tensors are made contiguous. Gradients do not travel, but
    whether a tensor required one does. Two references to one tensor become two tensors.

    Raises `ModelError`, with the path inside the value, for anything the format does not hold.
    """
    tensors: list[torch.Tensor] = []
    value_tree = _to_tree(value, "value", tensors, 0)
    meta_tree = _to_tree(dict(meta or {}), "meta", None, 0)

    table: list[list[Any]] = []
    pieces: list[Buffer] = []
    checksum = xxhash.xxh3_64()
    end = 0
    for tensor in tensors:
        start = _align(end)
        data = _bytes_of(tensor)
        if start > end:
            pieces.append(bytes(start - end))
            checksum.update(pieces[-1])
        if data.nbytes:
            pieces.append(data)
            checksum.update(data)
        end = start + data.nbytes
        table.append(
            [_NAMES[tensor.dtype], list(tensor.shape), start, data.nbytes, tensor.requires_grad]
        )

    header = json.dumps(
        {
            "value": value_tree,
            "meta": meta_tree,
            "tensors": table,
            "payload": [end, checksum.intdigest()],
        },
        allow_nan=False,
        separators=(",", ":"),
    ).encode("ascii")
    fixed = _FIXED.pack(_MAGIC, VERSION, 0, len(header))
    check = _CHECK.pack(xxhash.xxh3_64_intdigest(fixed + header))
    front = _PREFIX_BYTES + len(header)
    return [b"".join((fixed, check, header, bytes(_align(front) - front))), *pieces]


def decode(buffer: Buffer) -> Message:
    """The message in `buffer`, which must hold exactly one.

    Where the buffer is writable and 64-byte aligned, tensors alias it and are aligned as well;
    otherwise the payload is copied once. Tensors own their memory separately for autograd (none
    is a view of another), and those that required a gradient are leaves that require one.

    Raises `ObjectCorrupt`, and nothing else, for bytes that `encode` did not make.
    """
    frame = memoryview(buffer).cast("B")
    header, payload_start = _read_header(frame)
    table, payload_bytes, digest = _read_table(header)
    if frame.nbytes - payload_start != payload_bytes:
        _corrupt(
            f"the header announces {payload_bytes} bytes of tensors, "
            f"{frame.nbytes - payload_start} follow"
        )
    payload = frame[payload_start:]
    if xxhash.xxh3_64_intdigest(payload) != digest:
        _corrupt("the checksum of the tensors does not match")
    payload = _usable(payload)
    tensors = _Tensors([entry.tensor(payload) for entry in table])
    value = _from_tree(header["value"], tensors, 0)
    meta = _from_tree(header["meta"], _Tensors([]), 0)
    if tensors.num_taken != len(table):
        _corrupt("the value does not use every tensor")
    if not isinstance(meta, dict):
        _corrupt("the meta data are not a dict")
    return Message(value, meta)


# -- from a value to a tree ------------------------------------------------------------------


def _to_tree(value: Any, path: str, tensors: list[torch.Tensor] | None, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise ModelError(f"{path} is nested more than {_MAX_DEPTH} levels deep (or holds itself)")
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        return value if -_MAX_SIGNED <= value <= _MAX_SIGNED else {"i": hex(value)}
    if kind is float:
        return value if abs(value) < float("inf") else {"f": repr(value)}
    if kind in (list, tuple):
        items = [
            _to_tree(item, f"{path}[{index}]", tensors, depth + 1)
            for index, item in enumerate(value)
        ]
        return items if kind is list else {"t": items}
    if kind is dict:
        for key in value:
            if type(key) is not str:
                raise ModelError(
                    f"{path} has the key {key!r} of type {type(key).__name__}: "
                    "the keys of a dict that is sent must be str"
                )
        return {
            "d": {
                key: _to_tree(item, f"{path}[{key!r}]", tensors, depth + 1)
                for key, item in value.items()
            }
        }
    if isinstance(value, torch.Tensor) and tensors is not None:
        _check_tensor(value, path)
        tensors.append(value)
        return {"x": len(tensors) - 1}
    raise ModelError(f"{path} is {_name_of(value)}, which cannot be sent: {_SUPPORTED}")


def _check_tensor(tensor: torch.Tensor, path: str) -> None:
    problem = None
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        problem = f"{_name_of(tensor)}, a subclass of torch.Tensor"
    elif tensor.is_nested:
        problem = "a nested tensor"
    elif tensor.layout != torch.strided:
        problem = f"a sparse tensor ({tensor.layout})"
    elif tensor.device.type != "cpu":
        problem = f"a tensor on {tensor.device}"
    elif tensor.dtype not in _NAMES:
        problem = f"a tensor of {tensor.dtype}"
    elif tensor.dim() > _MAX_DIMS:
        problem = f"a tensor of {tensor.dim()} dimensions (at most {_MAX_DIMS})"
    if problem:
        raise ModelError(f"{path} is {problem}, which cannot be sent: {_SUPPORTED}")


def _name_of(value: Any) -> str:
    kind = type(value)
    name = kind.__qualname__
    return name if kind.__module__ == "builtins" else f"{kind.__module__}.{name}"


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of the tensor in row-major order, without a copy if they lie so."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data.toreadonly()


def _align(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


# -- from bytes to a value -------------------------------------------------------------------


def _corrupt(reason: str) -> NoReturn:
    raise ObjectCorrupt(f"not a valid message: {reason}")


def _read_header(frame: memoryview) -> tuple[dict[str, Any], int]:
    """The header as checked JSON, and where the payload starts."""
    if frame.nbytes < _PREFIX_BYTES:
        _corrupt(f"{frame.nbytes} bytes are too few for a frame")
    magic, version, zero, header_bytes = _FIXED.unpack_from(frame)
    (digest,) = _CHECK.unpack_from(frame, _FIXED.size)
    if magic != _MAGIC or zero != 0:
        _corrupt("it does not start as a funcpipe message does")
    if version != VERSION:
        _corrupt(f"format version {version}, expected {VERSION}")
    front = _PREFIX_BYTES + header_bytes
    payload_start = _align(front)
    if payload_start > frame.nbytes:
        _corrupt("it ends inside its header")
    text = bytes(frame[_PREFIX_BYTES:front])
    if xxhash.xxh3_64_intdigest(bytes(frame[: _FIXED.size]) + text) != digest:
        _corrupt("the checksum of the header does not match")
    if any(frame[front:payload_start]):
        _corrupt("the padding after the header is not zero")
    try:
        header = json.loads(
            text.decode("ascii"), object_pairs_hook=_unique, parse_constant=_refuse_constant
        )
    except (ValueError, RecursionError) as error:
        raise ObjectCorrupt(f"not a valid message: the header is not JSON ({error})") from error
    if not isinstance(header, dict) or set(header) != {"value", "meta", "tensors", "payload"}:
        _corrupt("the header's fields are wrong")
    return header, payload_start


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("an object repeats a key")
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"bare {name}")


@dataclass(frozen=True)
class _Entry:
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    num_bytes: int
    requires_grad: bool

    def tensor(self, payload: memoryview) -> torch.Tensor:
        # One frombuffer each: tensors that shared a base would share a version counter, and
        # an in-place change of one would make autograd refuse the other.
        if self.num_bytes:
            data = payload[self.start : self.start + self.num_bytes]
            flat = torch.frombuffer(data, dtype=self.dtype)
        else:
            flat = torch.frombuffer(bytearray(ALIGNMENT), dtype=self.dtype)[:0]
        tensor = flat.view(self.shape).detach()
        return tensor.requires_grad_() if self.requires_grad else tensor


def _read_table(header: dict[str, Any]) -> tuple[list[_Entry], int, Any]:
    """The tensors' entries, the payload's length and its checksum, all checked."""
    rows, payload = header["tensors"], header["payload"]
    if not isinstance(rows, list) or not isinstance(payload, list) or len(payload) != 2:
        _corrupt("the table of tensors is malformed")
    end = 0
    entries = []
    for row in rows:
        entry = _read_entry(row, _align(end))
        end = entry.start + entry.num_bytes
        entries.append(entry)
    length, digest = payload
    if not _is_size(length) or length != end:
        _corrupt("the length of the payload does not fit the tensors")
    return entries, length, digest


def _read_entry(row: Any, expected_start: int) -> _Entry:
    if not isinstance(row, list) or len(row) != 5:
        _corrupt("an entry of the table of tensors is malformed")
    name, shape, start, num_bytes, requires_grad = row
    dtype = _DTYPES.get(name) if isinstance(name, str) else None
    if dtype is None:
        _corrupt(f"unknown dtype {name!r}")
    if not isinstance(shape, list) or len(shape) > _MAX_DIMS or not all(map(_is_size, shape)):
        _corrupt("a shape is malformed")
    num_elements, extent = 1, dtype.itemsize
    for size in shape:
        num_elements *= size
        extent *= max(size, 1)
    if extent > _MAX_SIGNED:
        _corrupt("a shape is beyond any memory")
    if not _is_size(num_bytes) or num_bytes != num_elements * dtype.itemsize:
        _corrupt("a tensor's length does not fit its shape and dtype")
    if not _is_size(start) or start != expected_start:
        _corrupt("a tensor does not start where it should")
    if type(requires_grad) is not bool:
        _corrupt("a gradient flag is malformed")
    if requires_grad and not (dtype.is_floating_point or dtype.is_complex):
        _corrupt(f"a tensor of {dtype} cannot require a gradient")
    return _Entry(dtype, tuple(shape), start, num_bytes, requires_grad)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MAX_SIGNED


def _usable(payload: memoryview) -> memoryview:
    """The payload itself if tensors may alias it, else a copy that they may."""
    if payload.nbytes == 0:
        return payload
    address = np.frombuffer(payload, dtype=np.uint8).__array_interface__["data"][0]
    if not payload.readonly and address % ALIGNMENT == 0:
        return payload
    copy = torch.empty(payload.nbytes, dtype=torch.uint8).numpy().data
    copy[:] = payload
    return copy


@dataclass
class _Tensors:
    """The decoded tensors, to be taken once each and in order."""

    decoded: list[torch.Tensor]
    num_taken: int = 0

    def take(self, index: Any) -> torch.Tensor:
        if type(index) is not int or index != self.num_taken or index >= len(self.decoded):
            _corrupt("the value does not name the tensors in order")
        self.num_taken += 1
        return self.decoded[index]


def _from_tree(tree: Any, tensors: _Tensors, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        _corrupt("the value is nested too deeply")
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    if isinstance(tree, list):
        return [_from_tree(item, tensors, depth + 1) for item in tree]
    if not isinstance(tree, dict) or len(tree) != 1:
        _corrupt("a node of the value is malformed")
    return _from_tagged(*next(iter(tree.items())), tensors, depth)


def _from_tagged(tag: str, body: Any, tensors: _Tensors, depth: int) -> Any:
    if tag == "x":
        return tensors.take(body)
    if tag == "t" and isinstance(body, list):
        return tuple(_from_tree(item, tensors, depth + 1) for item in body)
    if tag == "d" and isinstance(body, dict):
        return {key: _from_tree(item, tensors, depth + 1) for key, item in body.items()}
    if tag == "f" and body in ("nan", "inf", "-inf"):
        return float(body)
    if tag == "i" and isinstance(body, str) and _HEX.fullmatch(body):
        return int(body, 16)
    _corrupt(f"a node of the value has the unknown form {tag!r}")
