"""The contract of an object store, kept by every back-end and every wrapper."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias

__all__ = ["DELETE_BATCH_KEYS", "Buffer", "Data", "ObjectStore", "Pace", "PacedStore"]

Buffer: TypeAlias = bytes | bytearray | memoryview
Data: TypeAlias = Buffer | Sequence[Buffer]

DELETE_BATCH_KEYS = 1000
"""Keys that travel in one delete request, and come back in one page of a listing."""


class ObjectStore(Protocol):
    """Whole objects under string keys, strongly consistent. Safe to use from several threads.

    Keys are non-empty, of the characters ``A-Z a-z 0-9 . _ - /``, with no empty, ``.`` or ``..``
    segment, at most 900 characters long and 255 in a segment; anything else raises `ValueError`
    before any request. Failures are raised as the `funcpipe.errors.StoreError` family, never as
    a back-end's own exception.
    """

    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        """Store `data` (one buffer or several that follow each other, sent without joining them).

        The object appears whole or not at all. With `if_absent`, raises `ObjectExists` when the
        key is taken (on stores that support it: see `funcpipe.store.probe`).
        """

    def get(self, key: str, *, start: int = 0, stop: int | None = None) -> memoryview:
        """The object's bytes `start:stop` in a new, writable, 64-byte-aligned buffer.

        Raises `ObjectMissing` if there is none, `ValueError` for a negative bound. A range beyond
        the end is cut to the end; a body that is shorter than announced is never returned
        (`StoreUnavailable` after retries).
        """

    def wait(self, key: str, *, deadline_s: float) -> memoryview:
        """`get`, with back-off until the object appears; `WaitTimeout` after that many seconds."""

    def delete(self, keys: Iterable[str]) -> None:
        """Delete the objects; missing ones are no error. At most 1,000 keys travel per request."""

    def list(self, prefix: str) -> Iterator[str]:
        """Every key that starts with `prefix`, in any order, past any page limit.

        What somebody else has put there under a name that is not a key is left out.
        """

    def close(self) -> None:
        """Release connections; closing twice is no error, and a later request opens new ones."""


class Pace(Protocol):
    """How fast the bytes of one request may pass: what `Shaped` hands down to a back-end.

    The back-end calls it with the number of bytes, at most `chunk_bytes`, that it is about to
    send or has just received; it returns when they have passed the emulated link. An object that
    is being put may appear only after its last byte has passed.
    """

    @property
    def chunk_bytes(self) -> int: ...

    def __call__(self, num_bytes: int) -> None: ...


class PacedStore(ObjectStore, Protocol):
    """An `ObjectStore` whose transfers can be paced; everything in this package is one."""

    def put(
        self, key: str, data: Data, *, if_absent: bool = False, pace: Pace | None = None
    ) -> None: ...

    def get(
        self, key: str, *, start: int = 0, stop: int | None = None, pace: Pace | None = None
    ) -> memoryview: ...
