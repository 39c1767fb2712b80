from __future__ import annotations

import array

import numpy as np
import pytest

from funcpipe.store.buffers import (
    aligned_buffer,
    batches,
    check_key,
    equal,
    is_key,
    pieces,
    total_bytes,
)


@pytest.mark.parametrize("num_bytes", [0, 1, 63, 64, 1000, 1 << 20])
def test_a_buffer_is_writable_flat_and_aligned(num_bytes: int) -> None:
    buffer = aligned_buffer(num_bytes)

    assert (buffer.nbytes, buffer.format, buffer.ndim) == (num_bytes, "B", 1)
    assert not buffer.readonly
    if num_bytes:
        assert np.frombuffer(buffer, dtype=np.uint8).ctypes.data % 64 == 0


def test_a_buffer_of_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        aligned_buffer(-1)


def test_pieces_are_views_of_the_buffers_themselves() -> None:
    first, second = bytearray(b"abc"), bytearray(b"de")

    found = pieces([first, b"", second])
    first[0] = ord("A")

    assert [bytes(view) for view in found] == [b"Abc", b"de"]
    assert total_bytes([first, b"", second]) == 5


def test_pieces_of_numbers_are_their_bytes() -> None:
    numbers = array.array("d", [1.0, 2.0])

    assert bytes(pieces(memoryview(numbers))[0]) == numbers.tobytes()
    assert total_bytes(memoryview(np.zeros((3, 0), dtype=np.float32))) == 0


@pytest.mark.parametrize("data", ["text", 7, None, ["text"], [7]])
def test_what_holds_no_bytes_is_refused(data: object) -> None:
    with pytest.raises(TypeError):
        pieces(data)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "body", "same"),
    [
        ([b"ab", b"c"], b"abc", True),
        ([b"ab", b"d"], b"abc", False),
        (b"ab", b"abc", False),
        (b"abcd", b"abc", False),
        (b"", b"", True),
    ],
)
def test_equality_does_not_depend_on_the_cuts(data: object, body: bytes, same: bool) -> None:
    assert equal(data, memoryview(body)) is same  # type: ignore[arg-type]


def test_a_refused_key_is_shown_in_short() -> None:
    with pytest.raises(ValueError, match=r"not a key: 'xxx.*\(902 characters\)") as caught:
        check_key("x" * 900)

    assert len(str(caught.value)) < 400


def test_a_number_is_no_key() -> None:
    with pytest.raises(ValueError, match="not a key: 7"):
        check_key(7)  # type: ignore[arg-type]
    assert is_key("a/b") is True


def test_batches_keep_order_and_size() -> None:
    assert list(batches(iter(range(5)), 2)) == [[0, 1], [2, 3], [4]]
    assert list(batches([], 2)) == []
