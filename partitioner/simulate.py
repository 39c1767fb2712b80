"""Simulation of training steps from a plan's figures: every replica, every lane, every transfer.

What runs is what workers run: their computations are those of `funcpipe.schedule.order`, transfers,
prefetching and synchronisation follow `training_program`. A transfer occupies its lane for its
seconds and is there `hop_s` later; it is received once it is there. Adding shares, reporting and
deleting take no time. Costs and `cost.py`'s formulas are held to it by tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from funcpipe.errors import PlanError
from funcpipe.partitioner.collective import sync_s
from funcpipe.partitioner.collective_sim import Exchange, Note, synchronise
from funcpipe.partitioner.fees import StageFees
from funcpipe.partitioner.lanes import StageTimes, plan_times
from funcpipe.partitioner.noise import Floats, Noise
from funcpipe.partitioner.pipeline_sim import Lanes, Seconds, StagePart, order_of, run_pipeline
from funcpipe.partitioner.plan import METHODS, SCHEDULES, Plan
from funcpipe.partitioner.setting import Setting
from funcpipe.partitioner.spans import Timeline
from funcpipe.schedule.action import Kind, Lane

__all__ = [
    "Simulation",
    "WorkerLoad",
    "dollars_of_step",
    "simulate",
    "simulate_plan",
    "simulated_step_s",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerLoad:
    """Seconds for which each lane of a worker was busy; done_s: when its last step was done."""

    stage: int
    replica: int
    slow: bool
    down_s: float
    compute_s: float
    up_s: float
    done_s: float


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """step_ends_s: when all workers have done a step and all that they sent in it is there."""

    step_ends_s: tuple[float, ...]
    workers: tuple[WorkerLoad, ...]
    timeline: Timeline | None

    @property
    def total_s(self) -> float:
        return max(self.step_ends_s)

    @property
    def step_s(self) -> float:
        """Of a step among others: from the first one's end to the last one's, if there are several.

        A worker begins its next step when its own is done, so that steps overlap a little.
        """
        ends = self.step_ends_s
        return ends[0] if len(ends) == 1 else (ends[-1] - ends[0]) / (len(ends) - 1)

    def idle_s(self, worker: WorkerLoad) -> dict[Lane, float]:
        """Of each lane, until the last step ended for all."""
        return {
            Lane.DOWN: self.total_s - worker.down_s,
            Lane.COMPUTE: self.total_s - worker.compute_s,
            Lane.UP: self.total_s - worker.up_s,
        }


def simulate_plan(
    setting: Setting,
    plan: Plan,
    *,
    num_steps: int = 1,
    noise: Noise | None = None,
    timeline: bool = False,
) -> Simulation:
    """Of a plan in a setting; its last micro-batch has the samples that are left for it."""
    size = min(plan.micro_batch_size, setting.batch_size)
    num = setting.num_micro_batches(size)
    left = setting.batch_size - (num - 1) * size
    return simulate(
        plan_times(setting, plan, num_samples=size),
        num_micro_batches=num,
        schedule=plan.schedule,
        in_flight=plan.in_flight,
        sync=plan.sync,
        num_steps=num_steps,
        last_times=None if left == size else plan_times(setting, plan, num_samples=left),
        noise=noise,
        timeline=timeline,
    )


def dollars_of_step(step_s: float, fees: Sequence[StageFees]) -> float:
    """What a step of `step_s` seconds costs: seconds x dollars per second + fees of the step."""
    return step_s * sum(one.per_s for one in fees) + sum(one.per_step for one in fees)


def simulate(
    times: Sequence[StageTimes],
    *,
    num_micro_batches: int,
    schedule: str = "gpipe",
    in_flight: int | None = None,
    sync: str = "pipelined",
    num_steps: int = 1,
    last_times: Sequence[StageTimes] | None = None,
    noise: Noise | None = None,
    timeline: bool = False,
) -> Simulation:
    """All workers in num_steps consecutive steps, which begin at 0 for all.

    last_times: of the last micro-batch, where it is smaller. timeline: whether to keep every span.
    """
    _check(times, num_micro_batches, schedule, in_flight, sync)
    if num_steps < 1:
        raise PlanError(f"{num_steps} steps to simulate; at least one is needed")
    if last_times is not None and [t.degree for t in last_times] != [t.degree for t in times]:
        raise PlanError("the last micro-batch's times are of other stages than those of the others")
    run = _Steps(
        times=times,
        last_times=times if last_times is None else last_times,
        num_micro_batches=num_micro_batches,
        sync=sync,
        noise=Noise() if noise is None else noise,
        timeline=Timeline() if timeline else None,
    )
    orders = _orders(times, num_micro_batches, schedule, in_flight)
    ends = tuple(run.step(number, orders) for number in range(num_steps))
    return Simulation(step_ends_s=ends, workers=run.loads(), timeline=run.timeline)


def simulated_step_s(
    times: Sequence[StageTimes],
    *,
    num_micro_batches: int,
    schedule: str,
    in_flight: int | None = None,
    sync: str = "pipelined",
) -> float:
    """Seconds of one step, as `simulate` says; much faster if all stages have one degree.

    Replica r of a stage then deals with replicas r only, so that each r is a pipeline by itself.
    Those with equally many micro-batches do the same at the same times, and one that has one less
    is never later. The first one thus is the last, and synchronisation ends as if all were as late.
    """
    _check(times, num_micro_batches, schedule, in_flight, sync)
    degree = times[0].degree
    if any(one.degree != degree for one in times):
        return simulate(
            times, num_micro_batches=num_micro_batches, schedule=schedule, in_flight=in_flight,
            sync=sync,
        ).step_s  # fmt: skip
    orders = _orders(times, num_micro_batches, schedule, in_flight, first_only=True)
    parts = [
        StagePart(degree, own, _plain_seconds(one, num_micro_batches), Lanes.idle(1))
        for one, own in zip(times, orders, strict=True)
    ]
    run_pipeline(parts, num_micro_batches=num_micro_batches, hop_s=times[0].hop_s)
    ends = []
    for one, part in zip(times, parts, strict=True):
        end_s = part.lanes.compute[0]
        if one.synchronises:
            end_s = max(end_s, part.lanes.up[0]) + sync_s(
                sync, degree=degree, up_s=one.part_up_s, down_s=one.part_down_s, hop_s=one.hop_s
            )
        ends.append(end_s + one.step_s)
    return max(ends)


@dataclass(kw_only=True)
class _Steps:
    """Consecutive steps of all workers."""

    times: Sequence[StageTimes]
    last_times: Sequence[StageTimes]
    num_micro_batches: int
    sync: str
    noise: Noise
    timeline: Timeline | None

    def __post_init__(self) -> None:
        degrees = [one.degree for one in self.times]
        self.lanes = [Lanes.idle(degree) for degree in degrees]
        self.slow = self.noise.slow_workers(degrees)
        self.slowness = [
            {lane: self.noise.slowness(slow, lane) for lane in (Lane.DOWN, Lane.COMPUTE, Lane.UP)}
            for slow in self.slow
        ]
        self.busy = [
            {lane: np.zeros(degree) for lane in (Lane.DOWN, Lane.COMPUTE, Lane.UP)}
            for degree in degrees
        ]

    def step(self, number: int, orders: list[list[tuple[int, ...]]]) -> float:
        """Its end: the last optimiser's. Whatever was sent has been received before that."""
        parts = [
            StagePart(one.degree, orders[s], self._seconds(number, s), self.lanes[s])
            for s, one in enumerate(self.times)
        ]
        run_pipeline(
            parts,
            num_micro_batches=self.num_micro_batches,
            hop_s=self.times[0].hop_s,
            step=number,
            timeline=self.timeline,
        )
        return max(self._finish(number, s) for s in range(len(self.times)))

    def loads(self) -> tuple[WorkerLoad, ...]:
        return tuple(
            WorkerLoad(
                stage=s,
                replica=r,
                slow=bool(self.slow[s][r]),
                down_s=float(self.busy[s][Lane.DOWN][r]),
                compute_s=float(self.busy[s][Lane.COMPUTE][r]),
                up_s=float(self.busy[s][Lane.UP][r]),
                done_s=self.lanes[s].compute[r],
            )
            for s, one in enumerate(self.times)
            for r in range(one.degree)
        )

    def _seconds(self, number: int, s: int) -> Seconds:
        """Of all micro-batches in one stage, on the lanes of whoever works on them."""
        replicas = np.arange(self.num_micro_batches) % self.times[s].degree
        found: dict[str, list[float] | None] = {}
        for name, kind in _LANE_TIMES.items():
            usual, last = getattr(self.times[s], name), getattr(self.last_times[s], name)
            if usual is None:
                found[name] = None
                continue
            seconds = np.full(self.num_micro_batches, float(usual))
            seconds[-1] = last
            seconds *= self.slowness[s][kind.lane][replicas]
            seconds *= self.noise.factors(number, s, kind, self.num_micro_batches)
            self.busy[s][kind.lane] += np.bincount(
                replicas, weights=seconds, minlength=self.times[s].degree
            )
            found[name] = seconds.tolist()
        return Seconds(**found)  # type: ignore[arg-type]

    def _finish(self, number: int, s: int) -> float:
        """Synchronisation and optimiser of a stage; when its last replica is done."""
        one, lanes = self.times[s], self.lanes[s]
        ready = np.array(lanes.compute)
        if one.synchronises:
            exchange = Exchange(
                ready=ready,
                down=np.array(lanes.down),
                up=np.array(lanes.up),
                hop_s=one.hop_s,
                seconds=lambda kind, turn: self._part_seconds(number, s, kind, turn),
                note=self._note_of(number, s),
            )
            ready = synchronise(self.sync, exchange)
            lanes.down, lanes.up = exchange.down.tolist(), exchange.up.tolist()
        steps = one.step_s * self.slowness[s][Lane.COMPUTE]
        steps = steps * self.noise.factors(number, s, Kind.STEP, one.degree)
        self.busy[s][Lane.COMPUTE] += steps
        done = ready + steps
        lanes.compute = done.tolist()
        if self.timeline is not None:
            for r, start in enumerate(ready.tolist()):
                self.timeline.add((number, s, r), Kind.STEP, None, start, lanes.compute[r])
        return float(done.max())

    def _part_seconds(self, number: int, s: int, kind: Kind, turn: int) -> Floats:
        one = self.times[s]
        part_s = one.part_up_s if kind.lane is Lane.UP else one.part_down_s
        seconds = part_s * self.slowness[s][kind.lane]
        seconds = seconds * self.noise.factors(number, s, kind, one.degree, turn=turn)
        self.busy[s][kind.lane] += seconds
        return seconds

    def _note_of(self, number: int, s: int) -> Note | None:
        timeline = self.timeline
        if timeline is None:
            return None

        def note(kind: Kind, turn: int, start_s: Floats, end_s: Floats) -> None:
            timeline.add_round((number, s), kind, turn, start_s, end_s)

        return note


