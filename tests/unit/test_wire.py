"""Wire: what is sent arrives with the same bits, and damage of any kind is noticed."""

from __future__ import annotations

import json
import math
import os
import struct
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import xxhash

from funcpipe import wire
from funcpipe.errors import ModelError, ObjectCorrupt

DTYPES = sorted(wire._DTYPES.values(), key=str)


def aligned(data: bytes) -> memoryview:
    """`data` in a writable buffer that starts at a multiple of 64."""
    buffer = memoryview(torch.empty(len(data), dtype=torch.uint8).numpy())
    buffer[:] = data
    return buffer


def joined(value: Any, **fields: Any) -> bytes:
    return b"".join(wire.encode(value, **fields))


def sent(value: Any, **fields: Any) -> wire.Message:
    return wire.decode(aligned(joined(value, **fields)))


def bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def assert_same_tensor(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert type(got) is torch.Tensor
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert got.requires_grad == expected.requires_grad
    assert bits(got) == bits(expected)


def reframed(change: Callable[[dict[str, Any]], Any], value: Any = None) -> bytes:
    """A message whose header was changed and whose checksums are right again."""
    frame = joined({"a": torch.arange(3.0), "b": 1} if value is None else value)
    (header_bytes,) = struct.unpack_from("<Q", frame, 8)
    header = json.loads(frame[24 : 24 + header_bytes])
    payload = frame[-(-(24 + header_bytes) // 64) * 64 :]
    changed = change(header)
    text = json.dumps(header if changed is None else changed).encode()
    return framed(text, payload)


def framed(
    text: bytes, payload: bytes = b"", *, magic: bytes = b"FPWR", version: int = 1, zero: int = 0
) -> bytes:
    fixed = struct.pack("<4sHHQ", magic, version, zero, len(text))
    check = struct.pack("<Q", xxhash.xxh3_64_intdigest(fixed + text))
    front = fixed + check + text
    return front + bytes(-len(front) % 64) + payload


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 5), (3, 1, 2)], ids=str)
def test_a_tensor_of_any_dtype_arrives_with_its_bits(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    # given
    num_bytes = math.prod(shape) * dtype.itemsize
    pattern = bytearray(byte % (2 if dtype == torch.bool else 251) for byte in range(num_bytes))
    flat = torch.frombuffer(pattern or bytearray(64), dtype=dtype)
    tensor = (flat if num_bytes else flat[:0]).view(shape)
    # when
    message = sent(tensor)
    # then
    assert_same_tensor(message.value, tensor)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        0,
        -1,
        2**63 - 1,
        2**63,
        -(2**63),
        -(10**6000),
        0.1,
        5e-324,
        -0.0,
        float("inf"),
        float("-inf"),
        "",
        "naïve \ud800 \x00 \U0001f600",
        (),
        [],
        {},
        ((1, [2, (None, {"": (), "d": {"t": [1]}})]), {"x": 0, "f": "nan", "i": "0x1"}),
    ],
    ids=lambda value: repr(value)[:40] if not isinstance(value, int) else str(type(value)),
)
def test_a_value_without_tensors_arrives_equal_and_of_the_same_types(value: Any) -> None:
    got = sent(value).value
    assert type(got) is type(value)
    assert repr(got) == repr(value) if not isinstance(value, int) else got == value


def test_nan_arrives() -> None:
    assert math.isnan(sent([float("nan")]).value[0])


def test_nested_values_keep_their_shape_and_the_meta_data() -> None:
    # given
    value = ([torch.ones(2), (torch.zeros(1, 3), None)], {"mask": torch.tensor([True, False])}, 7)
    meta = {"step": 3, "rng": [1, (2, 3)], "loss": float("inf")}
    # when
    message = sent(value, meta=meta)
    # then
    (first, (second, nothing)), mapping, seven = message.value
    assert_same_tensor(first, value[0][0])
    assert_same_tensor(second, value[0][1][0])
    assert_same_tensor(mapping["mask"], value[1]["mask"])
    assert (nothing, seven) == (None, 7)
    assert message.meta == meta
    assert sent(1).meta == {}


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).view(3, 4).t(),
        torch.arange(12)[::3],
        torch.ones(1).expand(5, 4),
        torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last),
        torch.arange(10.0)[5:],
        torch.tensor([1 + 2j, 3 - 1j]).conj(),
        torch.tensor([1 + 2j, 3 - 1j]).conj().imag,
    ],
    ids=["transposed", "strided", "expanded", "channels_last", "offset", "conj", "neg"],
)
def test_tensors_in_any_memory_order_arrive(tensor: torch.Tensor) -> None:
    got = sent((tensor, tensor)).value
    for copy in got:
        assert copy.shape == tensor.shape
        assert torch.equal(copy, tensor)
        assert copy.is_contiguous()


