"""Objects in this process's memory: for tests and for trials with threads."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from funcpipe.errors import ObjectExists, ObjectMissing
from funcpipe.store.base import Data, Pace
from funcpipe.store.buffers import aligned_buffer, check_key, check_prefix, check_range, pieces
from funcpipe.store.wait import timed_out

__all__ = ["MemoryStore"]


class MemoryStore:
    """Copies on put and on get, so that no caller ever shares memory with the store.

    A stored buffer is never changed again: readers copy from it outside the lock.
    """

    def __init__(self) -> None:
        self._objects: dict[str, memoryview] = {}
        self._changed = threading.Condition()

    def put(
        self, key: str, data: Data, *, if_absent: bool = False, pace: Pace | None = None
    ) -> None:
        check_key(key)
        views = pieces(data)
        body = aligned_buffer(sum(view.nbytes for view in views))
        begin = 0
        for view in views:
            _copy(view, body[begin : begin + view.nbytes], pace)
            begin += view.nbytes
        with self._changed:
            if if_absent and key in self._objects:
                raise ObjectExists(f"object {key!r} is already in this memory store")
            self._objects[key] = body
            self._changed.notify_all()

    def get(
        self, key: str, *, start: int = 0, stop: int | None = None, pace: Pace | None = None
    ) -> memoryview:
        check_key(key)
        check_range(start, stop)
        with self._changed:
            found = self._objects.get(key)
        if found is None:
            raise ObjectMissing(f"no object {key!r} in this memory store")
        return _copied(found[start:stop], pace)

    def wait(self, key: str, *, deadline_s: float) -> memoryview:
        check_key(key)
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._objects, deadline_s):
                raise timed_out(key, deadline_s, 1)
            found = self._objects[key]
        return _copied(found, None)

    def delete(self, keys: Iterable[str]) -> None:
        for key in [check_key(key) for key in keys]:
            with self._changed:
                self._objects.pop(key, None)

    def list(self, prefix: str) -> Iterator[str]:
        check_prefix(prefix)
        with self._changed:
            found = [key for key in self._objects if key.startswith(prefix)]
        return iter(found)

    def close(self) -> None:
        """Nothing to release; the objects stay for others who hold this store."""


def _copied(body: memoryview, pace: Pace | None) -> memoryview:
    copy = aligned_buffer(body.nbytes)
    _copy(body, copy, pace)
    return copy


def _copy(source: memoryview, target: memoryview, pace: Pace | None) -> None:
    if pace is None:
        target[:] = source
        return
    for begin in range(0, source.nbytes, pace.chunk_bytes):
        part = source[begin : begin + pace.chunk_bytes]
        pace(part.nbytes)
        target[begin : begin + part.nbytes] = part
