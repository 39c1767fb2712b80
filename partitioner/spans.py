"""Timelines of simulations: what each lane of each worker did, and when."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from funcpipe.partitioner.noise import Floats
from funcpipe.schedule.action import Action, Kind

__all__ = ["Span", "Timeline"]


class Span(NamedTuple):
    """One action, for as long as it occupied its lane: tokens such as ``1SEND_F3`` and ``up``.

    What a transfer carries is there `hop_s` after end_s.
    """

    step: int
    stage: int
    replica: int
    action: str
    lane: str
    start_s: float
    end_s: float


class Timeline:
    """All spans of a simulation, made when they are asked for.

    Lanes are each in the order of time; beyond that there is none.
    """

    def __init__(self) -> None:
        self._single: list[tuple[tuple[int, int, int], Kind, int | None, float, float]] = []
        self._together: list[tuple[tuple[int, int], Kind, int, Floats, Floats]] = []

    def add(
        self,
        place: tuple[int, int, int],
        kind: Kind,
        index: int | None,
        start_s: float,
        end_s: float,
    ) -> None:
        """place: step, stage and replica."""
        self._single.append((place, kind, index, start_s, end_s))

    def add_round(
        self, place: tuple[int, int], kind: Kind, turn: int, start_s: Floats, end_s: Floats
    ) -> None:
        """Of all replicas of a stage in a step, each dealing with the one `turn` places on."""
        self._together.append((place, kind, turn, start_s, end_s))

    def __len__(self) -> int:
        return len(self._single) + sum(len(start_s) for *_, start_s, _ in self._together)

    def __iter__(self) -> Iterator[Span]:
        for (step, stage, replica), kind, index, start, end in self._single:
            action = Action(stage, kind, index)
            yield Span(step, stage, replica, str(action), kind.lane.value, start, end)
        for (step, stage), kind, turn, starts, ends in self._together:
            degree = len(starts)
            for replica in range(degree):
                action = Action(stage, kind, (replica + turn) % degree, 0)
                start, end = float(starts[replica]), float(ends[replica])
                yield Span(step, stage, replica, str(action), kind.lane.value, start, end)
