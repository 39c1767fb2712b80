"""The driver's view of a run as a sans-IO state machine: events in, instructions out.

It knows which functions the run needs, puts the reports of the last stage's replicas together
into losses and metrics, and decides when the run is done or has failed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from funcpipe.driver.lost import BROKEN_LIMITS, Exited, Place, lost
from funcpipe.errors import FuncpipeError, FunctionLost, Stopped, revive

__all__ = [
    "Announce",
    "DriverMachine",
    "Event",
    "FaultSeen",
    "Finish",
    "Instruction",
    "Interrupted",
    "ReadFault",
    "ReadResult",
    "ReportSeen",
    "ResultSeen",
    "StopAll",
    "combine",
]


@dataclass(frozen=True)
class FaultSeen:
    """The attempt's fault object, or None if there is none."""

    data: Mapping[str, Any] | None
    exited: Exited | None = None


@dataclass(frozen=True)
class ReportSeen:
    place: Place
    entries: list[Mapping[str, Any]]


@dataclass(frozen=True)
class ResultSeen:
    """A function's result object, or None if it left none."""

    place: Place
    result: Mapping[str, Any] | None


@dataclass(frozen=True)
class Interrupted:
    reason: str


@dataclass(frozen=True)
class Announce:
    """Tell whoever watches: an event for the log and the progress display."""

    event: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class ReadFault:
    exited: Exited


@dataclass(frozen=True)
class ReadResult:
    place: Place


@dataclass(frozen=True)
class StopAll:
    reason: str


@dataclass(frozen=True)
class Finish:
    """The run is over. `error` is None if it is done."""

    error: FuncpipeError | None = None


Event: TypeAlias = Exited | FaultSeen | ReportSeen | ResultSeen | Interrupted
Instruction: TypeAlias = Announce | ReadFault | ReadResult | StopAll | Finish


@dataclass
class _Gathered:
    """What the replicas of the last stage have said about one pass so far."""

    rows: dict[int, Any] = field(default_factory=dict)
    replicas: int = 0


class DriverMachine:
    """degrees: replicas of each stage. num_steps: of the whole run. mean_loss: or a sum."""

    def __init__(self, degrees: tuple[int, ...], *, num_steps: int, mean_loss: bool = True) -> None:
        self.results: dict[Place, Mapping[str, Any]] = {}
        self.losses: list[float] = []
        self.metrics: dict[str, float] = {}
        self.error: FuncpipeError | None = None
        self.finished = False
        self._degrees = degrees
        self._num_steps = num_steps
        self._mean_loss = mean_loss
        self._places = {(s, r) for s, degree in enumerate(degrees) for r in range(degree)}
        self._gathered: dict[tuple[bool, int], _Gathered] = {}

    @property
    def reporters(self) -> list[Place]:
        """The functions that report: the last stage's replicas."""
        last = len(self._degrees) - 1
        return [(last, replica) for replica in range(self._degrees[last])]

    def handle(self, event: Event) -> list[Instruction]:
        if self.finished:
            return []
        match event:
            case Exited():
                return self._exited(event)
            case FaultSeen():
                return self._fault(event)
            case ReportSeen(entries=entries):
                return [told for entry in entries for told in self._report(entry)]
            case ResultSeen():
                return self._result(event.place, event.result)
            case Interrupted(reason):
                return self._fail(Stopped(reason))

    def _exited(self, event: Exited) -> list[Instruction]:
        if event.reason == "stopped" or event.place in self.results:
            return []
        if event.reason in BROKEN_LIMITS:
            # What its peers say about it by now is a consequence.
            return self._fail(lost(event, progress=self._progress()))
        return [ReadResult(event.place) if event.reason == "done" else ReadFault(event)]

    def _fault(self, event: FaultSeen) -> list[Instruction]:
        if event.data is not None:
            return self._fail(revive(event.data))
        if event.exited is None:
            return []
        return self._fail(lost(event.exited, progress=self._progress()))

    def _progress(self) -> str:
        return f"{len(self.losses)} of {self._num_steps} steps"

    def _result(self, place: Place, result: Mapping[str, Any] | None) -> list[Instruction]:
        if result is None:
            message = (
                "the function ended without a result: either the job's code ended the process, or "
                "another invocation took its place"
            )
            return self._fail(FunctionLost(message, stage=place[0], replica=place[1]))
        self.results[place] = result
        fields = {"stage": place[0], "replica": place[1], "peak_bytes": result["peak_bytes"]}
        told: list[Instruction] = [Announce("function_ended", fields)]
        if set(self.results) == self._places:
            self.finished = True
            told.append(Finish())
        return told

    def _fail(self, error: FuncpipeError) -> list[Instruction]:
        self.finished = True
        self.error = error
        return [StopAll(error.message), Finish(error)]

    def _report(self, entry: Mapping[str, Any]) -> list[Instruction]:
        """One replica's share of a pass; announced once all replicas have given theirs."""
        trains, step = bool(entry["trains"]), int(entry["step"])
        gathered = self._gathered.setdefault((trains, step), _Gathered())
        gathered.rows |= dict(entry["losses"] if trains else entry["sums"])
        gathered.replicas += 1
        if gathered.replicas < self._degrees[-1]:
            return []
        del self._gathered[trains, step]
        rows = [gathered.rows[k] for k in sorted(gathered.rows)]
        if trains:
            loss = math.fsum(rows)
            self.losses.append(loss)
            return [Announce("step", {"step": step + 1, "total": self._num_steps, "loss": loss})]
        self.metrics = combine(rows, mean=self._mean_loss)
        return [Announce("evaluation", {"step": step + 1, "metrics": self.metrics})]


def combine(rows: list[Mapping[str, Any]], *, mean: bool) -> dict[str, float]:
    """Metrics of an evaluation from its micro-batches' sums.

    The loss per weight if it is a mean, else the sum; the metrics per sample; NaN where nothing
    counted.
    """
    weight = math.fsum(row["weight"] for row in rows) if mean else 1.0
    count = math.fsum(row["count"] for row in rows)
    combined = {"loss": _ratio(math.fsum(row["loss"] for row in rows), weight)}
    for name in rows[0]["metrics"]:
        combined[name] = _ratio(math.fsum(row["metrics"][name] for row in rows), count)
    return combined


def _ratio(total: float, weight: float) -> float:
    return total / weight if weight else math.nan
