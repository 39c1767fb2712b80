"""Programs: what one worker does in one pass, as tasks on lanes with explicit dependencies.

A program is made by pure passes over a compute-only order: transfers first, then the
collective, then the optimiser step and the housekeeping. Tasks of a lane are listed in the
order in which the lane takes them; `after` names tasks of the same pass that must be done,
`after_previous` tasks of the pass before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from funcpipe.schedule.action import Action, Kind, Lane
from funcpipe.schedule.order import compute_order, evaluation_order
from funcpipe.sync.plan import scatter_reduce

__all__ = ["Program", "Shape", "Task", "evaluation_program", "training_program"]

PREFETCH = 2
"""How many received messages may wait for the compute lane: bounds a worker's memory."""


@dataclass(frozen=True, slots=True)
class Task:
    action: Action
    after: tuple[Action, ...] = ()
    after_previous: tuple[Action, ...] = ()


@dataclass(frozen=True)
class Program:
    stage: int
    replica: int
    tasks: tuple[Task, ...]
    lanes: dict[Lane, tuple[Task, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        lanes = {lane: tuple(t for t in self.tasks if t.action.lane is lane) for lane in Lane}
        object.__setattr__(self, "lanes", lanes)

    def text(self) -> str:
        """One line a lane, as in ``compute: 0F0 0F1 0B1 0B0 0STEP``."""
        rows = (
            f"{lane.value}: {' '.join(str(task.action) for task in tasks)}"
            for lane, tasks in self.lanes.items()
            if tasks
        )
        return "\n".join(rows)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The part of a plan that programs depend on.

    degrees: replicas of each stage. trains: whether a stage has anything to synchronise.
    """

    degrees: tuple[int, ...]
    trains: tuple[bool, ...]
    schedule: str = "gpipe"
    in_flight: int | None = None
    sync: str = "pipelined"

    @property
    def num_stages(self) -> int:
        return len(self.degrees)

    def workers(self) -> list[tuple[int, int]]:
        return [(s, r) for s, degree in enumerate(self.degrees) for r in range(degree)]

    def synchronises(self, stage: int) -> bool:
        return self.trains[stage] and self.degrees[stage] > 1


@lru_cache(maxsize=4096)
def training_program(
    shape: Shape, *, stage: int, replica: int, num_micro_batches: int, report: bool = True
) -> Program:
    """What a worker does in one training step."""
    order = compute_order(
        shape.schedule,
        stage=stage,
        num_stages=shape.num_stages,
        num_micro_batches=num_micro_batches,
        replica=replica,
        degree=shape.degrees[stage],
        in_flight=shape.in_flight,
    )
    tasks = add_transfers(order, num_stages=shape.num_stages)
    before_step: tuple[Action, ...] = ()
    if shape.synchronises(stage):
        gradient_final = tuple(order[-1:])
        collective = [
            Task(
                action,
                after or gradient_final,
                () if after or gradient_final else (Action(stage, Kind.STEP),),
            )
            for action, after in scatter_reduce(
                shape.sync, stage=stage, replica=replica, degree=shape.degrees[stage]
            )
        ]
        tasks += collective
        before_step = tuple(
            task.action
            for task in collective
            if task.action.kind in (Kind.SEND_P, Kind.SEND_S, Kind.RECV_S)
        )
    step = Action(stage, Kind.STEP)
    delete = Action(stage, Kind.DEL)
    # A step waits for the deletions of the one before, so that live objects stay bounded.
    tasks.append(Task(step, before_step, (delete,)))
    if report and stage == shape.num_stages - 1:
        tasks.append(Task(Action(stage, Kind.REPORT), (step,)))
    if _has_garbage(tasks):
        tasks.append(Task(delete, (step,)))
    return Program(stage, replica, tuple(tasks))


@lru_cache(maxsize=4096)
def evaluation_program(
    shape: Shape, *, stage: int, replica: int, num_micro_batches: int
) -> Program:
    """What a worker does in one evaluation: forwards only; the last stage reports."""
    order = evaluation_order(
        stage=stage,
        num_micro_batches=num_micro_batches,
        replica=replica,
        degree=shape.degrees[stage],
    )
    tasks = add_transfers(order, num_stages=shape.num_stages)
    last = tuple(order[-1:])
    if stage == shape.num_stages - 1:
        tasks.append(Task(Action(stage, Kind.REPORT), last, (Action(stage, Kind.STEP),)))
    if _has_garbage(tasks):
        tasks.append(Task(Action(stage, Kind.DEL), last))
    return Program(stage, replica, tuple(tasks))


def add_transfers(order: Sequence[Action], *, num_stages: int) -> list[Task]:
    """Add what a compute order must receive before and send after each of its actions."""
    tasks: list[Task] = []
    consumers: list[Action] = []
    for action in order:
        receive = _received(action, num_stages)
        if receive is not None:
            room = consumers[-PREFETCH : -PREFETCH + 1] if len(consumers) >= PREFETCH else []
            tasks.append(Task(receive, tuple(room)))
            consumers.append(action)
        tasks.append(Task(action, () if receive is None else (receive,)))
        send = _sent(action, num_stages)
        if send is not None:
            tasks.append(Task(send, (action,)))
    return tasks


def _received(action: Action, num_stages: int) -> Action | None:
    if action.kind is Kind.B:
        downstream = action.stage < num_stages - 1
        return Action(action.stage, Kind.RECV_B, action.index) if downstream else None
    return Action(action.stage, Kind.RECV_F, action.index) if action.stage > 0 else None


def _sent(action: Action, num_stages: int) -> Action | None:
    if action.kind is Kind.B:
        return Action(action.stage, Kind.SEND_B, action.index) if action.stage > 0 else None
    downstream = action.stage < num_stages - 1
    return Action(action.stage, Kind.SEND_F, action.index) if downstream else None


def _has_garbage(tasks: Iterable[Task]) -> bool:
    """Messages with one reader are deleted by it, sums by their owner in its next step."""
    single_reader = (Kind.RECV_F, Kind.RECV_B, Kind.RECV_P)
    return any(task.action.kind in single_reader for task in tasks)
