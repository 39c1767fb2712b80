"""Reading a user's JSON file, whatever it holds."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from funcpipe.errors import PlatformError
from funcpipe.partitioner.limits import shown

__all__ = ["parse_json", "read_json", "read_text"]

_MOST_DIGITS = 4000  # Python refuses more, with advice for programmers


def read_json(path: Path) -> object:
    """What the file holds; `PlatformError` without its name, which the caller adds."""
    try:
        return parse_json(read_text(path))
    except UnicodeDecodeError as error:
        raise PlatformError(f"it is not JSON: {error.reason}") from error


def read_text(path: Path) -> str:
    """The text of a file, without the mark that some editors put before it.

    `PlatformError`, without its name, if it is no file or cannot be read; UnicodeDecodeError if it
    is no text. Devices and pipes are no files: they may never end.
    """
    if "\0" in str(path):
        raise PlatformError("cannot be read: there is a NUL byte in its name")
    try:
        if path.exists() and not path.is_file():
            raise PlatformError("it is no file")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise PlatformError(f"cannot be read: {error.strerror}") from error


def parse_json(text: str) -> object:
    """`PlatformError` for what is not JSON, or has a name twice in an object."""
    try:
        return json.loads(text, object_pairs_hook=_once, parse_int=_whole)
    except ValueError as error:
        raise PlatformError(f"it is not JSON: {error}") from error
    except RecursionError as error:
        raise PlatformError("it is not JSON: it is nested too deeply") from error


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise PlatformError(f"it has a number of {len(digits):,} digits: {digits[:20]}...")
    return int(digits)


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object, each of whose names is there once."""
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise PlatformError(f"{shown(counts.most_common(1)[0][0])} is there twice")
    return found
