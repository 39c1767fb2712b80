"""Wire, over values and damage that nobody thought of."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from funcpipe import wire
from funcpipe.errors import ObjectCorrupt

DTYPES = st.sampled_from(sorted(wire._DTYPES.values(), key=str))


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(DTYPES)
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    count = 1
    for size in shape:
        count *= size
    width = count * dtype.itemsize
    data = draw(st.binary(min_size=width, max_size=width))
    if dtype == torch.bool:
        data = bytes(byte & 1 for byte in data)
    flat = torch.frombuffer(bytearray(data or bytes(16)), dtype=dtype)
    tensor = (flat if count else flat[:0]).view(shape)
    # torch warns when it copies a complex32 tensor, which encoding a permuted one needs.
    if dtype != torch.complex32 and draw(st.booleans()):
        tensor = tensor.permute(draw(st.permutations(range(len(shape)))))
    if dtype.is_floating_point and draw(st.booleans()):
        tensor.requires_grad_()
    return tensor


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | tensors()
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(), inner, max_size=4)
    ),
    max_leaves=12,
)


def form(value: Any) -> Any:
    """`value` with each tensor as its dtype, shape, flag and bytes, and floats as their text."""
    if isinstance(value, torch.Tensor):
        flat = value.detach().contiguous().reshape(-1)
        data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        return ("tensor", value.dtype, tuple(value.shape), value.requires_grad, data)
    if isinstance(value, list | tuple):
        return (type(value), [form(item) for item in value])
    if isinstance(value, dict):
        return (dict, [(key, form(item)) for key, item in value.items()])
    return (type(value), repr(value))


@settings(max_examples=150, deadline=None)
@given(value=VALUES, meta=st.dictionaries(st.text(), st.none() | st.integers() | st.floats()))
def test_what_is_sent_is_what_arrives(value: Any, meta: dict[str, Any]) -> None:
    message = wire.decode(b"".join(wire.encode(value, meta=meta)))
    assert form(message.value) == form(value)
    assert form(message.meta) == form(meta)


@settings(max_examples=150, deadline=None)
@given(value=VALUES, data=st.data())
def test_damage_is_corruption_and_nothing_else(value: Any, data: st.DataObject) -> None:
    frame = b"".join(wire.encode(value))
    start = data.draw(st.integers(0, len(frame)))
    stop = data.draw(st.integers(start, min(start + 80, len(frame))))
    damaged = frame[:start] + data.draw(st.binary(max_size=80)) + frame[stop:]
    try:
        message = wire.decode(damaged)
    except ObjectCorrupt:
        assert damaged != frame
    else:
        assert damaged == frame
        assert form(message.value) == form(value)


@settings(max_examples=200, deadline=None)
@given(noise=st.binary(max_size=200))
def test_noise_is_corruption(noise: bytes) -> None:
    for bytes_like in (noise, b"FPWR\x01\x00\x00\x00" + noise):
        try:
            wire.decode(bytes_like)
        except ObjectCorrupt:
            continue
        raise AssertionError("noise was taken for a message")
