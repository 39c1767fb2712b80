"""Counting requests and bytes: what a bill is made of, and what tests hold formulas to."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from funcpipe.errors import ObjectMissing
from funcpipe.keys import kind_of
from funcpipe.store.base import DELETE_BATCH_KEYS, Data, Pace, PacedStore
from funcpipe.store.buffers import batches, check_key, check_prefix, check_range, total_bytes
from funcpipe.store.wait import wait_for

__all__ = ["DELETE", "GET", "GET_MISSED", "LIST", "PUT", "Metered", "Usage"]

PUT, GET, GET_MISSED, DELETE, LIST = "PUT", "GET", "GET_MISSED", "DELETE", "LIST"


@dataclass(frozen=True, kw_only=True)
class Usage:
    """A snapshot of counts; snapshots add (workers) and subtract (one step of a run).

    `requests` counts by (operation, kind of key). A get that found nothing is a GET_MISSED and no
    GET. A DELETE is one request of up to 1,000 keys, under the kind of its first key; a LIST is
    one page of up to 1,000 keys. `deleted` counts keys; bytes are those of objects, by kind.
    """

    requests: Mapping[tuple[str, str], int] = field(default_factory=dict)
    bytes_up: Mapping[str, int] = field(default_factory=dict)
    bytes_down: Mapping[str, int] = field(default_factory=dict)
    deleted: Mapping[str, int] = field(default_factory=dict)

    def total(self, operation: str) -> int:
        """Requests of one operation over all kinds."""
        return sum(count for (name, _), count in self.requests.items() if name == operation)

    def __add__(self, other: Usage) -> Usage:
        return self._merged(other, 1)

    def __sub__(self, other: Usage) -> Usage:
        return self._merged(other, -1)

    def _merged(self, other: Usage, sign: int) -> Usage:
        return Usage(
            requests=_merge(self.requests, other.requests, sign),
            bytes_up=_merge(self.bytes_up, other.bytes_up, sign),
            bytes_down=_merge(self.bytes_down, other.bytes_down, sign),
            deleted=_merge(self.deleted, other.deleted, sign),
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: requests as ``{"PUT act": 3}``."""
        return {
            "requests": {f"{name} {kind}": num for (name, kind), num in self.requests.items()},
            "bytes_up": dict(self.bytes_up),
            "bytes_down": dict(self.bytes_down),
            "deleted": dict(self.deleted),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Usage:
        requests = {}
        for label, count in data["requests"].items():
            name, _, kind = label.partition(" ")
            requests[name, kind] = int(count)
        return cls(
            requests=requests,
            bytes_up=dict(data["bytes_up"]),
            bytes_down=dict(data["bytes_down"]),
            deleted=dict(data["deleted"]),
        )


def _merge(left: Mapping[Any, int], right: Mapping[Any, int], sign: int) -> dict[Any, int]:
    merged = Counter(left)
    for key, count in right.items():
        merged[key] += sign * count
    return {key: count for key, count in merged.items() if count}


class Metered:
    """Counts what passes through it; a request that fails was made all the same, and counts.

    Put it outside of `Retrying` to count what the caller asked for.
    """

    def __init__(self, store: PacedStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str]] = Counter()
        self._up: Counter[str] = Counter()
        self._down: Counter[str] = Counter()
        self._deleted: Counter[str] = Counter()

    def counts(self) -> Usage:
        """What has been counted up to now."""
        with self._lock:
            return Usage(
                requests=dict(self._requests),
                bytes_up=dict(self._up),
                bytes_down=dict(self._down),
                deleted=dict(self._deleted),
            )

    def put(
        self, key: str, data: Data, *, if_absent: bool = False, pace: Pace | None = None
    ) -> None:
        kind = kind_of(check_key(key))
        num_bytes = total_bytes(data)
        self._count(PUT, kind)
        self._store.put(key, data, if_absent=if_absent, pace=pace)
        with self._lock:
            self._up[kind] += num_bytes

    def get(
        self, key: str, *, start: int = 0, stop: int | None = None, pace: Pace | None = None
    ) -> memoryview:
        kind = kind_of(check_key(key))
        check_range(start, stop)
        operation = GET
        try:
            body = self._store.get(key, start=start, stop=stop, pace=pace)
        except ObjectMissing:
            operation = GET_MISSED
            raise
        finally:
            self._count(operation, kind)
        with self._lock:
            self._down[kind] += body.nbytes
        return body

    def wait(self, key: str, *, deadline_s: float) -> memoryview:
        return wait_for(self, key, deadline_s=deadline_s).data

    def delete(self, keys: Iterable[str]) -> None:
        for batch in batches([check_key(key) for key in keys], DELETE_BATCH_KEYS):
            self._count(DELETE, kind_of(batch[0]))
            self._store.delete(batch)
            with self._lock:
                self._deleted.update(kind_of(key) for key in batch)

    def list(self, prefix: str) -> Iterator[str]:
        kind = kind_of(check_prefix(prefix))
        return self._listed(prefix, kind)

    def _listed(self, prefix: str, kind: str) -> Iterator[str]:
        self._count(LIST, kind)
        for index, key in enumerate(self._store.list(prefix)):
            if index and index % DELETE_BATCH_KEYS == 0:
                self._count(LIST, kind)
            yield key

    def close(self) -> None:
        self._store.close()

    def _count(self, operation: str, kind: str) -> None:
        with self._lock:
            self._requests[operation, kind] += 1
