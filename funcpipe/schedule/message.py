"""What an action sends or receives, named alike by both ends."""

from __future__ import annotations

from typing import NamedTuple

from funcpipe.schedule.action import Action, Kind

__all__ = ["Message", "received", "sent"]


class Message(NamedTuple):
    """One object on its way. `place` is what follows the stage in its key."""

    kind: str
    stage: int
    place: tuple[int, ...]


def sent(action: Action, replica: int) -> Message | None:
    """The message that `action` of this replica puts into the store, if any."""
    stage, index, chunk = action.stage, action.index or 0, action.chunk or 0
    match action.kind:
        case Kind.SEND_F:
            return Message("act", stage, (index,))
        case Kind.SEND_B:
            return Message("grad", stage - 1, (index,))
        case Kind.SEND_P:
            return Message("part", stage, (index, replica, chunk))
        case Kind.SEND_S:
            return Message("sum", stage, (replica, chunk))
        case _:
            return None


def received(action: Action, replica: int) -> Message | None:
    """The message that `action` of this replica takes from the store, if any."""
    stage, index, chunk = action.stage, action.index or 0, action.chunk or 0
    match action.kind:
        case Kind.RECV_F:
            return Message("act", stage - 1, (index,))
        case Kind.RECV_B:
            return Message("grad", stage, (index,))
        case Kind.RECV_P:
            return Message("part", stage, (replica, index, chunk))
        case Kind.RECV_S:
            return Message("sum", stage, (index, chunk))
        case _:
            return None
