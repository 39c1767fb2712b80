from __future__ import annotations

import pytest

from funcpipe.errors import StoreDenied, StoreError
from funcpipe.store.memory import MemoryStore
from funcpipe.store.meter import DELETE, GET, PUT, Metered
from funcpipe.store.probe import Capabilities, probe


class Ignoring(MemoryStore):
    def put(self, key: str, data: object, *, if_absent: bool = False, **rest: object) -> None:
        super().put(key, data)  # type: ignore[arg-type]


class Stale(MemoryStore):
    def get(self, key: str, **options: object) -> memoryview:
        return memoryview(b"an older body")


class WriteOnly(MemoryStore):
    def get(self, key: str, **options: object) -> memoryview:
        raise StoreDenied("reading is not allowed")

    def delete(self, keys: object) -> None:
        raise StoreError("nor is deleting")


@pytest.mark.parametrize("prefix", ["", "run", "run/"])
def test_a_store_that_refuses_a_taken_key(prefix: str) -> None:
    store = Metered(MemoryStore())

    assert probe(store, prefix) == Capabilities(if_absent=True)
    assert list(store.list("")) == []
    usage = store.counts()
    assert [usage.total(name) for name in (PUT, GET, DELETE)] == [2, 1, 1]


def test_a_store_that_does_not() -> None:
    store = Ignoring()

    assert probe(store, "run") == Capabilities(if_absent=False)
    assert list(store.list("")) == []


def test_a_store_that_gives_back_something_else() -> None:
    with pytest.raises(StoreError, match="strongly consistent"):
        probe(Stale(), "run")


def test_the_first_failure_is_the_one_that_is_told() -> None:
    with pytest.raises(StoreDenied, match="reading"):
        probe(WriteOnly(), "run")
