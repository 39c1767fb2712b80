"""When a message is worth asking for: learnt from how long the last steps waited for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import replace

from funcpipe.store.wait import Backoff

__all__ = ["Arrivals"]

REMEMBERED = 3
SHARE = 0.95
GRAIN = 0.02
"""The first pause between looks, as a share of the planned delay: fit for what is uncertain."""


class Arrivals:
    """Plans the first look for each message of a step: every look in vain is billed.

    What is remembered of a wait is when the object was last seen missing, since when it was
    found says as much about the pauses as about the peer. The first look is planned a little
    before the earliest of the last few. One that succeeds at once says that the peer has become
    faster, but not by how much: the plan is halved until looks come in vain again, so that a
    worker is never long behind its peers.

    Not locked: a place belongs to one thread at a time.
    """

    def __init__(self) -> None:
        self._absent_s: dict[Hashable, deque[float]] = {}

    def plan(self, place: Hashable) -> tuple[float, Backoff]:
        """Seconds to let pass before the first look, and the pauses after it.

        The delay is 0 until enough is known about the place.
        """
        absent_s = self._absent_s.get(place, ())
        delay_s = SHARE * min(absent_s) if len(absent_s) == REMEMBERED else 0.0
        usual = Backoff()
        first_s = min(max(usual.first_s, GRAIN * delay_s), usual.cap_s)
        return delay_s, replace(usual, first_s=first_s)

    def learn(self, place: Hashable, *, delay_s: float, absent_s: float | None) -> None:
        """Note a wait whose first look came after `delay_s`, the last one in vain at `absent_s`.

        None: the first look found the object.
        """
        seen = self._absent_s.setdefault(place, deque(maxlen=REMEMBERED))
        seen.append(delay_s / 2 if absent_s is None else absent_s)
