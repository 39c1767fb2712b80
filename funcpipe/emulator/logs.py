"""A log file that cannot grow without end."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["BoundedLog"]


class BoundedLog:
    """Keeps the newest bytes: when `path` is half the limit long it becomes ``path.1``.

    The two together hold at most `limit_bytes`, and at least the last half of that.
    """

    def __init__(self, path: Path, *, limit_bytes: int) -> None:
        self.path = path
        self._older = path.with_name(path.name + ".1")
        self._half = limit_bytes // 2
        self._file = path.open("wb", buffering=0)
        self._size = 0

    def write(self, data: bytes) -> None:
        while data:
            if self._size >= self._half:
                self._file.close()
                os.replace(self.path, self._older)
                self._file = self.path.open("wb", buffering=0)
                self._size = 0
            part, data = data[: self._half - self._size], data[self._half - self._size :]
            self._file.write(part)
            self._size += len(part)

    def tail(self, num_bytes: int) -> str:
        """The last bytes as text, from both files if need be."""
        text = b""
        for path in (self.path, self._older):
            if len(text) < num_bytes and path.exists():
                text = path.read_bytes() + text
        return text[-num_bytes:].decode("utf-8", "replace").strip()

    def close(self) -> None:
        self._file.close()
