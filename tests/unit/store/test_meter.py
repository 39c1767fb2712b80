from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from funcpipe.clock import Clock
from funcpipe.errors import ObjectExists, ObjectMissing, WaitTimeout
from funcpipe.keys import Run
from funcpipe.store import meter
from funcpipe.store.memory import MemoryStore
from funcpipe.store.meter import DELETE, GET, GET_MISSED, LIST, PUT, Metered, Usage

STEP = Run("run").attempt(1).training(3)


def test_requests_and_bytes_are_counted_by_kind() -> None:
    store = Metered(MemoryStore())

    store.put(STEP.activation(0, 1), [b"12345", b"678"])
    store.put(STEP.gradient(0, 1), b"123")
    store.get(STEP.activation(0, 1))
    store.get(STEP.activation(0, 1), start=2, stop=4)

    assert store.counts() == Usage(
        requests={(PUT, "act"): 1, (PUT, "grad"): 1, (GET, "act"): 2},
        bytes_up={"act": 8, "grad": 3},
        bytes_down={"act": 10},
    )


def test_a_get_that_finds_nothing_is_counted_apart() -> None:
    store = Metered(MemoryStore())

    with pytest.raises(ObjectMissing):
        store.get(STEP.sum(0, 1, 2))
    with pytest.raises(WaitTimeout):
        store.wait(STEP.sum(0, 1, 2), deadline_s=0.0)

    assert store.counts() == Usage(requests={(GET_MISSED, "sum"): 2})


def test_a_put_that_was_refused_is_a_request_without_bytes() -> None:
    store = Metered(MemoryStore())
    lease = Run("run").attempt(1).lease(0, 0, 0)
    store.put(lease, b"one")

    with pytest.raises(ObjectExists):
        store.put(lease, b"other", if_absent=True)

    assert store.counts() == Usage(requests={(PUT, "lease"): 2}, bytes_up={"lease": 3})


def test_what_never_became_a_request_is_not_counted() -> None:
    store = Metered(MemoryStore())

    with pytest.raises(ValueError, match="not a key"):
        store.put("../x", b"")
    with pytest.raises(ValueError, match="from 0"):
        store.get("k", start=-1)
    store.delete([])

    assert store.counts() == Usage()


def test_deletes_count_requests_and_objects() -> None:
    store = Metered(MemoryStore())
    keys = [STEP.activation(0, number) for number in range(1000)] + [STEP.gradient(0, 0)]

    store.delete(keys)
    store.delete([STEP.activation(0, 0), STEP.gradient(0, 0)])

    assert store.counts() == Usage(
        requests={(DELETE, "act"): 2, (DELETE, "grad"): 1}, deleted={"act": 1001, "grad": 2}
    )


@pytest.mark.parametrize(("keys", "pages"), [(0, 1), (1, 1), (1000, 1), (1001, 2)])
def test_listings_count_their_pages(keys: int, pages: int) -> None:
    inner = MemoryStore()
    for number in range(keys):
        inner.put(f"run/x/{number}", b"")
    store = Metered(inner)

    assert len(list(store.list("run/"))) == keys
    assert store.counts() == Usage(requests={(LIST, "other"): pages})


def test_snapshots_subtract_and_add() -> None:
    store = Metered(MemoryStore())
    store.put(STEP.activation(0, 0), b"1234")
    before = store.counts()
    store.put(STEP.activation(0, 1), b"56")
    store.get(STEP.activation(0, 1))

    step = store.counts() - before

    assert step == Usage(
        requests={(PUT, "act"): 1, (GET, "act"): 1}, bytes_up={"act": 2}, bytes_down={"act": 2}
    )
    assert before + step == store.counts()
    assert (step + step).total(PUT) == 2


def test_usage_survives_json() -> None:
    usage = Usage(
        requests={(GET_MISSED, "act"): 3},
        bytes_up={"act": 5},
        deleted={"act": 1},
        deleted_bytes={"act": 4},
    )
    told = json.loads(json.dumps(usage.to_dict()))

    assert Usage.from_dict(told) == usage
    del told["deleted_bytes"]  # as an earlier version wrote it
    assert Usage.from_dict(told) == Usage(
        requests=usage.requests, bytes_up=usage.bytes_up, deleted=usage.deleted
    )


def test_what_lies_in_the_store_is_bytes_put_less_bytes_deleted() -> None:
    # given a writer and a reader, who deletes what it has read and some of its own
    inner = MemoryStore()
    writer, reader = Metered(inner), Metered(inner)
    writer.put(STEP.activation(0, 0), b"12345")
    writer.put(STEP.activation(0, 1), b"678")
    reader.get(STEP.activation(0, 0))
    reader.put(STEP.sum(0, 0, 0), b"ab")
    reader.put(STEP.sum(0, 0, 0), b"abcd")
    reader.put(STEP.sum(0, 0, 1), b"e")

    reader.delete([STEP.activation(0, 0), STEP.sum(0, 0, 1)])
    reader.delete([STEP.activation(0, 0)])

    assert reader.counts().deleted_bytes == {"act": 5, "sum": 3}
    both = writer.counts() + reader.counts()
    left = sum(len(inner.get(key)) for key in inner.list(""))
    assert sum(both.bytes_up.values()) - sum(both.deleted_bytes.values()) == left == 7


def test_sizes_that_nobody_told_are_not_made_up() -> None:
    inner = MemoryStore()
    for number in range(2):
        inner.put(STEP.activation(0, number), b"12345")
    store = Metered(inner)
    store.get(STEP.activation(0, 0), start=1)

    store.delete([STEP.activation(0, 0), STEP.activation(0, 1)])

    assert store.counts() == Usage(
        requests={(GET, "act"): 1, (DELETE, "act"): 1}, bytes_down={"act": 4}, deleted={"act": 2}
    )


def test_few_sizes_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "KNOWN_SIZES", 3)
    store = Metered(MemoryStore())
    keys = [STEP.activation(0, number) for number in range(5)]
    for size, key in enumerate(keys):
        store.put(key, bytes(size))

    store.delete(keys)

    assert store.counts().deleted_bytes == {"act": 2 + 3 + 4}


def test_a_wait_passes_in_the_meter_s_seconds() -> None:
    class Still(Clock):
        slept_s = 0.0

        def now(self) -> float:
            return self.slept_s

        def sleep(self, seconds: float) -> None:
            self.slept_s += seconds

    clock = Still()
    with pytest.raises(WaitTimeout):
        Metered(MemoryStore(), clock=clock).wait("k", deadline_s=3600.0)
    assert clock.slept_s == pytest.approx(3600.0)


def test_threads_lose_no_count() -> None:
    store = Metered(MemoryStore())

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: store.put(f"k{number}", b"xy"), range(400)))

    assert store.counts() == Usage(requests={(PUT, "other"): 400}, bytes_up={"other": 800})
