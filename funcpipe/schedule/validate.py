"""Proof, before anything is launched, that a plan's programs are in order and cannot deadlock.

Lanes that can block take their tasks in a fixed order and nothing else decides (a Kahn process
network), so whether a run gets stuck does not depend on timing: one dry run of a few passes
settles it for every timing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from funcpipe.errors import ScheduleError
from funcpipe.schedule.action import Action, Kind, Lane
from funcpipe.schedule.execute import Executor, Start
from funcpipe.schedule.message import Message, received, sent
from funcpipe.schedule.program import Program, Shape, evaluation_program, training_program

__all__ = ["check_order", "dry_run", "validate"]

Worker = tuple[int, int]


def validate(
    shape: Shape,
    *,
    num_micro_batches: Sequence[int],
    evaluation: int = 0,
    capacity: Mapping[Lane, int] | None = None,
) -> None:
    """Check two training steps of each size, one after another, and an evaluation in between.

    num_micro_batches: the different numbers that steps have; evaluation: those of an evaluation,
    0 for none. Raises `ScheduleError` naming what is wrong or who waits for what.
    """
    programs: dict[Worker, list[Program]] = {}
    for stage, replica in shape.workers():
        stream = []
        for size in num_micro_batches:
            step = training_program(shape, stage=stage, replica=replica, num_micro_batches=size)
            check_order(step, num_stages=shape.num_stages)
            stream += [step, step]
            if evaluation:
                stream.append(
                    evaluation_program(
                        shape, stage=stage, replica=replica, num_micro_batches=evaluation
                    )
                )
        programs[stage, replica] = stream
    dry_run(programs, capacity=capacity)


def check_order(program: Program, *, num_stages: int) -> None:
    """One training program by itself: F before B, each once, and the step last of compute."""
    compute = [task.action for task in program.lanes[Lane.COMPUTE]]
    place = {action: position for position, action in enumerate(compute)}
    forwards = {action.index for action in compute if action.kind is Kind.F}
    backwards = {action.index for action in compute if action.kind is Kind.B}
    if forwards != backwards:
        raise ScheduleError(f"forwards of {forwards} but backwards of {backwards}")
    for k in forwards:
        if place[Action(program.stage, Kind.F, k)] > place[Action(program.stage, Kind.B, k)]:
            raise ScheduleError(f"the backward of micro-batch {k} comes before its forward")
    if compute[-1:] != [Action(program.stage, Kind.STEP)]:
        raise ScheduleError("the optimiser step is not the last computation of the pass")
    kinds = Counter(task.action.kind for task in program.tasks)
    inner_in = len(forwards) if program.stage > 0 else 0
    inner_out = len(forwards) if program.stage < num_stages - 1 else 0
    expected = {Kind.RECV_F: inner_in, Kind.SEND_B: inner_in}
    expected |= {Kind.SEND_F: inner_out, Kind.RECV_B: inner_out}
    for kind, number in expected.items():
        if kinds[kind] != number:
            raise ScheduleError(f"{kinds[kind]} x {kind.value}; {number} expected")


def dry_run(
    programs: Mapping[Worker, Sequence[Program]], *, capacity: Mapping[Lane, int] | None = None
) -> Counter[Kind]:
    """Run all workers' programs without computing; how often each kind of action occurred.

    Raises `ScheduleError` on deadlock, on a message that is sent twice or never read.
    """
    executors = {w: Executor(stream, capacity=capacity) for w, stream in programs.items()}
    mail: dict[tuple[int, Message], int] = {}
    pending: dict[Worker, list[Start]] = {worker: [] for worker in executors}
    ran: Counter[Kind] = Counter()
    awake = set(executors)
    while awake:
        worker = awake.pop()
        executor = executors[worker]
        queue = pending[worker] + executor.start()
        pending[worker] = []
        for start in queue:
            if not _execute(start, worker[1], mail):
                pending[worker].append(start)
                continue
            executor.done(start)
            ran[start.action.kind] += 1
            awake.add(worker)
            if sent(start.action, worker[1]) is not None:
                awake.update(other for other in executors if pending[other])
    if not all(executor.finished for executor in executors.values()):
        raise ScheduleError("deadlock: " + _who_waits(executors))
    unread = [message for (_, message), reads in mail.items() if reads == 0]
    if unread:
        raise ScheduleError(f"sent but never read: {unread[:5]}")
    return ran


def _execute(start: Start, replica: int, mail: dict[tuple[int, Message], int]) -> bool:
    wanted = received(start.action, replica)
    if wanted is not None:
        key = (start.pass_index, wanted)
        if key not in mail:
            return False
        mail[key] += 1
    given = sent(start.action, replica)
    if given is not None:
        key = (start.pass_index, given)
        if key in mail:
            raise ScheduleError(f"{given} is sent twice in one pass")
        mail[key] = 0
    return True


def _who_waits(executors: Mapping[Worker, Executor]) -> str:
    return "; ".join(
        f"stage {stage} replica {replica} {executor.waiting_for()}"
        for (stage, replica), executor in executors.items()
        if not executor.finished
    )
