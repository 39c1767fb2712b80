"""From a URL to a store."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from funcpipe.clock import REAL, Clock
from funcpipe.errors import StoreError
from funcpipe.store.base import PacedStore
from funcpipe.store.buffers import check_prefix
from funcpipe.store.credentials import Credentials
from funcpipe.store.directory import DirectoryStore
from funcpipe.store.memory import MemoryStore
from funcpipe.store.retry import Retrying, RetryPolicy

__all__ = ["Credentials", "StoreSpec", "open_store"]

_EXPECTED = (
    "expected s3://bucket/prefix, file:///directory, a plain directory, or memory:name (this "
    "process only)"
)
_memories: dict[str, MemoryStore] = {}
_memories_lock = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class StoreSpec:
    """Where a store is, without the keys to it: safe to put into payloads, logs and run folders."""

    url: str
    endpoint: str | None = None
    region: str | None = None

    def __post_init__(self) -> None:
        for text in (self.url, self.endpoint or ""):
            if "@" in text.partition("://")[2].partition("/")[0]:
                raise StoreError(
                    "the store's URL or endpoint holds a user name or password: give credentials "
                    "by the AWS variables or a profile instead, URLs are written to logs"
                )

    def to_dict(self) -> dict[str, Any]:
        return {"url": self.url, "endpoint": self.endpoint, "region": self.region}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StoreSpec:
        return cls(url=data["url"], endpoint=data.get("endpoint"), region=data.get("region"))

    def open(
        self,
        *,
        credentials: Credentials | None = None,
        retries: RetryPolicy | None = RetryPolicy(),  # noqa: B008 - frozen
        clock: Clock = REAL,
    ) -> PacedStore:
        """`open_store` of this place."""
        return open_store(
            self.url,
            endpoint=self.endpoint,
            region=self.region,
            credentials=credentials,
            retries=retries,
            clock=clock,
        )


def open_store(
    url: str,
    *,
    endpoint: str | None = None,
    region: str | None = None,
    credentials: Credentials | None = None,
    retries: RetryPolicy | None = RetryPolicy(),  # noqa: B008 - frozen
    clock: Clock = REAL,
) -> PacedStore:
    """The store at `url`, without a request made yet (`probe` makes the first ones).

    ``s3://bucket/prefix`` (every key lies under the prefix), ``file:///directory`` or a plain
    directory (made if missing), ``memory:name`` (the same objects for all who open that name in
    this process). `endpoint`, `region` and `credentials` are for s3; None means the usual AWS
    variables, profile and chain. s3 and directories come as ``Retrying(store)``, plain with
    ``retries=None``; pauses between tries are in seconds of `clock`. Wrap further from the inside
    out: ``Metered(Shaped(open_store(...), link))``.
    """
    StoreSpec(url=url, endpoint=endpoint)
    scheme, separator, rest = url.partition(":")
    if scheme == "memory" and separator:
        return _memory(rest)
    if scheme == "s3" and separator:
        store = _s3(url, endpoint, region, credentials)
    elif scheme == "file" and separator:
        store = DirectoryStore(_path_of(url))
    elif "://" in url or not url:
        raise StoreError(f"not a store: {url!r}; {_EXPECTED}")
    else:
        store = DirectoryStore(Path(url))
    if retries is None:
        return store
    return Retrying(store, retries, clock=clock.now, sleep=clock.sleep)


def _memory(name: str) -> MemoryStore:
    with _memories_lock:
        return _memories.setdefault(name, MemoryStore())


def _s3(
    url: str, endpoint: str | None, region: str | None, credentials: Credentials | None
) -> PacedStore:
    from funcpipe.store.s3 import S3Store

    parts = urlsplit(url)
    if not parts.netloc or parts.query or parts.fragment:
        raise StoreError(f"not a store: {url!r}; {_EXPECTED}")
    try:
        prefix = check_prefix(parts.path.strip("/"))
    except ValueError as error:
        raise StoreError(f"not a store: {url!r}; {error}") from None
    return S3Store(
        parts.netloc, prefix=prefix, endpoint=endpoint, region=region, credentials=credentials
    )


def _path_of(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise StoreError(
            f"not a store: {url!r}; a directory is file:///absolute/path, with three slashes"
        )
    return Path(os.fsdecode(unquote(parts.path)))
