"""The pipeline of a step in the simulator: all forwards and backwards with their transfers.

Every lane of a worker does its tasks in the order of its program: receives and computations by
rule, sends because they become ready in that order. So the start of a task is the latest of what
it waits for, and following the programs in any order in which messages are sent before they are
received gives all times. No queue of events is needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from funcpipe.errors import ScheduleError
from funcpipe.partitioner.spans import Timeline
from funcpipe.schedule.action import Kind
from funcpipe.schedule.order import compute_order
from funcpipe.schedule.program import PREFETCH

__all__ = ["Lanes", "Seconds", "StagePart", "order_of", "run_pipeline"]


@dataclass(frozen=True, slots=True)
class Seconds:
    """Of each micro-batch of a step in one stage; None where a stage has no such transfer."""

    down_f: list[float] | None
    compute_f: list[float]
    up_f: list[float] | None
    down_b: list[float] | None
    compute_b: list[float]
    up_b: list[float] | None


@dataclass(slots=True)
class Lanes:
    """When the lanes of each replica of a stage are free again."""

    down: list[float]
    compute: list[float]
    up: list[float]

    @classmethod
    def idle(cls, degree: int) -> Lanes:
        return cls([0.0] * degree, [0.0] * degree, [0.0] * degree)


@dataclass(frozen=True, slots=True)
class StagePart:
    """One stage in a step. orders: of each replica that is followed, as from `order_of`. lanes:
    moved on by `run_pipeline`.
    """

    degree: int
    orders: Sequence[tuple[int, ...]]
    seconds: Seconds
    lanes: Lanes


@lru_cache(maxsize=8192)
def order_of(
    schedule: str,
    *,
    stage: int,
    num_stages: int,
    num_micro_batches: int,
    replica: int,
    degree: int,
    in_flight: int | None,
) -> tuple[int, ...]:
    """A replica's computations: k for the forward of micro-batch k, ~k for its backward."""
    order = compute_order(
        schedule,
        stage=stage,
        num_stages=num_stages,
        num_micro_batches=num_micro_batches,
        replica=replica,
        degree=degree,
        in_flight=in_flight,
    )
    numbers = []
    for action in order:
        k = action.index or 0
        numbers.append(k if action.kind is Kind.F else ~k)
    return tuple(numbers)


def run_pipeline(
    stages: Sequence[StagePart],
    *,
    num_micro_batches: int,
    hop_s: float,
    step: int = 0,
    timeline: Timeline | None = None,
) -> None:
    """Follow all orders to their ends; `lanes` of the stages are left as they are then."""
    run = _Run(stages, num_micro_batches, hop_s, step, timeline)
    awake = [
        (s, r) for s, part in enumerate(stages) for r, order in enumerate(part.orders) if order
    ]
    awake.reverse()
    while awake:
        run.follow(*awake.pop(), awake)
    if run.waiting:
        raise ScheduleError(f"deadlock in the simulation of a step: {sorted(run.waiting)[:5]} wait")


class _Way(NamedTuple):
    """One direction through a stage. arrivals, sent: when each micro-batch's message is there, or
    None; target: the stage that it is sent to."""

    receive: Kind
    kind: Kind
    send: Kind
    arrivals: list[float | None]
    down_s: list[float] | None
    compute_s: list[float]
    up_s: list[float] | None
    sent: list[float | None]
    target: int


class _Run:
    def __init__(
        self,
        stages: Sequence[StagePart],
        num_micro_batches: int,
        hop_s: float,
        step: int,
        timeline: Timeline | None,
    ) -> None:
        self.stages = stages
        self.hop_s = hop_s
        self.step = step
        self.timeline = timeline
        # Of each stage's output, and of the gradient of it. Those of the last stage, which are
        # the first one's inputs here, are never sent.
        outputs: list[list[float | None]] = [[None] * num_micro_batches for _ in stages]
        gradients: list[list[float | None]] = [[None] * num_micro_batches for _ in stages]
        self.ways: list[tuple[_Way, _Way]] = []
        for s, part in enumerate(stages):
            sec = part.seconds
            forward = _Way(
                Kind.RECV_F, Kind.F, Kind.SEND_F,
                outputs[s - 1], sec.down_f, sec.compute_f, sec.up_f, outputs[s], s + 1,
            )  # fmt: skip
            backward = _Way(
                Kind.RECV_B, Kind.B, Kind.SEND_B,
                gradients[s], sec.down_b, sec.compute_b, sec.up_b, gradients[s - 1], s - 1,
            )  # fmt: skip
            self.ways.append((forward, backward))
        self.at = [[0] * len(part.orders) for part in stages]
        # When the last computations that used a received message were done.
        self.used = [[deque([0.0] * PREFETCH, PREFETCH) for _ in part.orders] for part in stages]
        self.waiting: dict[tuple[int, int], int] = {}

    def follow(self, s: int, r: int, awake: list[tuple[int, int]]) -> None:
        """One worker, until a message that it needs has not been sent yet."""
        lanes, ways, hop_s = self.stages[s].lanes, self.ways[s], self.hop_s
        order, used, at = self.stages[s].orders[r], self.used[s][r], self.at[s][r]
        down, compute, up = lanes.down[r], lanes.compute[r], lanes.up[r]
        while at < len(order):
            number = order[at]
            way, k = (ways[0], number) if number >= 0 else (ways[1], ~number)
            receives = sends = 0.0
            starts = compute
            if way.down_s is not None:
                there = way.arrivals[k]
                if there is None:
                    self.waiting[s, r] = number
                    break
                receives = max(down, there, used[0])
                down = receives + way.down_s[k]
                starts = max(compute, down + hop_s)
            compute = starts + way.compute_s[k]
            if way.down_s is not None:
                used.append(compute)
            if way.up_s is not None:
                sends = max(up, compute)
                up = sends + way.up_s[k]
                way.sent[k] = up + hop_s
                self._wake(way.target, number, k, awake)
            if self.timeline is not None:
                spans = ((receives, down), (starts, compute), (sends, up))
                _note(self.timeline, (self.step, s, r), way, k, spans)
            at += 1
        self.at[s][r] = at
        lanes.down[r], lanes.compute[r], lanes.up[r] = down, compute, up

    def _wake(self, target: int, number: int, k: int, awake: list[tuple[int, int]]) -> None:
        reader = (target, k % self.stages[target].degree)
        if self.waiting.get(reader) == number:
            del self.waiting[reader]
            awake.append(reader)


def _note(
    timeline: Timeline,
    place: tuple[int, int, int],
    way: _Way,
    k: int,
    spans: tuple[tuple[float, float], ...],
) -> None:
    """The spans of receiving, computing and sending, of those that the stage has."""
    kinds = (way.receive, way.kind, way.send)
    seconds = (way.down_s, way.compute_s, way.up_s)
    for kind, known, (start_s, end_s) in zip(kinds, seconds, spans, strict=True):
        if known is not None:
            timeline.add(place, kind, k, start_s, end_s)
