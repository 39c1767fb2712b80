"""The order in which a worker's tasks may start: pure bookkeeping, no IO and no clock.

The same object drives a real worker, the in-process cluster of the tests and the validator, so
what is proven deadlock-free is what runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush

from funcpipe.errors import ScheduleError
from funcpipe.schedule.action import Action, Lane
from funcpipe.schedule.program import Program

__all__ = ["Executor", "Start"]

# Received messages are taken and computations done strictly in order, so that the outcome never
# depends on arrivals. Sending and housekeeping cannot block anyone: whatever is ready may go.
_IN_ORDER = {Lane.DOWN, Lane.COMPUTE}


@dataclass(frozen=True, slots=True)
class Start:
    """Start this action of the pass with this number in the stream of programs."""

    pass_index: int
    action: Action


class _Lane:
    """Tasks of one lane: in their order whatever happens, or whichever is ready, oldest first."""

    def __init__(self, capacity: int, *, in_order: bool) -> None:
        self.capacity = capacity
        self.running = 0
        self._in_order = in_order
        self._queue: deque[Start] = deque()
        self._ready: list[tuple[int, Start]] = []
        self._number: dict[Start, int] = {}
        self._count = 0

    def add(self, start: Start, *, ready: bool) -> None:
        self._number[start] = self._count
        self._count += 1
        if self._in_order:
            self._queue.append(start)
        elif ready:
            self.make_ready(start)

    def make_ready(self, start: Start) -> None:
        if not self._in_order:
            heappush(self._ready, (self._number[start], start))

    def take(self, unmet: Mapping[Start, int]) -> Start | None:
        """The next task that may start, if there is one and the lane has room."""
        if self.running >= self.capacity:
            return None
        if self._in_order:
            if not self._queue or unmet[self._queue[0]]:
                return None
            found = self._queue.popleft()
        elif self._ready:
            found = heappop(self._ready)[1]
        else:
            return None
        del self._number[found]
        self.running += 1
        return found

    def next_in_line(self) -> Action | None:
        return next(iter(self._number)).action if self._number else None


class Executor:
    """Feeds the tasks of a stream of programs to lanes.

    capacity: how many tasks a lane runs at once, one unless said. At most two passes are open.
    """

    def __init__(
        self, programs: Iterable[Program], *, capacity: Mapping[Lane, int] | None = None
    ) -> None:
        self._programs: Iterator[Program] = iter(programs)
        self._lanes = {
            lane: _Lane((capacity or {}).get(lane, 1), in_order=lane in _IN_ORDER) for lane in Lane
        }
        self._running: set[Start] = set()
        self._left: dict[int, set[Action]] = {}  # what is not done, by open pass
        self._unmet: dict[Start, int] = {}  # how many tasks a task still waits for
        self._waiting: dict[Start, list[Start]] = {}  # who waits for it
        self._next_pass = 0
        self._exhausted = False
        self.passes_done = 0

    @property
    def finished(self) -> bool:
        return self._exhausted and not self._left

    def start(self) -> list[Start]:
        """Every task that can start now; they count as running from here on."""
        self._refill()
        started = []
        for lane in self._lanes.values():
            while (found := lane.take(self._unmet)) is not None:
                started.append(found)
        self._running.update(started)
        return started

    def done(self, start: Start) -> None:
        """A started task is finished."""
        if start not in self._running:
            raise ScheduleError(f"{start.action} of pass {start.pass_index} was not running")
        self._running.remove(start)
        self._lanes[start.action.lane].running -= 1
        del self._unmet[start]
        for waiting in self._waiting.pop(start, ()):
            self._unmet[waiting] -= 1
            if not self._unmet[waiting]:
                self._lanes[waiting.action.lane].make_ready(waiting)
        left = self._left[start.pass_index]
        left.remove(start.action)
        if not left:
            del self._left[start.pass_index]
            self.passes_done += 1

    def waiting_for(self) -> str:
        """What each lane would do next, for error messages."""
        running = ", ".join(sorted(str(start.action) for start in self._running)) or "nothing"
        heads = {name: lane.next_in_line() for name, lane in self._lanes.items()}
        queued = ", ".join(f"{name.value} {head}" for name, head in heads.items() if head)
        return f"running {running}; next {queued or 'nothing'}"

    def _refill(self) -> None:
        while not self._exhausted and len(self._left) < 2:
            program = next(self._programs, None)
            if program is None:
                self._exhausted = True
                return
            if program.tasks:
                self._open(self._next_pass, program)
            else:
                self.passes_done += 1
            self._next_pass += 1

    def _open(self, index: int, program: Program) -> None:
        self._left[index] = {task.action for task in program.tasks}
        if len(self._left[index]) != len(program.tasks):
            raise ScheduleError("an action occurs twice in one pass")
        before = self._left.get(index - 1, set())
        for task in program.tasks:
            start = Start(index, task.action)
            needed = [Start(index, action) for action in task.after]
            needed += [Start(index - 1, a) for a in task.after_previous if a in before]
            for other in needed:
                self._waiting.setdefault(other, []).append(start)
            self._unmet[start] = len(needed)
        for lane, tasks in program.lanes.items():
            for task in tasks:
                start = Start(index, task.action)
                self._lanes[lane].add(start, ready=not self._unmet[start])