def test_contiguous_tensors_are_sent_as_views_and_cannot_be_written_through() -> None:
    # given
    tensor = torch.arange(1000, dtype=torch.bfloat16).requires_grad_()
    # when
    buffers = wire.encode([tensor, 1, tensor.detach()[100:]])
    # then
    views = [buffer for buffer in buffers if isinstance(buffer, memoryview)]
    addresses = [np.frombuffer(view, np.uint8).ctypes.data for view in views]
    assert addresses == [tensor.data_ptr(), tensor.data_ptr() + 200]
    assert all(view.readonly for view in views)


def test_decoding_aliases_an_aligned_writable_buffer_at_aligned_places() -> None:
    # given
    frame = aligned(joined([torch.ones(3), torch.ones(5, dtype=torch.float64), torch.ones(1)]))
    # when
    tensors = wire.decode(frame).value
    # then
    start = np.frombuffer(frame, np.uint8).ctypes.data
    assert all(start < tensor.data_ptr() < start + frame.nbytes for tensor in tensors)
    assert [tensor.data_ptr() % 64 for tensor in tensors] == [0, 0, 0]
    tensors[0].fill_(7)
    assert frame[-132:-128] != frame[-4:]
    assert struct.pack("<3f", 7, 7, 7) in bytes(frame)


@pytest.mark.parametrize("kind", ["bytes", "readonly", "unaligned"])
def test_a_buffer_that_cannot_be_aliased_is_copied(kind: str) -> None:
    # given
    data = joined(torch.arange(100.0))
    buffer: Any = {
        "bytes": lambda: data,
        "readonly": lambda: aligned(data).toreadonly(),
        "unaligned": lambda: aligned(b"x" + data)[1:],
    }[kind]()
    # when
    tensor = wire.decode(buffer).value
    tensor.add_(1)
    # then
    assert bytes(buffer) == data
    assert tensor.data_ptr() % 64 == 0
    assert torch.equal(tensor, torch.arange(100.0) + 1)


def test_gradient_flags_survive_and_tensors_are_usable_leaves() -> None:
    # given
    inner = torch.ones(2, 3, requires_grad=True) * 2
    value = [inner, torch.ones(2, 3), torch.nn.Parameter(torch.ones(0)), torch.ones(())]
    # when
    got, plain, parameter, scalar = sent(value).value
    # then
    assert [got.requires_grad, plain.requires_grad, parameter.requires_grad] == [True, False, True]
    assert got.is_leaf
    assert type(parameter) is torch.Tensor
    assert not any(tensor._is_view() for tensor in (got, plain, parameter, scalar))
    (got * plain).sum().backward()
    assert torch.equal(got.grad, torch.ones(2, 3))


def test_changing_one_tensor_in_place_leaves_the_graph_of_another_valid() -> None:
    # given
    first, second = sent([torch.ones(2, requires_grad=True), torch.ones(2)]).value
    squared = (first * first).sum()
    # when
    second.zero_()
    squared.backward()
    # then
    assert torch.equal(first.grad, torch.full((2,), 2.0))


Point = namedtuple("Point", "x y")


class Tagged(torch.Tensor):
    pass


class Odd(dict):  # type: ignore[type-arg]
    pass


@pytest.mark.parametrize(
    ("value", "path", "what"),
    [
        (object(), "value is object", "None, bool, int"),
        ([{"mask": {1, 2}}], "value[0]['mask'] is set", "supported are dense CPU tensors"),
        ((1, np.ones(2)), "value[1] is numpy.ndarray", "cannot be sent"),
        (np.float64(1), "value is numpy.float64", "cannot be sent"),
        (Point(1, 2), "Point", "cannot be sent"),
        (torch.Size([1]), "torch.Size", "cannot be sent"),
        (Odd(), "Odd", "cannot be sent"),
        ({"a": {3: 1}}, "value['a'] has the key 3 of type int", "must be str"),
        (1j, "value is complex", "cannot be sent"),
        (b"x", "value is bytes", "cannot be sent"),
        (torch.eye(2).to_sparse(), "sparse", "dense CPU tensors"),
        (torch.ones(2, device="meta"), "on meta", "dense CPU tensors"),
        (torch.ones(2).as_subclass(Tagged), "Tagged, a subclass", "dense CPU tensors"),
        (torch.frombuffer(bytearray(4), dtype=torch.uint4), "uint4", "cannot be sent"),
        (torch.ones([1] * 65), "65 dimensions", "cannot be sent"),
    ],
)
def test_what_the_format_does_not_hold_is_refused_with_its_path(
    value: Any, path: str, what: str
) -> None:
    with pytest.raises(ModelError) as caught:
        wire.encode(value)
    assert path in str(caught.value)
    assert what in str(caught.value)


