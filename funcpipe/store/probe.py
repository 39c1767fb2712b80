"""What a store can do, found out by doing it."""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import dataclass

from funcpipe.errors import ObjectExists, StoreError
from funcpipe.store.base import ObjectStore
from funcpipe.store.buffers import check_prefix

__all__ = ["Capabilities", "probe"]


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """`if_absent`: whether ``put(if_absent=True)`` refuses a key that is taken."""

    if_absent: bool


def probe(store: ObjectStore, prefix: str) -> Capabilities:
    """Try the store with one small object under `prefix`, which is removed again.

    It is also the check, before anything is started, that the store is reached, that the bucket
    exists and that the credentials may write, read and delete there: whatever fails is raised.
    Four requests.
    """
    folder = check_prefix(prefix.rstrip("/"))
    key = f"{folder}/probe/{secrets.token_hex(8)}" if folder else f"probe/{secrets.token_hex(8)}"
    first, second = secrets.token_bytes(32), secrets.token_bytes(32)
    store.put(key, first, if_absent=True)
    try:
        refused = _refuses(store, key, second)
        found = bytes(store.get(key))
    except StoreError:
        with suppress(StoreError):  # the first failure is the one to tell
            store.delete([key])
        raise
    store.delete([key])
    if found != (first if refused else second):
        raise StoreError(
            f"the store does not give back what was put last: {key!r} held other bytes. "
            "It must be strongly consistent: no cache or replica may stand in between"
        )
    return Capabilities(if_absent=refused)


def _refuses(store: ObjectStore, key: str, body: bytes) -> bool:
    try:
        store.put(key, body, if_absent=True)
    except ObjectExists:
        return True
    return False
