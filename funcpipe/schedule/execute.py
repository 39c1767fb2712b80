"""The order in which a worker's tasks may start: pure bookkeeping, no IO and no clock.

The same object drives a real worker, the in-process cluster of the tests and the validator, so
what is proven deadlock-free is what runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from funcpipe.errors import ScheduleError
from funcpipe.schedule.action import Action, Lane
from funcpipe.schedule.program import Program, Task

__all__ = ["Executor", "Start"]

# Received messages are taken and computations done strictly in order, so that the outcome never
# depends on arrivals. Sending and housekeeping cannot block anyone: whatever is ready may go.
_IN_ORDER = {Lane.DOWN, Lane.COMPUTE}


@dataclass(frozen=True, slots=True)
class Start:
    """Start this action of the pass with this number in the stream of programs."""

    pass_index: int
    action: Action


@dataclass
class _Open:
    """A pass that has begun and is not done yet."""

    program: Program
    actions: frozenset[Action]
    done: set[Action] = field(default_factory=set)


class Executor:
    """Feeds the tasks of a stream of programs to lanes.

    capacity: how many tasks a lane runs at once, one unless said. At most two passes are open.
    """

    def __init__(
        self, programs: Iterable[Program], *, capacity: Mapping[Lane, int] | None = None
    ) -> None:
        self._programs: Iterator[Program] = iter(programs)
        self._capacity = {lane: (capacity or {}).get(lane, 1) for lane in Lane}
        self._queues: dict[Lane, list[tuple[int, Task]]] = {lane: [] for lane in Lane}
        self._running: dict[Start, Lane] = {}
        self._open: dict[int, _Open] = {}
        self._next_pass = 0
        self._exhausted = False
        self.passes_done = 0

    @property
    def finished(self) -> bool:
        return self._exhausted and not self._open

    def running(self) -> list[Start]:
        return list(self._running)

    def start(self) -> list[Start]:
        """Every task that can start now; they count as running from here on."""
        self._refill()
        started = []
        for lane in Lane:
            room = self._capacity[lane] - sum(busy is lane for busy in self._running.values())
            while room > 0 and (found := self._take(lane)) is not None:
                self._running[found] = lane
                started.append(found)
                room -= 1
        return started

    def done(self, start: Start) -> None:
        """A started task is finished."""
        if self._running.pop(start, None) is None:
            raise ScheduleError(f"{start.action} of pass {start.pass_index} was not running")
        opened = self._open[start.pass_index]
        opened.done.add(start.action)
        if len(opened.done) == len(opened.actions):
            del self._open[start.pass_index]
            self.passes_done += 1

    def waiting_for(self) -> str:
        """What each lane would do next, for error messages."""
        heads = {lane: queue[0][1].action for lane, queue in self._queues.items() if queue}
        running = ", ".join(str(start.action) for start in self._running) or "nothing"
        queued = ", ".join(f"{lane.value} {action}" for lane, action in heads.items()) or "nothing"
        return f"running {running}; next {queued}"

    def _refill(self) -> None:
        while not self._exhausted and len(self._open) < 2:
            program = next(self._programs, None)
            if program is None:
                self._exhausted = True
                return
            index = self._next_pass
            self._next_pass += 1
            actions = frozenset(task.action for task in program.tasks)
            if len(actions) != len(program.tasks):
                raise ScheduleError("an action occurs twice in one pass")
            if not actions:
                self.passes_done += 1
                continue
            self._open[index] = _Open(program, actions)
            for lane, tasks in program.lanes.items():
                self._queues[lane].extend((index, task) for task in tasks)

    def _take(self, lane: Lane) -> Start | None:
        queue = self._queues[lane]
        reach = queue[:1] if lane in _IN_ORDER else queue
        for place, (index, task) in enumerate(reach):
            if self._ready(index, task):
                del queue[place]
                return Start(index, task.action)
        return None

    def _ready(self, index: int, task: Task) -> bool:
        here = self._open[index]
        if not all(action in here.done for action in task.after):
            return False
        before = self._open.get(index - 1)
        return before is None or all(
            action in before.done or action not in before.actions for action in task.after_previous
        )
