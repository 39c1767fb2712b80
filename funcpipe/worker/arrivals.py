"""When a message is worth asking for: learnt from how long the last steps waited for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import replace

from funcpipe.store.wait import Arrival, Backoff

__all__ = ["Arrivals"]

REMEMBERED = 3
SHARE = 0.9
GRAIN = 0.01
"""The first pause between looks, as a share of the planned delay: fit for what is uncertain."""


class Arrivals:
    """Plans the first look for each message of a step: every look in vain is billed.

    A look is planned a little before the earliest of the last few arrivals. One that succeeds at
    once says that the peers have become faster, but not by how much: the plan is halved until
    looks come in vain again, so that a worker is never long behind its peers.

    Not locked: a place belongs to one thread at a time.
    """

    def __init__(self) -> None:
        self._waits_s: dict[Hashable, deque[float]] = {}

    def plan(self, place: Hashable) -> tuple[float, Backoff]:
        """Seconds to let pass before the first look, and the pauses after it.

        The delay is 0 until enough is known about the place.
        """
        waits_s = self._waits_s.get(place, ())
        delay_s = SHARE * min(waits_s) if len(waits_s) == REMEMBERED else 0.0
        usual = Backoff()
        first_s = min(max(usual.first_s, GRAIN * delay_s), usual.cap_s)
        return delay_s, replace(usual, first_s=first_s)

    def learn(self, place: Hashable, arrival: Arrival, *, delay_s: float) -> None:
        """Note what came of a wait whose first look was made after `delay_s`."""
        waits_s = self._waits_s.setdefault(place, deque(maxlen=REMEMBERED))
        waits_s.append(arrival.waited_s if arrival.misses else delay_s / 2)
