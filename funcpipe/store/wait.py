"""Waiting for an object: sleep until it is planned to arrive, then poll with a back-off.

On a real store every miss is billed as a GET, so the first poll should come when the object is
expected, and the distance between polls grows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from funcpipe.errors import ObjectMissing, WaitTimeout
from funcpipe.store.base import ObjectStore

__all__ = ["Arrival", "Backoff", "timed_out", "wait_for"]


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """Seconds between polls: `first_s`, then each `factor` times the last, up to `cap_s`."""

    first_s: float = 0.002
    factor: float = 1.5
    cap_s: float = 0.05

    def __post_init__(self) -> None:
        if not (0 < self.first_s <= self.cap_s and self.factor >= 1):
            raise ValueError(f"a back-off needs 0 < first_s <= cap_s and factor >= 1, found {self}")


@dataclass(frozen=True)
class Arrival:
    """What a wait found: `transfer_s` is the successful get alone, `waited_s` all before it."""

    data: memoryview
    waited_s: float
    transfer_s: float
    misses: int


def wait_for(
    store: ObjectStore,
    key: str,
    *,
    deadline_s: float,
    backoff: Backoff = Backoff(),
    delay_s: float = 0.0,
    between: Callable[[], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Arrival:
    """Get `key` as soon as it is there; `WaitTimeout` once `deadline_s` seconds have passed.

    Sleeps `delay_s` before the first get (the planned arrival). `between` is called after every
    miss and ends the wait by raising. The last get is made at the deadline.
    """
    begin_s = clock()
    end_s = begin_s + deadline_s
    if delay_s > 0:
        sleep(min(delay_s, max(deadline_s, 0.0)))
    pause_s = backoff.first_s
    misses = 0
    while True:
        get_s = clock()
        try:
            data = store.get(key)
        except ObjectMissing:
            misses += 1
        else:
            return Arrival(data, get_s - begin_s, clock() - get_s, misses)
        if between is not None:
            between()
        left_s = end_s - clock()
        if left_s <= 0:
            raise timed_out(key, deadline_s, misses)
        sleep(min(pause_s, left_s))
        pause_s = min(pause_s * backoff.factor, backoff.cap_s)


def timed_out(key: str, deadline_s: float, misses: int) -> WaitTimeout:
    """The error of a wait that ended without its object."""
    return WaitTimeout(
        f"object {key!r} did not appear within {deadline_s:g} s (looked {misses} times): "
        "its writer is late, has failed or was never started"
    )
