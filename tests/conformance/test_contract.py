"""One suite for every store: what `ObjectStore` promises."""

from __future__ import annotations

import itertools
import string
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from funcpipe.errors import ObjectExists, ObjectMissing, StoreError, WaitTimeout
from funcpipe.store.base import DELETE_BATCH_KEYS, ObjectStore
from funcpipe.store.probe import probe

from .backends import Backend
from .conftest import PAGE_KEYS


def noise(num_bytes: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(num_bytes)


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, dtype=np.uint8).ctypes.data)


@pytest.mark.parametrize("num_bytes", [0, 1, (64 << 10) + 1])
def test_an_object_comes_back_as_it_went(store: ObjectStore, num_bytes: int) -> None:
    data = noise(num_bytes)

    store.put("run/a0001/act/0.00001", data)

    assert bytes(store.get("run/a0001/act/0.00001")) == data


def test_several_buffers_make_one_object(store: ObjectStore) -> None:
    data = noise(8 << 20)
    cuts = [0, 1, 64, 64, 3 << 20, (3 << 20) + 17, 8 << 20]
    view = memoryview(data)

    store.put("big", [view[a:b] for a, b in itertools.pairwise(cuts)])

    assert store.get("big") == view


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("num_bytes", [100, 200_000])
def test_any_kind_of_buffer_will_do(store: ObjectStore, wrap: type, num_bytes: int) -> None:
    data = noise(num_bytes)

    store.put("one", wrap(data))
    store.put("two", [wrap(data), wrap(b""), wrap(data)])

    assert bytes(store.get("one")) == data
    assert bytes(store.get("two")) == data + data


def test_views_of_numbers_go_as_their_bytes(store: ObjectStore) -> None:
    numbers = np.arange(30_000, dtype=np.float64).reshape(100, 300)

    store.put("numbers", memoryview(numbers))

    assert np.array_equal(np.frombuffer(store.get("numbers")).reshape(100, 300), numbers)


def test_memory_that_is_not_contiguous_is_refused(store: ObjectStore) -> None:
    with pytest.raises(TypeError, match="contiguous"):
        store.put("strided", memoryview(bytes(10))[::2])


@pytest.mark.parametrize("num_bytes", [1, 1000, 300_000])
def test_what_is_got_is_writable_aligned_and_ones_own(store: ObjectStore, num_bytes: int) -> None:
    data = bytearray(noise(num_bytes))
    store.put("k", data)
    original = bytes(data)

    data[0] ^= 0xFF  # the store's copy must not follow the caller's buffer
    first = store.get("k")
    first[0] = first[0] ^ 0xFF
    second = store.get("k")

    assert not first.readonly
    assert address(first) % 64 == 0
    assert bytes(second) == original


def test_a_put_replaces_what_was_there(store: ObjectStore) -> None:
    store.put("k", b"a long first value")
    store.put("k", b"second")

    assert bytes(store.get("k")) == b"second"


@pytest.mark.parametrize(
    ("start", "stop"),
    [
        *((0, 10), (10, 20), (5, None), (0, 300), (290, 500), (299, 300)),
        *((300, None), (1000, 2000), (0, 0), (7, 7), (9, 3)),
    ],
)
def test_ranges_are_cut_as_python_cuts(store: ObjectStore, start: int, stop: int | None) -> None:
    data = noise(300)
    store.put("k", data)

    assert bytes(store.get("k", start=start, stop=stop)) == data[start:stop]


def test_ranges_of_an_empty_object_are_empty(store: ObjectStore) -> None:
    store.put("k", b"")

    assert bytes(store.get("k", start=0, stop=10)) == b""
    assert bytes(store.get("k", start=3)) == b""


@pytest.mark.parametrize("bounds", [{}, {"start": 5}, {"stop": 0}, {"start": 2, "stop": 9}])
def test_a_missing_object_is_told_whatever_the_range(
    store: ObjectStore, bounds: dict[str, int]
) -> None:
    with pytest.raises(ObjectMissing, match="run/absent"):
        store.get("run/absent", **bounds)


@pytest.mark.parametrize("bounds", [{"start": -1}, {"stop": -1}])
def test_bounds_that_count_from_the_end_are_refused(
    store: ObjectStore, bounds: dict[str, int]
) -> None:
    with pytest.raises(ValueError, match="from 0"):
        store.get("k", **bounds)


def test_of_eight_that_claim_a_key_one_wins(store: ObjectStore, backend: Backend) -> None:
    start = threading.Barrier(8)

    def claim(number: int) -> bool:
        start.wait()
        try:
            store.put("run/lease", f"token {number}".encode(), if_absent=True)
        except ObjectExists:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        won = list(threads.map(claim, range(8)))

    if backend.if_absent:
        assert won.count(True) == 1
        assert bytes(store.get("run/lease")) == f"token {won.index(True)}".encode()
    else:
        assert won == [True] * 8


def test_the_probe_finds_what_is_declared(store: ObjectStore, backend: Backend) -> None:
    capabilities = probe(store, "run")

    assert capabilities.if_absent is backend.if_absent
    assert list(store.list("")) == []


def test_a_key_below_a_key(store: ObjectStore, backend: Backend) -> None:
    store.put("k", b"upper")

    if backend.nested_keys:
        store.put("k/x", b"lower")
        assert sorted(store.list("k")) == ["k", "k/x"]
        assert bytes(store.get("k/x")) == b"lower"
    else:
        with pytest.raises(StoreError):
            store.put("k/x", b"lower")
        with pytest.raises(ObjectMissing):
            store.get("k/x")
    assert bytes(store.get("k")) == b"upper"


