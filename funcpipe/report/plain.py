"""Python data to strict JSON data, without secrets and without numbers that JSON lacks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["HIDDEN", "jsonable"]

HIDDEN = "***"
_SECRET_NAMES = re.compile(
    r"secret|passw|credential|access_?key|authorization|session_?token", re.I
)
_URL_USER = re.compile(r"(?<=://)[^/@\s]+@")
_MIN_SECRET_LENGTH = 4


def jsonable(value: Any, *, secrets: Iterable[str] = ()) -> Any:
    """`value` as data that JSON holds: tuples become lists, infinities and NaN become None.

    Occurrences of `secrets` (those of at least 4 characters), whatever stands under a name such
    as ``secret_key`` or ``password``, and the user part of URLs are replaced by ``***``. Raises
    TypeError for objects that are not plain data.
    """
    known = sorted({s for s in secrets if len(s) >= _MIN_SECRET_LENGTH}, key=len, reverse=True)
    return _jsonable(value, known)


def _jsonable(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, str):
        return _without(value, secrets)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {
            _without(str(key), secrets): _hidden_or(key, item, secrets)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_jsonable(item, secrets) for item in value]
    raise TypeError(f"{type(value).__name__} is not plain data: {value!r}")


def _hidden_or(key: Any, item: Any, secrets: list[str]) -> Any:
    secret = not isinstance(item, int | float | None) and _SECRET_NAMES.search(str(key))
    return HIDDEN if secret else _jsonable(item, secrets)


def _without(text: str, secrets: list[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return _URL_USER.sub(f"{HIDDEN}@", text)
