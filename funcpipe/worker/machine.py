"""A worker's life as a sans-IO state machine: events in, instructions out.

It takes its lease, builds its stage, runs the tasks of its programs, hands over the trained
weights and its result, and ends. Whatever fails, wherever it is, ends it at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from funcpipe.errors import FuncpipeError, Stopped, Superseded
from funcpipe.schedule.action import Lane
from funcpipe.schedule.execute import Executor, Start
from funcpipe.schedule.program import Program

__all__ = [
    "Build",
    "Built",
    "End",
    "Event",
    "Export",
    "Exported",
    "Failed",
    "Instruction",
    "LeaseTaken",
    "Run",
    "Started",
    "State",
    "TakeLease",
    "TaskDone",
    "WorkerMachine",
]


class State(Enum):
    NEW = "new"
    LEASING = "leasing"
    BUILDING = "building"
    RUNNING = "running"
    EXPORTING = "exporting"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Started:
    """The function has been invoked."""


@dataclass(frozen=True, slots=True)
class LeaseTaken:
    """This invocation owns its place in the run."""


@dataclass(frozen=True, slots=True)
class Built:
    """The stage is in memory. `programs`: one per pass, in order."""

    programs: Iterable[Program]


@dataclass(frozen=True, slots=True)
class TaskDone:
    start: Start


@dataclass(frozen=True, slots=True)
class Exported:
    """Weights and result are in the store."""


@dataclass(frozen=True, slots=True)
class Failed:
    error: FuncpipeError


@dataclass(frozen=True, slots=True)
class TakeLease:
    lane = Lane.SERVICE


@dataclass(frozen=True, slots=True)
class Build:
    lane = Lane.COMPUTE


@dataclass(frozen=True, slots=True)
class Run:
    start: Start

    @property
    def lane(self) -> Lane:
        return self.start.action.lane


@dataclass(frozen=True, slots=True)
class Export:
    lane = Lane.UP


@dataclass(frozen=True, slots=True)
class End:
    """Leave. `error` is None after success; `tell` says whether it belongs into the store."""

    error: FuncpipeError | None = None
    tell: bool = False


Event: TypeAlias = Started | LeaseTaken | Built | TaskDone | Exported | Failed
Instruction: TypeAlias = TakeLease | Build | Run | Export | End

HISTORY = 12


class WorkerMachine:
    """`handle` takes what happened and says what to do next; it is called by one caller at a time.

    Events that come after the end are ignored: lanes may still have been at work.
    """

    def __init__(self) -> None:
        self.state = State.NEW
        self.history: deque[str] = deque(maxlen=HISTORY)
        self._executor: Executor | None = None

    @property
    def passes_done(self) -> int:
        return 0 if self._executor is None else self._executor.passes_done

    def handle(self, event: Event) -> list[Instruction]:  # noqa: PLR0911 - one per transition
        if self.state is State.ENDED:
            return []
        self.history.append(_brief(event))
        match self.state, event:
            case _, Failed(error):
                self.state = State.ENDED
                quiet = isinstance(error, Stopped | Superseded)
                return [End(error, tell=not quiet)]
            case State.NEW, Started():
                self.state = State.LEASING
                return [TakeLease()]
            case State.LEASING, LeaseTaken():
                self.state = State.BUILDING
                return [Build()]
            case State.BUILDING, Built(programs):
                self.state = State.RUNNING
                self._executor = Executor(programs)
                return self._go_on()
            case State.RUNNING, TaskDone(start):
                self._running_executor().done(start)
                return self._go_on()
            case State.EXPORTING, Exported():
                self.state = State.ENDED
                return [End()]
            case _:
                raise FuncpipeError(
                    f"a worker that is {self.state.value} cannot take {_brief(event)}; "
                    f"before it: {', '.join(self.history)}"
                )

    def _go_on(self) -> list[Instruction]:
        executor = self._running_executor()
        started: list[Instruction] = [Run(start) for start in executor.start()]
        if executor.finished:
            self.state = State.EXPORTING
            return [Export()]
        return started

    def _running_executor(self) -> Executor:
        if self._executor is None:
            raise FuncpipeError("the worker has no programs yet")
        return self._executor


def _brief(event: Event) -> str:
    if isinstance(event, TaskDone):
        return f"{event.start.action} of pass {event.start.pass_index} done"
    if isinstance(event, Failed):
        return f"failed: {type(event.error).__name__}"
    return type(event).__name__
