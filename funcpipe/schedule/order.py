"""Compute-only schedules: in which order a replica does its forwards and backwards.

Micro-batch k of a step is worked on by replica ``k mod d_s`` of stage s, so an order is a
function of the stage, the replica and the degree; transfers and synchronisation are added later
by the passes in `funcpipe.schedule.program`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from funcpipe.errors import ScheduleError
from funcpipe.schedule.action import Action, Kind, parse

__all__ = [
    "SCHEDULES",
    "compute_order",
    "evaluation_order",
    "from_text",
    "share",
    "to_text",
    "window",
]


def share(num_micro_batches: int, replica: int, degree: int) -> range:
    """The micro-batches of one replica of a stage, ascending."""
    return range(replica, num_micro_batches, degree)


def window(stage: int, num_stages: int, in_flight: int) -> int:
    """How many micro-batches `1f1b` keeps between forward and backward at a stage.

    `in_flight` at the first stage, falling linearly to the last, never below one. With
    ``in_flight == num_stages`` that is the classic ``num_stages - stage``. It never grows from a
    stage to the next, which is what makes the order free of deadlock for any degrees.
    """
    return max(1, -(-in_flight * (num_stages - stage) // num_stages))


def gpipe(*, stage: int, num_stages: int, mine: Sequence[int], in_flight: int) -> list[Action]:
    """All forwards, then all backwards in reverse (GPipe; FuncPipe section 3.2)."""
    del num_stages, in_flight
    forward = [Action(stage, Kind.F, k) for k in mine]
    return forward + [Action(stage, Kind.B, k) for k in reversed(mine)]


def one_forward_one_backward(
    *, stage: int, num_stages: int, mine: Sequence[int], in_flight: int
) -> list[Action]:
    """Before the backward of micro-batch k come one's forwards up to ``k + window - 1``."""
    ahead = window(stage, num_stages, in_flight)
    order: list[Action] = []
    forwards = list(mine)
    for k in mine:
        while forwards and forwards[0] < k + ahead:
            order.append(Action(stage, Kind.F, forwards.pop(0)))
        order.append(Action(stage, Kind.B, k))
    return order


SCHEDULES: dict[str, Callable[..., list[Action]]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
}


def compute_order(
    schedule: str,
    *,
    stage: int,
    num_stages: int,
    num_micro_batches: int,
    replica: int,
    degree: int,
    in_flight: int | None = None,
) -> list[Action]:
    """The order of one replica. `in_flight` is used by `1f1b`; None means the number of stages."""
    make = SCHEDULES.get(schedule)
    if make is None:
        raise ScheduleError(f"unknown schedule {schedule!r}; known: {', '.join(SCHEDULES)}")
    mine = share(num_micro_batches, replica, degree)
    depth = num_stages if in_flight is None else in_flight
    if depth < 1:
        raise ScheduleError(f"in_flight is {depth}; at least one micro-batch must be in flight")
    return make(stage=stage, num_stages=num_stages, mine=mine, in_flight=depth)


def evaluation_order(
    *, stage: int, num_micro_batches: int, replica: int, degree: int
) -> list[Action]:
    """Forwards only, in evaluation mode."""
    return [Action(stage, Kind.E, k) for k in share(num_micro_batches, replica, degree)]


def to_text(actions: Sequence[Action]) -> str:
    return " ".join(map(str, actions))


def from_text(text: str) -> list[Action]:
    return [parse(token) for token in text.split()]