def test_meta_data_hold_no_tensors_and_say_so() -> None:
    with pytest.raises(ModelError, match=r"meta\['x'\] is torch.Tensor"):
        wire.encode(1, meta={"x": torch.ones(1)})


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ModelError, match="levels deep"):
        wire.encode(value)


@pytest.fixture(scope="module")
def small() -> bytes:
    value = {"a": torch.arange(3.0, requires_grad=True), "b": (None, 1), "c": torch.ones(9).bool()}
    return joined(value, meta={"step": 1})


def test_every_flipped_byte_is_noticed(small: bytes) -> None:
    assert wire.decode(small).meta == {"step": 1}
    for position in range(len(small)):
        for mask in (0x01, 0x80, 0xFF):
            damaged = bytearray(small)
            damaged[position] ^= mask
            with pytest.raises(ObjectCorrupt):
                wire.decode(damaged)


def test_every_truncation_is_noticed(small: bytes) -> None:
    for length in range(len(small)):
        with pytest.raises(ObjectCorrupt):
            wire.decode(aligned(small[:length]))


@pytest.mark.parametrize("extra", [b"\0", bytes(64), b"x" * 7])
def test_trailing_bytes_are_noticed(small: bytes, extra: bytes) -> None:
    with pytest.raises(ObjectCorrupt):
        wire.decode(small + extra)


def put(*path: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(header: dict[str, Any]) -> None:
        node: Any = header
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = to

    return change


def test_reframing_without_a_change_is_valid() -> None:
    assert wire.decode(reframed(lambda header: None)).value["b"] == 1


@pytest.mark.parametrize(
    "change",
    [
        put("tensors", to=None),
        put("tensors", to=[]),
        put("tensors", 0, to={}),
        put("tensors", 0, to=["float32", [3], 0, 12]),
        put("tensors", 0, 0, to="float33"),
        put("tensors", 0, 0, to=["float32"]),
        put("tensors", 0, 0, to="float64"),
        put("tensors", 0, 1, to=3),
        put("tensors", 0, 1, to=[4]),
        put("tensors", 0, 1, to=[-3]),
        put("tensors", 0, 1, to=[3.0]),
        put("tensors", 0, 1, to=[True, 3]),
        put("tensors", 0, 1, to=[2**62, 2**62]),
        put("tensors", 0, 1, to=[0, 2**62, 2**62]),
        put("tensors", 0, 1, to=[1] * 64 + [3]),
        put("tensors", 0, 2, to=-64),
        put("tensors", 0, 2, to=64),
        put("tensors", 0, 2, to=False),
        put("tensors", 0, 2, to="0"),
        put("tensors", 0, 3, to=8),
        put("tensors", 0, 3, to=2**63),
        put("tensors", 0, 4, to=1),
        put("tensors", to=[["float32", [3], 0, 12, False]] * 2),
        put("payload", to=[]),
        put("payload", to=12),
        put("payload", 0, to=2**80),
        put("payload", 0, to=-12),
        put("payload", 0, to="12"),
        put("payload", 1, to="0"),
        put("payload", 1, to=0),
        put("meta", to=[]),
        put("meta", to=3),
        put("value", to={"x": 1}),
        put("value", to={"x": True}),
        put("value", to={"x": "0"}),
        put("value", to=[{"x": 0}, {"x": 0}]),
        put("value", to=None),
        put("value", to=[{"x": 0}, {}]),
        put("value", to=[{"x": 0}, {"t": {}}]),
        put("value", to=[{"x": 0}, {"d": []}]),
        put("value", to=[{"x": 0}, {"f": "infinity"}]),
        put("value", to=[{"x": 0}, {"f": []}]),
        put("value", to=[{"x": 0}, {"i": "12"}]),
        put("value", to=[{"x": 0}, {"i": "0x"}]),
        put("value", to=[{"x": 0}, {"i": 12}]),
        put("value", to=[{"x": 0}, {"q": 1}]),
        put("value", to=[{"x": 0}, {"t": [], "d": {}}]),
        put("value", to=[{"x": 0}, json.loads("[" * 300 + "]" * 300)]),
        put("more", to=1),
        lambda header: header.pop("meta") and None,
        lambda header: [header],
    ],
)
def test_a_forged_header_is_corrupt_and_nothing_else(change: Callable[..., Any]) -> None:
    with pytest.raises(ObjectCorrupt):
        wire.decode(aligned(reframed(change)))


EMPTY = (
    b'{"value": 1, "meta": {"d": {}}, "tensors": [], "payload": [0, %d]}'
    % xxhash.xxh3_64_intdigest(b"")
)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"magic": b"FPWX"}, "does not start as"),
        ({"zero": 1}, "does not start as"),
        ({"version": 2}, "format version 2, expected 1"),
    ],
)
def test_frames_of_other_formats_say_so(fields: dict[str, Any], expected: str) -> None:
    assert wire.decode(framed(EMPTY)).value == 1
    with pytest.raises(ObjectCorrupt, match=expected):
        wire.decode(framed(EMPTY, **fields))


