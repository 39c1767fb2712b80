"""The threads of a worker: one per lane, fed by the state machine's instructions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from funcpipe.errors import FuncpipeError, OutOfMemory
from funcpipe.schedule.action import Lane
from funcpipe.worker.machine import (
    End,
    Event,
    Failed,
    Instruction,
    Started,
    WorkerMachine,
)

__all__ = ["Runner"]

Do = Callable[[Instruction], Event]


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

        After a failure, lanes may still be busy: the caller is expected to end the process.
        """
        threads = [
            threading.Thread(target=self._serve, args=(lane,), name=lane.value, daemon=True)
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