def test_the_folder_of_deleted_keys_is_gone_with_them(store: ObjectStore, backend: Backend) -> None:
    store.put("folder/x/y", b"lower")
    store.delete(["folder/x/y"])

    if backend.keeps_folders:
        with pytest.raises(StoreError):
            store.put("folder", b"upper")
    else:
        store.put("folder", b"upper")
        assert bytes(store.get("folder")) == b"upper"


def test_deleting_removes_and_a_missing_object_is_no_error(store: ObjectStore) -> None:
    store.put("a/1", b"1")
    store.put("a/2", b"2")

    store.delete(["a/1", "a/absent", "b/absent/too"])
    store.delete([])
    store.delete(key for key in ["a/1"])

    assert list(store.list("")) == ["a/2"]


def test_more_keys_than_one_request_takes_are_deleted(store: ObjectStore) -> None:
    keys = [f"many/{number:04d}" for number in range(DELETE_BATCH_KEYS + 1)]
    held = [keys[0], keys[1], keys[DELETE_BATCH_KEYS - 1], keys[DELETE_BATCH_KEYS]]
    for key in held:
        store.put(key, b"")
    assert sorted(store.list("many/")) == held

    store.delete(keys)

    assert list(store.list("")) == []


def test_a_listing_goes_past_its_page(store: ObjectStore) -> None:
    keys = [f"page/{number:03d}" for number in range(2 * PAGE_KEYS + 1)]
    for key in keys:
        store.put(key, b"x")

    assert sorted(store.list("page/")) == keys


def test_a_prefix_is_of_characters_not_of_folders(store: ObjectStore) -> None:
    for key in ["run/a", "run/ab/c", "run/b", "running", "ru"]:
        store.put(key, b"")

    assert sorted(store.list("run/a")) == ["run/a", "run/ab/c"]
    assert sorted(store.list("run")) == ["run/a", "run/ab/c", "run/b", "running"]
    assert sorted(store.list("run/")) == ["run/a", "run/ab/c", "run/b"]
    assert sorted(store.list("")) == ["ru", "run/a", "run/ab/c", "run/b", "running"]
    assert list(store.list("absent/")) == []


@pytest.mark.parametrize(
    "key",
    [
        string.ascii_letters + string.digits + "._-/x",
        ".hidden/..double/...",
        "-dash/_under",
        "a" * 255,
        "/".join(["deep"] * 20),
    ],
)
def test_every_allowed_character_is_kept(store: ObjectStore, key: str) -> None:
    store.put(key, b"here")

    assert list(store.list("")) == [key]
    assert bytes(store.get(key)) == b"here"
    store.delete([key])
    assert list(store.list("")) == []


@pytest.mark.parametrize(
    "key",
    [
        *("", "/a", "a/", "a//b", ".", "..", "a/../b", "./a"),
        *("a b", "a\n", "a\\b", "ä", "a\0", "~a", "a" * 256, "/".join(["ab"] * 301)),
    ],
)
def test_other_keys_are_refused_before_any_request(store: ObjectStore, key: str) -> None:
    store.put("kept", b"")

    for attempt in (
        lambda: store.put(key, b"x"),
        lambda: store.get(key),
        lambda: store.wait(key, deadline_s=0.0),
        lambda: store.delete(["kept", key]),
    ):
        with pytest.raises(ValueError, match="not a key"):
            attempt()
    assert list(store.list("")) == ["kept"]


@pytest.mark.parametrize("prefix", ["/", "../", "a/../", "a b", "a//"])
def test_other_prefixes_are_refused(store: ObjectStore, prefix: str) -> None:
    with pytest.raises(ValueError, match="not a prefix"):
        store.list(prefix)


def test_a_wait_sees_what_another_thread_puts(store: ObjectStore) -> None:
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(store.wait, "late", deadline_s=60.0)
        store.put("late", b"arrived")

        assert bytes(waiting.result()) == b"arrived"


def test_a_wait_finds_at_once_what_is_there(store: ObjectStore) -> None:
    store.put("k", b"here")

    assert bytes(store.wait("k", deadline_s=0.0)) == b"here"


def test_a_wait_ends_at_its_deadline(store: ObjectStore) -> None:
    with pytest.raises(WaitTimeout, match=r"'never'.*0\.05 s"):
        store.wait("never", deadline_s=0.05)


def test_eight_threads_do_not_disturb_each_other(store: ObjectStore) -> None:
    def work(number: int) -> bool:
        data = noise(50_000 + number, seed=number)
        for turn in range(3):
            key = f"thread/{number}/{turn}"
            store.put(key, [data[:100], data[100:]])
            if bytes(store.get(key)) != data:
                return False
            store.delete([key])
        return True

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(work, range(8))) == [True] * 8
    assert list(store.list("")) == []


def test_a_reader_sees_a_whole_object_while_it_is_replaced(store: ObjectStore) -> None:
    values = [bytes([number]) * 100_000 for number in range(8)]
    store.put("k", values[0])

    with ThreadPoolExecutor(1) as threads:
        writer = threads.submit(lambda: [store.put("k", value) for value in values])
        seen = [bytes(store.get("k")) for _ in range(12)]
        writer.result()

    assert set(seen) <= set(values)


def test_closing_twice_is_no_error(store: ObjectStore) -> None:
    store.put("k", b"x")

    store.close()
    store.close()
