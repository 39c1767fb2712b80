"""Scatter-reduce over a store as data: who sends, receives and adds what, in which order.

The flat gradient of a stage is cut into one part per replica; replica o *owns* part o: it sums
all shares of that part and publishes the sum. Shares are added in one fixed order, beginning
with the owner's own and going down the ring of replica numbers, so the sum has the same bits
whatever arrives first, and every replica reads the same bits.
"""

from __future__ import annotations

from collections.abc import Callable

from funcpipe.errors import ScheduleError
from funcpipe.schedule.action import Action, Kind

__all__ = ["METHODS", "Ordered", "part_bounds", "scatter_reduce"]

Ordered = list[tuple[Action, tuple[Action, ...]]]
"""Actions with the actions each must follow; no predecessor means: when the gradient is final."""


def pipelined(*, stage: int, replica: int, degree: int) -> Ordered:
    """FuncPipe's pipelined scatter-reduce (section 3.3): both directions at once.

    In round k a replica uploads its share for the owner k places up the ring while it downloads
    the share that the replica k places down the ring uploads to it in the same round.
    Time (2 - 1/n) s/w for n replicas, s bytes and w bytes per second each way.
    """
    rounds = range(1, degree)
    own = Action(stage, Kind.SEND_S, replica, 0)
    plan: Ordered = []
    for k in rounds:
        plan.append((Action(stage, Kind.SEND_P, (replica + k) % degree, 0), ()))
        plan += _receive_and_add(stage, (replica - k) % degree, ())
    adds = tuple(action for action, _ in plan if action.kind is Kind.ADD)
    plan.append((own, adds))
    plan += [_receive_sum(stage, (replica + k) % degree, ()) for k in rounds]
    return plan


def three_phase(*, stage: int, replica: int, degree: int) -> Ordered:
    """LambdaML's scatter-reduce: upload all shares; then merge one's part; then fetch the others.

    Time 3s/w - 2s/(nw): the phases do not overlap.
    """
    others = [(replica + k) % degree for k in range(1, degree)]
    sends = tuple(Action(stage, Kind.SEND_P, owner, 0) for owner in others)
    plan: Ordered = [(send, ()) for send in sends]
    for source in reversed(others):
        plan += _receive_and_add(stage, source, sends)
    adds = tuple(action for action, _ in plan if action.kind is Kind.ADD)
    own = Action(stage, Kind.SEND_S, replica, 0)
    plan.append((own, adds))
    plan += [_receive_sum(stage, owner, (own,)) for owner in others]
    return plan


METHODS: dict[str, Callable[..., Ordered]] = {"pipelined": pipelined, "three-phase": three_phase}


def scatter_reduce(method: str, *, stage: int, replica: int, degree: int) -> Ordered:
    """The actions of one replica, `degree` > 1, each with what it follows."""
    make = METHODS.get(method)
    if make is None:
        raise ScheduleError(
            f"unknown synchronisation method {method!r}; known: {', '.join(METHODS)}"
        )
    return make(stage=stage, replica=replica, degree=degree)


def part_bounds(length: int, num_parts: int, part: int) -> tuple[int, int]:
    """Elements ``start, stop`` of one of `num_parts` nearly equal parts of `length` elements."""
    return length * part // num_parts, length * (part + 1) // num_parts


def _receive_and_add(stage: int, source: int, after: tuple[Action, ...]) -> Ordered:
    receive = Action(stage, Kind.RECV_P, source, 0)
    return [(receive, after), (Action(stage, Kind.ADD, source, 0), (receive,))]


def _receive_sum(
    stage: int, owner: int, after: tuple[Action, ...]
) -> tuple[Action, tuple[Action, ...]]:
    # The sum lands where one's own share lay: that share must have been sent for good.
    return Action(stage, Kind.RECV_S, owner, 0), (*after, Action(stage, Kind.SEND_P, owner, 0))
