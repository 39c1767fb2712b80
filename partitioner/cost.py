"""The performance model: what a plan takes in time, memory and dollars. Pure functions.

`evaluate` is what every answer of every solver is judged by. Formulas are those of FuncPipe (Liu et
al. 2022, section 4) with what a store adds, as `docs/planning.md` derives them; where they are
exact, the simulator agrees to the last digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from math import isclose
from typing import Any

from funcpipe.partitioner.collective import sync_s
from funcpipe.partitioner.fees import StageFees, stage_fees
from funcpipe.partitioner.lanes import StageTimes, plan_times, tier_of
from funcpipe.partitioner.memory import MemoryUse, held_micro_batches, memory_use
from funcpipe.partitioner.plan import Plan
from funcpipe.partitioner.setting import Setting
from funcpipe.partitioner.simulate import simulated_step_s
from funcpipe.partitioner.waits import waits_s
from funcpipe.schedule.program import PREFETCH

__all__ = ["Estimate", "StageEstimate", "StepTime", "evaluate", "step_time"]

MB = 2**20
EXACT, BOUND, SIMULATED = "exact", "upper bound", "simulated"

_StageLanes = tuple[float | None, float, float | None]


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of a training step and its parts. forward_s: until the last stage has the last
    output. backward_s, tail_s: of the stage that ends last, until its gradients are final, and
    from there on: synchronisation and optimiser. None under `1f1b`, which mixes them. how: `exact`
    within the model, an `upper bound` (a last micro-batch that is smaller, whatever the schedule,
    and the two cases of `gpipe_s`), or `simulated`.
    """

    total_s: float
    forward_s: float | None
    backward_s: float | None
    tail_s: float | None
    how: str


