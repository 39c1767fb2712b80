"""One action of a worker, with a one-token text form.

========  ========  =====================================================================
token     lane      meaning
========  ========  =====================================================================
``2F0``   compute   forward of micro-batch 0 in stage 2
``2B0``   compute   its backward
``2E0``   compute   its forward in an evaluation
``RECV_F``  down    receive the activation of stage s - 1
``SEND_F``  up      send the activation to stage s + 1
``RECV_B``  down    receive the gradient of the activation sent
``SEND_B``  up      send the gradient of the activation received
``2SEND_P1.0``  up  send replica 1 one's share of chunk 0 of the part that it owns
``2RECV_P1.0``  down  receive replica 1's share of chunk 0 of one's own part
``2ADD1.0``  compute  add it
``2SEND_S1.0``  up  send the summed chunk 0 of one's own part (1 is oneself)
``2RECV_S1.0``  down  receive the summed chunk 0 of replica 1's part
``2STEP``   compute   optimiser step
``2REPORT``  service  tell the driver about the pass
``2DEL``    service   delete what has been read
========  ========  =====================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from funcpipe.errors import ScheduleError

__all__ = ["Action", "Kind", "Lane", "parse"]


class Lane(StrEnum):
    """What runs at once in a worker: two directions of the network, compute, and housekeeping."""

    DOWN = "down"
    COMPUTE = "compute"
    UP = "up"
    SERVICE = "service"


class Kind(StrEnum):
    F = "F"
    B = "B"
    E = "E"
    RECV_F = "RECV_F"
    SEND_F = "SEND_F"
    RECV_B = "RECV_B"
    SEND_B = "SEND_B"
    SEND_P = "SEND_P"
    RECV_P = "RECV_P"
    ADD = "ADD"
    SEND_S = "SEND_S"
    RECV_S = "RECV_S"
    STEP = "STEP"
    REPORT = "REPORT"
    DEL = "DEL"

    @property
    def lane(self) -> Lane:
        if self.value.startswith("SEND"):
            return Lane.UP
        if self.value.startswith("RECV"):
            return Lane.DOWN
        return Lane.SERVICE if self in (Kind.REPORT, Kind.DEL) else Lane.COMPUTE


_OF_MICRO_BATCH = {Kind.F, Kind.B, Kind.E, Kind.RECV_F, Kind.SEND_F, Kind.RECV_B, Kind.SEND_B}
_OF_PEER = {Kind.SEND_P, Kind.RECV_P, Kind.ADD, Kind.SEND_S, Kind.RECV_S}


@dataclass(frozen=True, slots=True)
class Action:
    """`index` is a micro-batch or a replica, as the kind says; `chunk` belongs to collectives."""

    stage: int
    kind: Kind
    index: int | None = None
    chunk: int | None = None

    def __post_init__(self) -> None:
        has_index = self.kind in _OF_MICRO_BATCH or self.kind in _OF_PEER
        has_chunk = self.kind in _OF_PEER
        if has_index != (self.index is not None) or has_chunk != (self.chunk is not None):
            raise ScheduleError(f"{self.kind} does not take index {self.index}, chunk {self.chunk}")

    @property
    def lane(self) -> Lane:
        return self.kind.lane

    def __str__(self) -> str:
        text = f"{self.stage}{self.kind.value}"
        if self.index is not None:
            text += str(self.index)
        return text if self.chunk is None else f"{text}.{self.chunk}"


_KINDS = "|".join(sorted((kind.value for kind in Kind), key=len, reverse=True))
_TOKEN = re.compile(rf"(\d+)({_KINDS})(?:(\d+)(?:\.(\d+))?)?")


def parse(token: str) -> Action:
    """The action that prints as `token`; `ScheduleError` if there is none."""
    match = _TOKEN.fullmatch(token)
    if match is None:
        raise ScheduleError(f"{token!r} is not an action; expected one such as 2F0 or 1SEND_B3")
    stage, kind, index, chunk = match.groups()
    return Action(
        int(stage),
        Kind(kind),
        None if index is None else int(index),
        None if chunk is None else int(chunk),
    )
