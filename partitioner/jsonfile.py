"""Reading a user's JSON file, whatever it holds."""

from __future__ import annotations

import json
from pathlib import Path

from funcpipe.errors import PlatformError

__all__ = ["read_json"]


def read_json(path: Path) -> object:
    """What the file holds; `PlatformError` without its name, which the caller adds."""
    try:
        if path.exists() and not path.is_file():
            raise PlatformError("it is no file")
        return json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_once)
    except OSError as error:
        raise PlatformError(f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise PlatformError(f"it is not JSON: {error}") from error


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object, each of whose names is there once."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for i, (name, _) in enumerate(pairs) if name in dict(pairs[:i]))
        raise PlatformError(f"{twice!r} is there twice")
    return found
