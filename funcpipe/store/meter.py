"""Counting requests and bytes: what a bill is made of, and what tests hold formulas to."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from funcpipe.clock import REAL, Clock
from funcpipe.errors import ObjectMissing
from funcpipe.keys import kind_of
from funcpipe.store.base import DELETE_BATCH_KEYS, Data, Pace, PacedStore
from funcpipe.store.buffers import batches, check_key, check_prefix, check_range, total_bytes
from funcpipe.store.tally import Tally
from funcpipe.store.usage import DELETE, GET, GET_MISSED, LIST, PUT, Usage
from funcpipe.store.wait import wait_for

__all__ = ["DELETE", "GET", "GET_MISSED", "LIST", "PUT", "Metered", "Usage"]

KNOWN_SIZES = 10_000
"""Objects whose sizes are remembered: far more than one step of a worker has."""


class Metered:
    """Counts what passes through it; a request that fails was made all the same, and counts.

    Put it outside of `Retrying` to count what the caller asked for. `tally` is where the numbers
    are kept (default: in an own one); what others have counted there before is not told again.
    """

    def __init__(
        self, store: PacedStore, tally: Tally | None = None, *, clock: Clock = REAL
    ) -> None:
        self._store = store
        self._clock = clock
        self._tally = Tally() if tally is None else tally
        self._before = self._tally.usage()
        self._sizes = _Sizes()

    def counts(self) -> Usage:
        """What has been counted up to now."""
        return self._tally.usage() - self._before

    def put(
        self, key: str, data: Data, *, if_absent: bool = False, pace: Pace | None = None
    ) -> None:
        kind = kind_of(check_key(key))
        num_bytes = total_bytes(data)
        self._tally.add_request(PUT, kind)
        self._store.put(key, data, if_absent=if_absent, pace=pace)
        self._tally.add_up(kind, num_bytes)
        replaced = self._sizes.forget(key)
        self._sizes.note(key, num_bytes)
        if not if_absent:
            self._tally.add_deleted(kind, num_keys=0, num_bytes=replaced)

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
            self._tally.add_request(operation, kind)
        self._tally.add_down(kind, body.nbytes)
        if start == 0 and stop is None:
            self._sizes.note(key, body.nbytes)
        return body

    def wait(self, key: str, *, deadline_s: float) -> memoryview:
        clock = self._clock
        return wait_for(self, key, deadline_s=deadline_s, clock=clock.now, sleep=clock.sleep).data

    def delete(self, keys: Iterable[str]) -> None:
        for batch in batches([check_key(key) for key in keys], DELETE_BATCH_KEYS):
            self._tally.add_request(DELETE, kind_of(batch[0]))
            self._store.delete(batch)
            for key in batch:
                num_bytes = self._sizes.forget(key)
                self._tally.add_deleted(kind_of(key), num_keys=1, num_bytes=num_bytes)

    def list(self, prefix: str) -> Iterator[str]:
        kind = kind_of(check_prefix(prefix))
        return self._listed(prefix, kind)

    def _listed(self, prefix: str, kind: str) -> Iterator[str]:
        self._tally.add_request(LIST, kind)
        for index, key in enumerate(self._store.list(prefix)):
            if index and index % DELETE_BATCH_KEYS == 0:
                self._tally.add_request(LIST, kind)
            yield key

    def close(self) -> None:
        self._store.close()


class _Sizes:
    """Sizes of the objects that were put or read last: an object is deleted soon after, or never.

    Most that a worker puts are deleted by somebody else, of which it hears nothing.
    """

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}
        self._lock = threading.Lock()

    def note(self, key: str, num_bytes: int) -> None:
        with self._lock:
            self._sizes.pop(key, None)
            self._sizes[key] = num_bytes
            if len(self._sizes) > KNOWN_SIZES:
                del self._sizes[next(iter(self._sizes))]

    def forget(self, key: str) -> int:
        """The object's size, 0 if it is not known."""
        with self._lock:
            return self._sizes.pop(key, 0)
