"""Synchronisation of one stage in the simulator, for replicas that may begin at different times.

As `funcpipe.sync.plan` says: in turn j of n - 1 a replica sends its share to the replica j places
up the ring and receives that of the replica j places down; in the second half it receives the sum
of the replica j places up. All replicas of a turn are handled together, as arrays.
Adding shares takes no time here: nobody has measured it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from funcpipe.errors import PlanError
from funcpipe.partitioner.noise import Floats
from funcpipe.schedule.action import Kind

__all__ = ["Exchange", "Note", "synchronise"]

Seconds = Callable[[Kind, int], Floats]
Note = Callable[[Kind, int, Floats, Floats], None]


@dataclass(slots=True)
class Exchange:
    """Of each replica: when its gradient is final and its lanes are free, before and after.

    seconds: of an action's kind in a turn, for each replica; note: told of each with its turn.
    """

    ready: Floats
    down: Floats
    up: Floats
    hop_s: float
    seconds: Seconds
    note: Note | None = None

    def send(self, kind: Kind, turn: int, ready: Floats) -> Floats:
        """When what is sent can be received."""
        start = np.maximum(self.up, ready)
        self.up = start + self.seconds(kind, turn)
        if self.note is not None:
            self.note(kind, turn, start, self.up)
        return self.up + self.hop_s

    def receive(self, kind: Kind, turn: int, ready: Floats, there: Floats) -> Floats:
        """When it has been received. there: of each replica's own message."""
        place = -turn if kind is Kind.RECV_P else turn
        start = np.maximum(np.maximum(self.down, ready), np.roll(there, -place))
        self.down = start + self.seconds(kind, turn)
        if self.note is not None:
            self.note(kind, place, start, self.down)
        return self.down + self.hop_s

    def add(self, turn: int, before: Floats, received: Floats) -> Floats:
        done = np.maximum(before, received)
        if self.note is not None:
            self.note(Kind.ADD, -turn, done, done)
        return done


def synchronise(method: str, exchange: Exchange) -> Floats:
    """When each replica has all sums, and has sent all that it had to."""
    if method not in _METHODS:
        raise PlanError(f"unknown synchronisation method {method!r}; known: {', '.join(_METHODS)}")
    return _METHODS[method](exchange)


def _pipelined(x: Exchange) -> Floats:
    turns = range(1, len(x.ready))
    added = x.ready
    for turn in turns:
        there = x.send(Kind.SEND_P, turn, x.ready)
        added = x.add(turn, added, x.receive(Kind.RECV_P, turn, x.ready, there))
    there = x.send(Kind.SEND_S, 0, added)
    # That one's own share has been sent need not be waited for: its owner had to have it.
    received = [x.receive(Kind.RECV_S, turn, x.ready, there) for turn in turns]
    return np.maximum(there, received[-1])


def _three_phase(x: Exchange) -> Floats:
    turns = range(1, len(x.ready))
    shares = [x.send(Kind.SEND_P, turn, x.ready) for turn in turns]
    added = x.ready
    for turn, there in zip(turns, shares, strict=True):
        added = x.add(turn, added, x.receive(Kind.RECV_P, turn, shares[-1], there))
    there = x.send(Kind.SEND_S, 0, added)
    received = [x.receive(Kind.RECV_S, turn, there, there) for turn in turns]
    return np.maximum(there, received[-1])


_METHODS: dict[str, Callable[[Exchange], Floats]] = {
    "pipelined": _pipelined,
    "three-phase": _three_phase,
}
