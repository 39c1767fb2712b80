"""Counts of requests and bytes, as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["DELETE", "GET", "GET_MISSED", "LIST", "OPERATIONS", "PUT", "Usage"]

OPERATIONS = ("PUT", "GET", "GET_MISSED", "DELETE", "LIST")
PUT, GET, GET_MISSED, DELETE, LIST = OPERATIONS


@dataclass(frozen=True, kw_only=True)
class Usage:
    """A snapshot of counts; snapshots add (workers) and subtract (one step of a run).

    `requests` counts by (operation, kind of key). A get that found nothing is a GET_MISSED and no
    GET. A DELETE is one request of up to 1,000 keys, under the kind of its first key; a LIST is
    one page of up to 1,000 keys. `deleted` counts keys; bytes are those of objects, by kind.
    `deleted_bytes` are those of objects that were deleted or replaced, as far as their sizes were
    known: ``bytes_up - deleted_bytes`` over all who use a store is what lies in it.
    """

    requests: Mapping[tuple[str, str], int] = field(default_factory=dict)
    bytes_up: Mapping[str, int] = field(default_factory=dict)
    bytes_down: Mapping[str, int] = field(default_factory=dict)
    deleted: Mapping[str, int] = field(default_factory=dict)
    deleted_bytes: Mapping[str, int] = field(default_factory=dict)

    def total(self, operation: str) -> int:
        """Requests of one operation over all kinds."""
        return sum(count for (name, _), count in self.requests.items() if name == operation)

    def __add__(self, other: Usage) -> Usage:
        return self._merged(other, 1)

    def __sub__(self, other: Usage) -> Usage:
        return self._merged(other, -1)

    def _merged(self, other: Usage, sign: int) -> Usage:
        return Usage(
            requests=_merge(self.requests, other.requests, sign),
            bytes_up=_merge(self.bytes_up, other.bytes_up, sign),
            bytes_down=_merge(self.bytes_down, other.bytes_down, sign),
            deleted=_merge(self.deleted, other.deleted, sign),
            deleted_bytes=_merge(self.deleted_bytes, other.deleted_bytes, sign),
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: requests as ``{"PUT act": 3}``."""
        return {
            "requests": {f"{name} {kind}": num for (name, kind), num in self.requests.items()},
            "bytes_up": dict(self.bytes_up),
            "bytes_down": dict(self.bytes_down),
            "deleted": dict(self.deleted),
            "deleted_bytes": dict(self.deleted_bytes),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Usage:
        requests = {}
        for label, count in data["requests"].items():
            name, _, kind = label.partition(" ")
            requests[name, kind] = int(count)
        return cls(
            requests=requests,
            bytes_up=dict(data["bytes_up"]),
            bytes_down=dict(data["bytes_down"]),
            deleted=dict(data["deleted"]),
            deleted_bytes=dict(data.get("deleted_bytes", {})),
        )


def _merge(left: Mapping[Any, int], right: Mapping[Any, int], sign: int) -> dict[Any, int]:
    merged = Counter(left)
    for key, count in right.items():
        merged[key] += sign * count
    return {key: count for key, count in merged.items() if count}
