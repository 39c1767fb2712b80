"""Faults injected into a store, one operation at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum

from funcpipe.errors import StoreUnavailable
from funcpipe.store.base import Data, Pace, PacedStore
from funcpipe.store.buffers import check_prefix
from funcpipe.store.wait import wait_for

__all__ = ["Fault", "Faulty"]


class Fault(Enum):
    """BEFORE: the request never arrives. AFTER: it is carried out, but its answer is lost."""

    BEFORE = "before"
    AFTER = "after"


class Faulty:
    """Asks `choose(operation, key)` before each operation which fault, if any, to inject.

    Operations are ``put``, ``get``, ``delete`` (asked with its first key) and ``list``.
    """

    def __init__(self, store: PacedStore, choose: Callable[[str, str], Fault | None]) -> None:
        self._store = store
        self._choose = choose

    def put(
        self, key: str, data: Data, *, if_absent: bool = False, pace: Pace | None = None
    ) -> None:
        fault = self._enter("put", key)
        self._store.put(key, data, if_absent=if_absent, pace=pace)
        self._leave(fault, "put", key)

    def get(
        self, key: str, *, start: int = 0, stop: int | None = None, pace: Pace | None = None
    ) -> memoryview:
        fault = self._enter("get", key)
        body = self._store.get(key, start=start, stop=stop, pace=pace)
        self._leave(fault, "get", key)
        return body

    def wait(self, key: str, *, deadline_s: float) -> memoryview:
        return wait_for(self, key, deadline_s=deadline_s).data

    def delete(self, keys: Iterable[str]) -> None:
        targets = list(keys)
        first = targets[0] if targets else ""
        fault = self._enter("delete", first)
        self._store.delete(targets)
        self._leave(fault, "delete", first)

    def list(self, prefix: str) -> Iterator[str]:
        check_prefix(prefix)
        return self._listed(prefix)

    def _listed(self, prefix: str) -> Iterator[str]:
        fault = self._enter("list", prefix)
        yield from self._store.list(prefix)
        self._leave(fault, "list", prefix)

    def close(self) -> None:
        self._store.close()

    def _enter(self, operation: str, key: str) -> Fault | None:
        fault = self._choose(operation, key)
        if fault is Fault.BEFORE:
            raise StoreUnavailable(f"injected: {operation} of {key!r} did not arrive")
        return fault

    def _leave(self, fault: Fault | None, operation: str, key: str) -> None:
        if fault is Fault.AFTER:
            raise StoreUnavailable(f"injected: the answer to {operation} of {key!r} was lost")
