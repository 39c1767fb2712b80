"""The contract of an object store, kept by every back-end and every wrapper."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias

__all__ = ["Buffer", "Data", "ObjectStore"]

Buffer: TypeAlias = bytes | bytearray | memoryview
Data: TypeAlias = Buffer | Sequence[Buffer]


class ObjectStore(Protocol):
    """Whole objects under string keys, strongly consistent. Safe to use from several threads.

    Keys are non-empty, of the characters ``A-Z a-z 0-9 . _ - /``, with no empty, ``.`` or ``..``
    segment; anything else raises `ValueError` before any request. Failures are raised as the
    `funcpipe.errors.StoreError` family, never as a back-end's own exception.
    """

    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        """Store `data` (one buffer or several that follow each other, sent without joining them).

        The object appears whole or not at all. With `if_absent`, raises `ObjectExists` when the
        key is taken (on stores that support it: see `funcpipe.store.probe`).
        """

    def get(self, key: str, *, start: int = 0, stop: int | None = None) -> memoryview:
        """The object's bytes `start:stop` in a new, writable, 64-byte-aligned buffer.

        Raises `ObjectMissing` if there is none. A range beyond the end is cut to the end; a body
        that is shorter than announced is never returned (`StoreUnavailable` after retries).
        """

    def wait(self, key: str, *, deadline_s: float) -> memoryview:
        """`get`, with back-off until the object appears; `WaitTimeout` after that many seconds."""

    def delete(self, keys: Iterable[str]) -> None:
        """Delete the objects; missing ones are no error. At most 1,000 keys travel per request."""

    def list(self, prefix: str) -> Iterator[str]:
        """Every key that starts with `prefix`, in any order, past any page limit."""

    def close(self) -> None:
        """Release connections; closing twice is no error."""
