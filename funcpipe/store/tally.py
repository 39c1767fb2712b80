"""Counters in shared memory: whoever kills a function can still tell what it has used."""

from __future__ import annotations

import mmap
import os
import threading
from typing import Self

from funcpipe.keys import KINDS
from funcpipe.store.usage import OPERATIONS, Usage

__all__ = ["Tally"]

_COUNTER_BYTES = 8
_ROWS = (*OPERATIONS, "up", "down", "deleted", "deleted bytes")
_ROW = {name: number for number, name in enumerate(_ROWS)}
_COLUMN = {kind: number for number, kind in enumerate(KINDS)}


class Tally:
    """Requests and bytes by kind of key, as unsigned 64-bit counters in `buffer`.

    The layout is fixed: a row for each operation, then for bytes up, bytes down, deleted keys and
    their bytes; in each row a counter for each of `KINDS`. A buffer of zeros has counted nothing.
    Counts go up only. One process adds, from any of its threads; others may read at any time,
    also after that process was killed: an addition that was made is never lost.
    """

    SIZE = _COUNTER_BYTES * len(_ROWS) * len(KINDS)
    """Bytes that the counters take."""

    def __init__(self, buffer: bytearray | mmap.mmap | memoryview | None = None) -> None:
        view = memoryview(bytearray(self.SIZE) if buffer is None else buffer)
        if view.readonly or view.nbytes < self.SIZE:
            raise ValueError(
                f"a tally needs a writable buffer of {self.SIZE} bytes, found one of "
                f"{view.nbytes}{' that is read-only' if view.readonly else ''}"
            )
        self._counters = view.cast("B")[: self.SIZE].cast("Q")
        self._lock = threading.Lock()

    @staticmethod
    def descriptor() -> int:
        """New shared memory for a tally, all zeros, without a name: a descriptor to hand on."""
        descriptor = os.memfd_create("funcpipe-tally")
        os.ftruncate(descriptor, Tally.SIZE)
        return descriptor

    @classmethod
    def on(cls, descriptor: int) -> Self:
        """The tally in the memory or file of `descriptor`, which may be closed afterwards."""
        found = os.fstat(descriptor).st_size
        if found < cls.SIZE:
            raise ValueError(f"a tally needs {cls.SIZE} bytes, the descriptor has {found}")
        return cls(mmap.mmap(descriptor, cls.SIZE))

    def add_request(self, operation: str, kind: str) -> None:
        self._add(operation, kind, 1)

    def add_up(self, kind: str, num_bytes: int) -> None:
        self._add("up", kind, num_bytes)

    def add_down(self, kind: str, num_bytes: int) -> None:
        self._add("down", kind, num_bytes)

    def add_deleted(self, kind: str, *, num_keys: int, num_bytes: int) -> None:
        self._add("deleted", kind, num_keys)
        self._add("deleted bytes", kind, num_bytes)

    def usage(self) -> Usage:
        """What has been counted since the buffer was zero."""
        counts = self._counters.tolist()

        def row(name: str) -> dict[str, int]:
            first = _ROW[name] * len(KINDS)
            return {kind: counts[first + at] for kind, at in _COLUMN.items() if counts[first + at]}

        return Usage(
            requests={
                (operation, kind): count
                for operation in OPERATIONS
                for kind, count in row(operation).items()
            },
            bytes_up=row("up"),
            bytes_down=row("down"),
            deleted=row("deleted"),
            deleted_bytes=row("deleted bytes"),
        )

    def _add(self, row: str, kind: str, amount: int) -> None:
        if amount < 0:
            raise ValueError(f"a tally counts up only, found {amount}")
        # An aligned word is written in one piece, so a reader sees the old count or the new one.
        with self._lock:
            self._counters[_ROW[row] * len(KINDS) + _COLUMN[kind]] += amount