_LANE_TIMES = {
    "down_f": Kind.RECV_F,
    "compute_f": Kind.F,
    "up_f": Kind.SEND_F,
    "down_b": Kind.RECV_B,
    "compute_b": Kind.B,
    "up_b": Kind.SEND_B,
}


def _orders(
    times: Sequence[StageTimes],
    num_micro_batches: int,
    schedule: str,
    in_flight: int | None,
    *,
    first_only: bool = False,
) -> list[list[tuple[int, ...]]]:
    """Of each stage's replicas, or of its first one."""
    return [
        [
            order_of(
                schedule,
                stage=s,
                num_stages=len(times),
                num_micro_batches=num_micro_batches,
                replica=r,
                degree=one.degree,
                in_flight=in_flight,
            )
            for r in range(1 if first_only else one.degree)
        ]
        for s, one in enumerate(times)
    ]


def _plain_seconds(times: StageTimes, num: int) -> Seconds:
    def each(seconds: float | None) -> list[float] | None:
        return None if seconds is None else [seconds] * num

    return Seconds(
        down_f=each(times.down_f),
        compute_f=[times.compute_f] * num,
        up_f=each(times.up_f),
        down_b=each(times.down_b),
        compute_b=[times.compute_b] * num,
        up_b=each(times.up_b),
    )


def _check(
    times: Sequence[StageTimes], num_micro_batches: int, schedule: str, in_flight: int | None,
    sync: str,
) -> None:  # fmt: skip
    if not times:
        raise PlanError("a simulation has at least one stage; this one has none")
    if num_micro_batches < 1:
        raise PlanError(f"{num_micro_batches} micro-batches; at least one is needed")
    if schedule not in SCHEDULES or sync not in METHODS:
        raise PlanError(
            f"{schedule!r} with {sync!r} is not known; known: {', '.join(SCHEDULES)} with "
            f"{', '.join(METHODS)}"
        )
    if in_flight is not None and in_flight < 1:
        raise PlanError(f"in_flight is {in_flight}; at least one micro-batch must be in flight")
    if any(one.hop_s != times[0].hop_s for one in times):
        raise PlanError("the stages' transfers have different latencies; expected one for all")
