"""The threads of a worker: one per lane, fed by the state machine's instructions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from funcpipe.errors import FuncpipeError, OutOfMemory, Stopped, Superseded
from funcpipe.schedule.action import Lane
from funcpipe.worker.machine import (
    End,
    Event,
    Failed,
    Instruction,
    Started,
    WorkerMachine,
)

__all__ = ["LINGER_S", "Runner", "join_lanes"]

Do = Callable[[Instruction], Event]

LINGER_S = 1.0
"""Real seconds that a stopped worker's lanes are given to come to their end."""


class _LaneThread(threading.Thread):
    """Told from all other threads of the process by its class."""


def join_lanes() -> None:
    """Wait until the lanes of all runners that are over in this process have ended."""
    for thread in threading.enumerate():
        if isinstance(thread, _LaneThread):
            thread.join()


class Runner:
    """Carries out a `WorkerMachine`'s instructions on one thread per lane.

    do: carries out one instruction and returns the event that it ends with; what it raises
    becomes the event `Failed`. The lane that finishes an action asks the machine itself what
    comes next, so the critical path hops between threads only where lanes meet.
    """

    def __init__(self, machine: WorkerMachine, do: Do) -> None:
        self._machine = machine
        self._do = do
        self._lock = threading.Lock()
        self._queues: dict[Lane, SimpleQueue[Instruction | None]] = {
            lane: SimpleQueue() for lane in Lane
        }
        self._ended: SimpleQueue[End] = SimpleQueue()
        self._over = False

    def run(self) -> End:
        """Live the worker's life on this and the lanes' threads; how it ended.

        After a failure, lanes may still be busy: the caller is expected to end the process. So
        may those of a worker that was stopped, for a while (`join_lanes`).
        """
        threads = [
            _LaneThread(target=self._serve, args=(lane,), name=lane.value, daemon=True)
            for lane in Lane
        ]
        for thread in threads:
            thread.start()
        self._post(Started())
        end = self._ended.get()
        self._over = True
        for queue in self._queues.values():
            queue.put(None)
        if end.error is None:
            for thread in threads:
                thread.join()
        elif isinstance(end.error, Stopped | Superseded):
            until_s = time.monotonic() + LINGER_S
            for thread in threads:
                thread.join(max(0.0, until_s - time.monotonic()))
        return end

    def stop(self, error: FuncpipeError) -> None:
        """End the worker from outside (a signal, a lost driver)."""
        self._post(Failed(error))

    def _serve(self, lane: Lane) -> None:
        queue = self._queues[lane]
        while (instruction := queue.get()) is not None and not self._over:
            self._post(self._carry_out(instruction))

    def _carry_out(self, instruction: Instruction) -> Event:
        try:
            return self._do(instruction)
        except FuncpipeError as error:
            return Failed(error)
        except MemoryError as error:
            return Failed(OutOfMemory(f"out of memory: {error}"))
        except BaseException as error:  # noqa: BLE001 - a lane that ends unseen would hang the run
            unexpected = FuncpipeError(f"unexpected {type(error).__name__}: {error}")
            unexpected.__cause__ = error
            return Failed(unexpected)

    def _post(self, event: Event) -> None:
        with self._lock:
            try:
                instructions = self._machine.handle(event)
            except FuncpipeError as error:
                instructions = self._machine.handle(Failed(error))
            for instruction in instructions:
                if isinstance(instruction, End):
                    self._ended.put(instruction)
                else:
                    self._queues[instruction.lane].put(instruction)
