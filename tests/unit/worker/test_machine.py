"""The life of a worker, without threads, clocks or stores."""

import pytest

from funcpipe.errors import FuncpipeError, StoreFull, Superseded
from funcpipe.schedule.execute import Start
from funcpipe.schedule.program import Shape, training_program
from funcpipe.worker.machine import (
    Build,
    Built,
    End,
    Event,
    Export,
    Exported,
    Failed,
    LeaseTaken,
    Run,
    Started,
    State,
    TakeLease,
    TaskDone,
    WorkerMachine,
)

SHAPE = Shape(degrees=(1, 1), trains=(True, True))
PROGRAM = training_program(SHAPE, stage=0, replica=0, num_micro_batches=1)


def running() -> tuple[WorkerMachine, list[Start]]:
    machine = WorkerMachine()
    assert machine.handle(Started()) == [TakeLease()]
    assert machine.handle(LeaseTaken()) == [Build()]
    first = machine.handle(Built([PROGRAM]))
    return machine, [i.start for i in first if isinstance(i, Run)]


def test_a_life_from_lease_to_end() -> None:
    # given a worker that is running
    machine, queue = running()
    ran = []
    # when every task that it asks for is done
    while queue:
        start = queue.pop(0)
        ran.append(str(start.action))
        instructions = machine.handle(TaskDone(start))
        queue += [i.start for i in instructions if isinstance(i, Run)]
    # then it has run its program, exports, and ends
    assert sorted(ran) == sorted(["0F0", "0SEND_F0", "0RECV_B0", "0B0", "0STEP", "0DEL"])
    assert instructions == [Export()]
    assert machine.passes_done == 1
    assert machine.handle(Exported()) == [End()]
    assert machine.state is State.ENDED


@pytest.mark.parametrize("moment", range(4))
def test_a_failure_at_any_moment_ends_it_and_is_told(moment: int) -> None:
    machine = WorkerMachine()
    events: list[Event] = [Started(), LeaseTaken(), Built([PROGRAM])]
    for event in events[:moment]:
        machine.handle(event)
    error = StoreFull("no space")
    assert machine.handle(Failed(error)) == [End(error, tell=True)]


def test_a_duplicate_leaves_quietly() -> None:
    machine = WorkerMachine()
    machine.handle(Started())
    error = Superseded("someone else has it")
    assert machine.handle(Failed(error)) == [End(error, tell=False)]


def test_what_lanes_say_after_the_end_is_ignored() -> None:
    machine, queue = running()
    machine.handle(Failed(StoreFull("no space")))
    assert machine.handle(TaskDone(queue[0])) == []
    assert machine.handle(Failed(StoreFull("again"))) == []


def test_an_event_out_of_turn_says_what_came_before() -> None:
    machine = WorkerMachine()
    machine.handle(Started())
    with pytest.raises(FuncpipeError, match="is leasing cannot take Exported; before it: Started"):
        machine.handle(Exported())
