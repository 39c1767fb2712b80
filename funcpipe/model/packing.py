"""One layer's tensors as bytes, and back without copying.

The bytes are a valid safetensors file. What is special about it: the data section begins at a
multiple of 64 bytes, and tensors whose size is one come first, so that tensors may alias the file
in memory, aligned as torch aligns its own. A tensor that is dense in another order of its
dimensions (``channels_last``) is written in memory order under the accordingly permuted shape.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import xxhash
from torch import Tensor, nn

from funcpipe.errors import ModelError, ObjectCorrupt
from funcpipe.model.chain import Layer, class_name
from funcpipe.model.tensors import Slot, slots

__all__ = ["ALIGNMENT", "LayerEntry", "TensorEntry", "describe", "pack_layer", "unpack_state"]

ALIGNMENT = 64

_CODES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.int64: "I64",
    torch.uint64: "U64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}
_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, kw_only=True)
class TensorEntry:
    """What is known of one slot's tensor besides its bytes.

    `same_as` names an earlier slot that holds the very same tensor; the file has it once.
    `strides` are in elements, those of the tensor to be made.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    requires_grad: bool
    is_parameter: bool
    persistent: bool
    same_as: str | None

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype = getattr(torch, self.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise ModelError(f"{self.name}: this torch knows no dtype {self.dtype!r}")
        return dtype

    @property
    def num_bytes(self) -> int:
        num_elements = 1
        for size in self.shape:
            num_elements *= size
        return num_elements * self.torch_dtype.itemsize

    def structure(self) -> tuple[object, ...]:
        """What must be equal wherever the model is built."""
        fixed = (self.name, self.dtype, self.shape, self.is_parameter, self.persistent)
        return (*fixed, self.same_as)


@dataclass(frozen=True, kw_only=True)
class LayerEntry:
    """A packed layer.

    digest: xxh3_64 of its `num_bytes` bytes, in hex. settings: `settings_digest` of its module.
    """

    index: int
    name: str
    class_name: str
    num_bytes: int
    parameter_bytes: int
    digest: str
    tensors: tuple[TensorEntry, ...]
    settings: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LayerEntry:
        tensors = tuple(
            TensorEntry(
                **{**item, "shape": tuple(item["shape"]), "strides": tuple(item["strides"])}
            )
            for item in data["tensors"]
        )
        return cls(**{**data, "tensors": tensors})


def settings_digest(module: nn.Module) -> str:
    """Of the plain values (numbers, texts, lists of them) that are attributes in `module`."""
    state = xxhash.xxh3_64()
    for name, owner in module.named_modules():
        plain = {
            key: value
            for key, value in vars(owner).items()
            if key != "training" and _is_plain_value(value)
        }
        state.update(repr((name, class_name(owner), sorted(plain.items()))).encode())
    return state.hexdigest()


def _is_plain_value(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain_value(item) for item in value)
    return value is None or type(value) in (bool, int, float, str)


def describe(layer: Layer) -> tuple[TensorEntry, ...]:
    """The entries of `layer`, also on the meta device. `ModelError` for what has no plain bytes."""
    return tuple(entry for entry, _ in _described(layer))


def _described(layer: Layer) -> Iterable[tuple[TensorEntry, Slot]]:
    first: dict[int, str] = {}
    for slot in slots(layer.module):
        tensor = slot.tensor
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
            raise ModelError(
                f"layer {layer.name!r} ({class_name(layer.module)}): {slot.name} is not a dense "
                f"tensor (layout {tensor.layout}); sparse, nested and quantised ones are not "
                "supported"
            )
        known = first.setdefault(id(tensor), slot.name)
        yield (
            TensorEntry(
                name=slot.name,
                dtype=str(tensor.dtype).removeprefix("torch."),
                shape=tuple(tensor.shape),
                strides=tuple(tensor.stride()) if is_dense(tensor) else _row_major(tensor.shape),
                requires_grad=tensor.requires_grad and tensor.is_leaf,
                is_parameter=isinstance(tensor, nn.Parameter),
                persistent=slot.persistent,
                same_as=None if known == slot.name else known,
            ),
            slot,
        )


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill one block of memory, each once, in any order of dimensions."""
    expected = 1
    for dim in sorted(range(tensor.dim()), key=tensor.stride):
        if tensor.shape[dim] > 1:
            if tensor.stride(dim) != expected:
                return False
            expected *= tensor.shape[dim]
    return True


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= max(size, 1)
    return tuple(strides)


def _in_memory_order(tensor: Tensor) -> Tensor:
    """A contiguous tensor over the same memory, if there is one, else a contiguous copy."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu()
    if not is_dense(plain):
        return plain.contiguous()
    strides = plain.stride()
    order = sorted(range(plain.dim()), key=lambda dim: (-strides[dim], dim))
    return plain.permute(order).contiguous()


def pack_layer(layer: Layer, *, like: LayerEntry | None = None) -> tuple[bytearray, LayerEntry]:
    """`layer`'s parameters, buffers and tensor attributes in one safetensors file.

    With `like`, an entry of the same layer when it was new, only what it had then: layers may
    keep results of their last forward pass as attributes.
    """
    names = None if like is None else {item.name for item in like.tensors}
    entries: list[TensorEntry] = []
    blocks: list[tuple[str, Tensor]] = []
    parameter_bytes = 0
    for entry, slot in _described(layer):
        if names is not None and entry.name not in names:
            continue
        entries.append(entry)
        if entry.same_as is None:
            if slot.tensor.is_meta:
                raise ModelError(f"layer {layer.name!r}: {slot.name} is on the meta device")
            blocks.append((entry.name, _in_memory_order(slot.tensor)))
            parameter_bytes += entry.num_bytes if entry.is_parameter else 0
    data = _safetensors(blocks)
    return data, LayerEntry(
        index=layer.index,
        name=layer.name,
        class_name=class_name(layer.module),
        num_bytes=len(data),
        parameter_bytes=parameter_bytes,
        settings=settings_digest(layer.module),
        digest=xxhash.xxh3_64_hexdigest(data),
        tensors=tuple(entries),
    )


def _safetensors(blocks: list[tuple[str, Tensor]]) -> bytearray:
    # Behind the multiples of 64 the next tensor is aligned too: let it be the largest of the rest.
    ordered = sorted(blocks, key=lambda block: (block[1].nbytes % ALIGNMENT != 0, -block[1].nbytes))
    fields: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in ordered:
        code = _CODES.get(tensor.dtype)
        fields[name] = {
            "dtype": code or "U8",
            "shape": list(tensor.shape) if code else [tensor.nbytes],
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    header = json.dumps(fields, separators=(",", ":")).encode()
    header += b" " * (-(8 + len(header)) % ALIGNMENT)
    start = 8 + len(header)
    data = bytearray(start + offset)
    view = memoryview(data)  # a bytearray copies what is assigned to its slices
    view[:start] = len(header).to_bytes(8, "little") + header
    for _, tensor in ordered:
        if tensor.nbytes:
            flat: Any = tensor.reshape(-1).view(torch.uint8).numpy()
            view[start : start + tensor.nbytes] = memoryview(flat)
        start += tensor.nbytes
    return data


def unpack_layer(data: memoryview, entry: LayerEntry) -> dict[str, Tensor]:
    """Slot name -> tensor, one per distinct tensor of `entry`.

    A tensor aliases `data` where that is writable and its first byte lies at a multiple of 64;
    otherwise that tensor alone is copied. Raises `ObjectCorrupt` if `data` is not what `entry`
    describes.
    """
    data = data.cast("B")
    offsets = _offsets(data, f"layer {entry.index} ({entry.name})")
    tensors: dict[str, Tensor] = {}
    for item in entry.tensors:
        if item.same_as is not None:
            continue
        start, stop = offsets.get(item.name, (0, -1))
        if stop - start != item.num_bytes:
            raise ObjectCorrupt(
                f"the weights of layer {entry.index} ({entry.name}) do not hold {item.name} as "
                f"{item.num_bytes} bytes"
            )
        flat = _tensor_at(data, start, stop, item.torch_dtype)
        tensors[item.name] = flat.as_strided(item.shape, item.strides)
    return tensors


def _tensor_at(data: memoryview, start: int, stop: int, dtype: torch.dtype) -> Tensor:
    count = (stop - start) // dtype.itemsize
    if count == 0:
        return torch.empty(0, dtype=dtype)
    if data.readonly:
        return torch.frombuffer(bytearray(data[start:stop]), dtype=dtype).clone()
    if torch.frombuffer(data, dtype=torch.uint8, count=1, offset=start).data_ptr() % ALIGNMENT:
        return torch.frombuffer(data[start:stop], dtype=torch.uint8).clone().view(dtype)
    return torch.frombuffer(data, dtype=dtype, count=count, offset=start)


def _offsets(data: memoryview, what: str) -> dict[str, tuple[int, int]]:
    """Tensor name -> (start, stop) in `data`, checked against its length."""
    try:
        size = int.from_bytes(data[:8], "little")
        if len(data) < 8 or size > min(len(data) - 8, _MAX_HEADER_BYTES):
            raise ValueError("a header longer than the file")
        fields = json.loads(bytes(data[8 : 8 + size]))
        found: dict[str, tuple[int, int]] = {}
        for name, field in fields.items():
            if name != "__metadata__":
                start, stop = (8 + size + int(offset) for offset in field["data_offsets"])
                if not 8 + size <= start <= stop <= len(data):
                    raise ValueError(f"{name} lies outside of the file")
                found[name] = (start, stop)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ObjectCorrupt(f"the weights of {what} are no safetensors file: {error}") from error
    return found


def check_bytes(data: memoryview, entry: LayerEntry) -> None:
    """Raise `ObjectCorrupt` unless `data` are the very bytes that `entry` was made with."""
    if data.nbytes != entry.num_bytes or xxhash.xxh3_64_hexdigest(data) != entry.digest:
        raise ObjectCorrupt(
            f"the weights of layer {entry.index} ({entry.name}) are damaged: {data.nbytes} bytes "
            f"that are not the {entry.num_bytes} bytes with digest {entry.digest}"
        )


def unpack_state(data: memoryview, entry: LayerEntry) -> dict[str, Tensor]:
    """The layer's part of the plain model's state dict, by the plain model's names."""
    tensors = unpack_layer(data, entry)
    state: dict[str, Tensor] = {}
    for item in entry.tensors:
        if item.persistent:
            name = f"{entry.name}.{item.name.partition('/')[2]}"
            state[name] = tensors[item.same_as or item.name]
    return state
