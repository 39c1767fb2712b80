"""Standard output that cannot be written to: told as that, not as an error of the command."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

__all__ = ["OutputLost", "watched_output"]


class OutputLost(Exception):
    """Standard output took no more: the disk behind it is full, or its device is gone."""


@contextlib.contextmanager
def watched_output() -> Iterator[None]:
    """Inside, an OSError of standard output is an `OutputLost`; a broken pipe stays what it is.

    Whatever is still to be written is written at the end. After an error nothing is written any
    more: Python would complain at exit, when it flushes again.
    """
    output = sys.stdout
    if output is None:  # closed by whoever started us
        yield
        return
    watched = _Watched(output)
    try:
        with contextlib.redirect_stdout(watched):
            try:
                yield
            finally:
                watched.flush()
    except (BrokenPipeError, OutputLost):
        with open(os.devnull, "wb") as nothing, contextlib.suppress(OSError):
            os.dup2(nothing.fileno(), output.fileno())
        raise


class _Watched:
    """A stream whose own errors can be told from those of files, which are OSErrors as well."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with _told():
            return int(self._stream.write(text))

    def flush(self) -> None:
        with _told():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputLost(error.strerror or str(error)) from error
