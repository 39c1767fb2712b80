"""The body of a put: several buffers, sent one after the other without being joined."""

from __future__ import annotations

import os

from funcpipe.store.base import Pace

__all__ = ["Body"]

_SEND_BYTES = 256 << 10


class Body:
    """A seekable file-like object over buffers, as botocore takes it.

    `read` gives views, not copies. While sending, it gives up to 256 KiB at a time whatever is
    asked for: the HTTP client asks for 16 KiB and sends what it gets, and with that little per
    call the sending thread would queue for the interpreter lock hundreds of times a body. Bytes
    are paced while sending only, not while they are read to be signed.
    """

    def __init__(self, views: list[memoryview], pace: Pace | None) -> None:
        self._views = views
        self._pace = pace
        self._size = sum(view.nbytes for view in views)
        self._sending = False
        self._position = 0
        self._index = 0  # of the view at the position
        self._offset = 0  # of the position in that view

    def __len__(self) -> int:
        return self._size

    def begin_sending(self) -> None:
        """From here on reads go to the network."""
        self._rewind()
        self._sending = True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        target = min(max(base + offset, 0), self._size)
        self._rewind()
        self._position = target
        while self._index < len(self._views) and target >= self._views[self._index].nbytes:
            target -= self._views[self._index].nbytes
            self._index += 1
        self._offset = target
        return self._position

    def read(self, size: int | None = -1) -> bytes | memoryview:
        if size is None or size < 0:
            return b"".join(iter(lambda: self._next(_SEND_BYTES), b""))
        if not self._sending:
            return self._next(size)
        if self._pace is None:
            return self._next(max(size, _SEND_BYTES))
        part = self._next(self._pace.chunk_bytes)
        if part:
            self._pace(len(part))
        return part

    def _next(self, most: int) -> bytes | memoryview:
        if self._index == len(self._views):
            return b""
        view = self._views[self._index]
        part = view[self._offset : self._offset + most]
        self._position += part.nbytes
        self._offset += part.nbytes
        if self._offset == view.nbytes:
            self._index += 1
            self._offset = 0
        return part

    def _rewind(self) -> None:
        self._position = 0
        self._index = 0
        self._offset = 0
        self._sending = False
