"""A simulation that shares nothing with the planner's: the workers' own `Executor`s, fed by events.

Slow and simple: it is what `funcpipe.partitioner.simulate` must agree with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from funcpipe.partitioner.lanes import StageTimes
from funcpipe.partitioner.noise import Noise
from funcpipe.schedule.action import Action, Kind, Lane
from funcpipe.schedule.execute import Executor, Start
from funcpipe.schedule.message import Message, received, sent
from funcpipe.schedule.program import Shape, training_program

Worker = tuple[int, int]
Seconds = Callable[[int, Worker, Action], float]
Spans = dict[tuple[int, Worker, str], tuple[float, float]]

ANY_NUMBER = 10**6
TIMES = {
    Kind.RECV_F: "down_f", Kind.F: "compute_f", Kind.SEND_F: "up_f",
    Kind.RECV_B: "down_b", Kind.B: "compute_b", Kind.SEND_B: "up_b",
    Kind.SEND_P: "part_up_s", Kind.SEND_S: "part_up_s",
    Kind.RECV_P: "part_down_s", Kind.RECV_S: "part_down_s", Kind.STEP: "step_s",
}  # fmt: skip


@dataclass
class Machine:
    """One worker: its executor, and the tasks that wait for the two directions of its network."""

    executor: Executor
    numbers: dict[Start, int]
    down: list[Start] = field(default_factory=list)
    up: list[tuple[int, int, Start]] = field(default_factory=list)
    busy: set[Lane] = field(default_factory=set)


class SlowSimulation:
    """spans: of every action on the three lanes; step_ends_s: when a step's last task was done."""

    def __init__(
        self,
        shape: Shape,
        seconds: Seconds,
        *,
        num_micro_batches: int,
        num_steps: int,
        hop_s: float,
    ) -> None:
        self.seconds = seconds
        self.hop_s = hop_s
        # A lane is free before a transfer with latency is done, which executors do not know:
        # they start it at once and it waits for its direction here. Without, they do all of it.
        capacity = {Lane.DOWN: ANY_NUMBER, Lane.UP: ANY_NUMBER} if hop_s else None
        self.machines = {}
        for stage, replica in shape.workers():
            program = training_program(
                shape, stage=stage, replica=replica, num_micro_batches=num_micro_batches
            )
            self.machines[stage, replica] = Machine(
                Executor([program] * num_steps, capacity=capacity),
                {
                    Start(number, task.action): place
                    for number in range(num_steps)
                    for place, task in enumerate(program.tasks)
                },
            )
        self.there: set[tuple[int, Message]] = set()
        self.spans: Spans = {}
        self.step_ends_s = [0.0] * num_steps
        self._events: list[tuple[float, int, Worker, Start, bool]] = []
        self._count = count()
        self._run()

    def _run(self) -> None:
        for worker in self.machines:
            self._go_on(worker, 0.0)
        while self._events:
            now, _, worker, start, lane_only = heappop(self._events)
            machine = self.machines[worker]
            if lane_only:
                machine.busy.remove(start.action.lane)
                self._go_on(worker, now)
                continue
            machine.executor.done(start)
            self.step_ends_s[start.pass_index] = max(self.step_ends_s[start.pass_index], now)
            message = sent(start.action, worker[1])
            if message is not None:
                self.there.add((start.pass_index, message))
            for other in self.machines if message else [worker]:
                self._go_on(other, now)
        assert all(machine.executor.finished for machine in self.machines.values())

    def _go_on(self, worker: Worker, now: float) -> None:
        machine = self.machines[worker]
        for start in machine.executor.start():
            if start.action.lane is Lane.DOWN:
                machine.down.append(start)
            elif start.action.lane is Lane.UP:
                number = machine.numbers[start]
                heappush(machine.up, (start.pass_index, number, start))
            else:
                self._begin(worker, start, now)
        if machine.down and Lane.DOWN not in machine.busy:
            message = received(machine.down[0].action, worker[1])
            assert message is not None
            if (machine.down[0].pass_index, message) in self.there:
                self._transfer(worker, machine.down.pop(0), now)
        if machine.up and Lane.UP not in machine.busy:
            self._transfer(worker, heappop(machine.up)[2], now)

    def _transfer(self, worker: Worker, start: Start, now: float) -> None:
        self.machines[worker].busy.add(start.action.lane)
        free = self._begin(worker, start, now, hop_s=self.hop_s)
        heappush(self._events, (free, next(self._count), worker, start, True))

    def _begin(self, worker: Worker, start: Start, now: float, hop_s: float = 0.0) -> float:
        end = now + self.seconds(start.pass_index, worker, start.action)
        if start.action.lane is not Lane.SERVICE:
            self.spans[start.pass_index, worker, str(start.action)] = (now, end)
        heappush(self._events, (end + hop_s, next(self._count), worker, start, False))
        return end


def seconds_of(
    times: Sequence[StageTimes],
    last_times: Sequence[StageTimes] | None,
    noise: Noise | None,
    num_micro_batches: int,
) -> Seconds:
    """What each action takes, looked up one by one."""
    noise = noise or Noise()
    degrees = [one.degree for one in times]
    slow = noise.slow_workers(degrees)

    def seconds(step: int, worker: Worker, action: Action) -> float:
        stage, replica = worker
        kind, degree = action.kind, degrees[stage]
        if kind not in TIMES:
            return 0.0
        of_micro_batch = kind not in (
            Kind.SEND_P, Kind.RECV_P, Kind.SEND_S, Kind.RECV_S, Kind.STEP,
        )  # fmt: skip
        is_last = of_micro_batch and action.index == num_micro_batches - 1
        chosen = last_times if is_last and last_times is not None else times
        found = float(getattr(chosen[stage], TIMES[kind]))
        if slow[stage][replica] and action.lane in noise.slow_lanes:
            found *= noise.slow_factor
        turn = 0
        if kind in (Kind.SEND_P, Kind.RECV_S):
            turn = ((action.index or 0) - replica) % degree
        elif kind is Kind.RECV_P:
            turn = (replica - (action.index or 0)) % degree
        factors = noise.factors(
            step, stage, kind, num_micro_batches if of_micro_batch else degree, turn=turn
        )
        if isinstance(factors, float):
            return found * factors
        return found * float(factors[(action.index or 0) if of_micro_batch else replica])

    return seconds
