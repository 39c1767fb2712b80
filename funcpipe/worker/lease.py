"""Who may run a place in the pipeline: invocations may be delivered more than once."""

from __future__ import annotations

from collections.abc import Callable

from funcpipe.errors import ObjectExists, ObjectMissing, Superseded
from funcpipe.store.base import ObjectStore

__all__ = ["SETTLE_S", "take_lease"]

SETTLE_S = 1.0


def take_lease(
    store: ObjectStore,
    key: str,
    token: str,
    *,
    if_absent: bool,
    sleep: Callable[[float], None],
) -> None:
    """Put the lease with one's token in it; `Superseded` if another invocation was first.

    A refusal of one's own lease (the answer to the first attempt was lost) is told from a
    duplicate by the token. On a store that ignores conditional writes (`if_absent` False) the
    last writer wins: everyone writes, waits `SETTLE_S`, and goes on only if its token is still
    there. That settles duplicates that are delivered together; one that arrives later than that
    finds a lease before it writes, and leaves.
    """
    data = token.encode()
    if if_absent:
        try:
            store.put(key, data, if_absent=True)
        except ObjectExists:
            _must_be_mine(store, key, data)
        return
    if (holder := _holder(store, key)) is not None and holder != data:
        raise Superseded(f"the lease {key} is held by another invocation")
    store.put(key, data)
    sleep(SETTLE_S)
    _must_be_mine(store, key, data)


def _holder(store: ObjectStore, key: str) -> bytes | None:
    try:
        return bytes(store.get(key))
    except ObjectMissing:
        return None


def _must_be_mine(store: ObjectStore, key: str, data: bytes) -> None:
    if bytes(store.get(key)) != data:
        raise Superseded(f"the lease {key} is held by another invocation")