@pytest.mark.parametrize(("announced", "sent_bytes"), [(12, 20), (20, 20), (20, 12), (8, 8)])
def test_a_payload_of_another_length_is_corrupt_though_its_checksum_is_right(
    announced: int, sent_bytes: int
) -> None:
    # given a table of 12 bytes of tensors
    payload = bytes(sent_bytes)

    def change(header: dict[str, Any]) -> None:
        assert header["payload"][0] == 12
        header["payload"] = [announced, xxhash.xxh3_64_intdigest(payload)]

    frame = reframed(change)
    # then
    with pytest.raises(ObjectCorrupt):
        wire.decode(frame[:-12] + payload)


@pytest.mark.parametrize("shape", [[0, 2**62, 2**62], [0, 2**61], [0, 2**63]])
def test_an_empty_tensor_of_an_impossible_shape_is_corrupt(shape: list[int]) -> None:
    with pytest.raises(ObjectCorrupt, match="shape"):
        wire.decode(reframed(put("tensors", 0, 1, to=shape), [torch.ones(0)]))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'"\xc3\xa4"',
        b"NaN",
        b"[" * 100_000,
        b"1" * 5000,
        EMPTY.replace(b'"value": 1', b'"value": 1, "value": 2'),
        EMPTY.replace(b'"value": 1', b'"value": NaN'),
    ],
    ids=range(9),
)
def test_a_header_that_is_not_json_is_corrupt(text: bytes) -> None:
    with pytest.raises(ObjectCorrupt):
        wire.decode(framed(text))


def test_integer_tensors_cannot_claim_a_gradient() -> None:
    with pytest.raises(ObjectCorrupt, match="cannot require a gradient"):
        wire.decode(reframed(put("tensors", 0, 4, to=True), [torch.arange(3)]))


@pytest.mark.parametrize("header_bytes", [2**64 - 1, 2**63, 2**32, 0])
def test_an_absurd_header_length_is_corrupt(header_bytes: int) -> None:
    fixed = struct.pack("<4sHHQ", b"FPWR", wire.VERSION, 0, header_bytes)
    check = struct.pack("<Q", xxhash.xxh3_64_intdigest(fixed))
    with pytest.raises(ObjectCorrupt):
        wire.decode(fixed + check + bytes(40))


MEASURE = """
import os, re, sys, torch
from funcpipe import wire

def peak_kb():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])

def write(buffers):
    with open(os.devnull, "wb", buffering=0) as sink:
        for buffer in buffers:
            sink.write(buffer)

write(wire.encode(torch.ones(10)))
if sys.argv[1] == "encode":
    tensor = torch.ones(16 * 2**20)
    before = peak_kb()
    write(wire.encode([tensor]))
else:
    frame = memoryview(torch.zeros(64 * 2**20 + 4096, dtype=torch.uint8).numpy())
    end = 0
    for buffer in wire.encode([torch.zeros(1).expand(2**20) for _ in range(16)]):
        frame[end : end + len(buffer)] = buffer
        end += len(buffer)
    del buffer
    before = peak_kb()
    assert len(wire.decode(frame[:end]).value) == 16
print(peak_kb() - before)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux's /proc")
@pytest.mark.parametrize("direction", ["encode", "decode"])
def test_sending_64_mb_takes_less_than_a_tenth_more_memory(direction: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, direction], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 6.4 * 1024