@dataclass(frozen=True, kw_only=True)
class StageEstimate:
    """One stage. limit: the lane that is busiest over a step, `compute`, `upload`, `download` or
    `synchronise`. busy_s: for how long it is. dollars: of a step.
    """

    memory_mb: int
    degree: int
    memory: MemoryUse
    times: StageTimes
    sync_s: float
    fees: StageFees
    dollars: float
    limit: str
    busy_s: float

    @property
    def fits(self) -> bool:
        return self.memory.total <= self.memory_mb * MB


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a plan takes. Of one step: time, dollars. stages: in order."""

    time: StepTime
    dollars: float
    stages: tuple[StageEstimate, ...]
    num_micro_batches: int

    @property
    def step_s(self) -> float:
        return self.time.total_s

    @property
    def dollars_per_s(self) -> float:
        return sum(stage.fees.per_s for stage in self.stages)

    @property
    def fits(self) -> bool:
        return all(stage.fits for stage in self.stages)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        parts = {
            "compute": self.step_s * self.dollars_per_s,
            "requests": sum(stage.fees.requests for stage in self.stages),
            "transfer": sum(stage.fees.transfer for stage in self.stages),
            "starts": sum(stage.fees.starts for stage in self.stages),
        }
        return {
            "step_s": self.step_s,
            "dollars": self.dollars,
            "time": asdict(self.time),
            "dollars_by_cause": parts,
            "num_micro_batches": self.num_micro_batches,
            "stages": [_stage_dict(stage) for stage in self.stages],
        }


def evaluate(setting: Setting, plan: Plan) -> Estimate:
    """Time, memory and dollars of a step of `plan`; PlanError where it does not fit the profile.

    Dollars of a step = seconds of the step x dollars per second of all functions + fees of the
    step (FuncPipe section 4.2, with requests and transfer added). Memory that does not fit is not
    refused here: see `Estimate.fits`.
    """
    size = min(plan.micro_batch_size, setting.batch_size)
    times = plan_times(setting, plan, num_samples=size)
    num = setting.num_micro_batches(size)
    time = step_time(
        times,
        num_micro_batches=num,
        schedule=plan.schedule,
        in_flight=plan.in_flight,
        sync=plan.sync,
        whole=setting.batch_size % size == 0,
    )
    stages = []
    for number, (stage, one) in enumerate(zip(plan.stages, times, strict=True)):
        is_last = number == len(plan.stages) - 1
        held = held_micro_batches(
            schedule=plan.schedule, stage=number, num_stages=len(plan.stages),
            degree=stage.replicas, num_micro_batches=num, in_flight=plan.in_flight,
        )  # fmt: skip
        memory = memory_use(setting.profile, stage, num_samples=size, held=held, is_last=is_last)
        fees = stage_fees(setting, stage, num_micro_batches=num, is_last=is_last)
        synchronising = stage_sync_s(one, plan.sync)
        limit, busy_s = _limit(one, -(-num // stage.replicas), synchronising)
        stages.append(
            StageEstimate(
                memory_mb=tier_of(setting, stage),
                degree=stage.replicas,
                memory=memory,
                times=one,
                sync_s=synchronising,
                fees=fees,
                dollars=time.total_s * fees.per_s + fees.per_step,
                limit=limit,
                busy_s=busy_s,
            )
        )
    # Summed like this and not by stage: the form in which the solvers see it.
    per_s = sum(stage.fees.per_s for stage in stages)
    dollars = time.total_s * per_s + sum(stage.fees.per_step for stage in stages)
    return Estimate(time=time, dollars=dollars, stages=tuple(stages), num_micro_batches=num)


def step_time(
    times: Sequence[StageTimes],
    *,
    num_micro_batches: int,
    schedule: str = "gpipe",
    in_flight: int | None = None,
    sync: str = "pipelined",
    whole: bool = True,
) -> StepTime:
    """Seconds of a step. whole: whether all micro-batches have the size that `times` are for.

    With one stage all schedules take equally long.
    """
    if schedule != "gpipe" and len(times) > 1:
        total = simulated_step_s(
            times, num_micro_batches=num_micro_batches, schedule=schedule, in_flight=in_flight,
            sync=sync,
        )  # fmt: skip
        how = SIMULATED if whole else BOUND
        return StepTime(total_s=total, forward_s=None, backward_s=None, tail_s=None, how=how)
    forward = forward_s(times, num_micro_batches)
    ends = backward_ends_s(times, num_micro_batches)
    tails = [tail_s(one, sync) for one in times]
    last = max(range(len(times)), key=lambda s: ends[s] + tails[s])
    total = forward + ends[last] + tails[last]
    # Without hops, and where all gradients have been sent at the end, there is nothing to check.
    plain = times[0].hop_s == 0 and (times[last].synchronises or last == 0)
    exact = whole and (
        plain or isclose(total, gpipe_s(times, num_micro_batches, sync), rel_tol=1e-12)
    )
    return StepTime(
        total_s=total,
        forward_s=forward,
        backward_s=ends[last],
        tail_s=tails[last],
        how=EXACT if exact else BOUND,
    )


def gpipe_s(times: Sequence[StageTimes], num_micro_batches: int, sync: str) -> float:
    """Seconds of a step under gpipe, exactly, if all micro-batches have the size of `times`.

    `step_time` gives more in two cases, because solvers need a sum over stages: where a hop is so
    long that the window of `PREFETCH` messages counts (which is here a wait of its own, shared by
    `PREFETCH` micro-batches), and where a stage without synchronisation ends last, whose optimiser
    does not wait for gradients that have piled up to be sent.
    """
    hop, budget = times[0].hop_s, num_micro_batches - 1
    forward = _Waits(hop)
    for one in times:
        forward.add(one.degree, one.down_f, one.compute_f, one.up_f)
    most, fill, behind = 0.0, 0.0, _Waits(hop)
    for one in reversed(times):
        before_sending = behind.copy()
        before_sending.add(one.degree, one.down_b, one.compute_b, None)
        behind.add(one.degree, one.down_b, one.compute_b, one.up_b)
        if one.synchronises:
            end = behind.longest_s(budget) + one.fill_b - (0.0 if one.up_b is None else hop)
        else:
            received = 0.0 if one.down_b is None else one.down_b + hop
            end = before_sending.longest_s(budget) + received + one.compute_b
        most = max(most, fill + end + stage_sync_s(one, sync) + one.step_s)
        fill += one.fill_b
    return sum(one.fill_f for one in times) + forward.longest_s(budget) + most


class _Waits:
    """What a micro-batch may have to wait for: the lanes and windows of some stages."""

    def __init__(self, hop_s: float) -> None:
        self.hop_s = hop_s
        self.seconds: list[float] = []
        self.degrees: list[int] = []

    def copy(self) -> _Waits:
        other = _Waits(self.hop_s)
        other.seconds, other.degrees = self.seconds[:], self.degrees[:]
        return other

    def add(self, degree: int, down: float | None, compute: float, up: float | None) -> None:
        self.seconds.append(max(down or 0.0, compute, up or 0.0))
        self.degrees.append(degree)
        if down is not None and self.hop_s:
            self.seconds.append(down + self.hop_s + compute)
            self.degrees.append(PREFETCH * degree)

    def longest_s(self, budget: int) -> float:
        return waits_s(self.seconds, self.degrees, budget)


def forward_s(times: Sequence[StageTimes], num_micro_batches: int) -> float:
    """Until the last stage has computed the last micro-batch's output.

    The fill of every stage, and the longest chain of waits: FuncPipe section 4.2 for one degree
    (fill + (m - 1) x the slowest lane); `funcpipe.partitioner.waits` for degrees that differ.
    """
    waits = waits_s(
        [one.lane_f for one in times], [one.degree for one in times], num_micro_batches - 1
    )
    return sum(one.fill_f for one in times) + waits


def backward_ends_s(times: Sequence[StageTimes], num_micro_batches: int) -> list[float]:
    """When each stage has sent its last gradient, counted from the end of the forward.

    Only stages from it on matter to a stage: sum of their fills + their chain of waits. (With the
    slowest lane of all stages instead, as published, it is too long for the last ones.)
    """
    fills = list(accumulate(one.fill_b for one in reversed(times)))[::-1]
    lanes, degrees = [one.lane_b for one in times], [one.degree for one in times]
    return [
        fill + waits_s(lanes[s:], degrees[s:], num_micro_batches - 1)
        for s, fill in enumerate(fills)
    ]


def tail_s(times: StageTimes, sync: str) -> float:
    """From a stage's last gradient sent to the end of its optimiser's step.

    A synchronisation begins when the uplink is free again, which is one `hop_s` before the
    gradient has arrived. Without one the optimiser does not even wait for that upload; the
    result may then be negative.
    """
    sent = 0.0 if times.up_b is None else times.hop_s
    if times.synchronises:
        return stage_sync_s(times, sync) + times.step_s - sent
    return times.step_s - sent - (times.up_b or 0.0)


def stage_sync_s(times: StageTimes, sync: str) -> float:
    if not times.synchronises:
        return 0.0
    return sync_s(
        sync,
        degree=times.degree,
        up_s=times.part_up_s,
        down_s=times.part_down_s,
        hop_s=times.hop_s,
    )


def _limit(times: StageTimes, num: int, synchronising: float) -> tuple[str, float]:
    """The busiest lane of a stage over `num` micro-batches, and for how long it is busy."""
    busy = {
        "compute": num * (times.compute_f + times.compute_b) + times.step_s,
        "upload": num * ((times.up_f or 0.0) + (times.up_b or 0.0)),
        "download": num * ((times.down_f or 0.0) + (times.down_b or 0.0)),
        "synchronise": synchronising,
    }
    name = max(busy, key=lambda lane: busy[lane])
    return name, busy[name]


def _stage_dict(stage: StageEstimate) -> dict[str, Any]:
    return {
        "memory_mb": stage.memory_mb,
        "degree": stage.degree,
        "memory_bytes": {**asdict(stage.memory), "total": stage.memory.total},
        "seconds": asdict(stage.times),
        "sync_s": stage.sync_s,
        "fees": asdict(stage.fees),
        "dollars": stage.dollars,
        "limit": stage.limit,
        "busy_s": stage.busy_s,
    }
