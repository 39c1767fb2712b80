"""The lanes' threads: what fails in any of them ends the worker, and says so."""

import threading

import pytest

from funcpipe.errors import FuncpipeError, OutOfMemory, Stopped, StoreFull
from funcpipe.schedule.action import Lane
from funcpipe.schedule.program import Shape, training_program
from funcpipe.worker import runner
from funcpipe.worker.machine import (
    Build,
    Built,
    Event,
    Export,
    Exported,
    Instruction,
    LeaseTaken,
    Run,
    TakeLease,
    TaskDone,
    WorkerMachine,
)
from funcpipe.worker.runner import Runner, join_lanes

PROGRAMS = [
    training_program(
        Shape(degrees=(1, 1), trains=(True, True)), stage=0, replica=0, num_micro_batches=3
    )
] * 2


class Script:
    """Does nothing, but notes on which thread, and fails where it is told to."""

    def __init__(self, fail_at: str = "", error: BaseException | None = None) -> None:
        self.fail_at = fail_at
        self.error = error
        self.seen: list[tuple[str, str]] = []

    def __call__(self, instruction: Instruction) -> Event:
        name = str(instruction.start.action) if isinstance(instruction, Run) else repr(instruction)
        self.seen.append((threading.current_thread().name, name))
        if name == self.fail_at and self.error is not None:
            raise self.error
        match instruction:
            case TakeLease():
                return LeaseTaken()
            case Build():
                return Built(PROGRAMS)
            case Run(start):
                return TaskDone(start)
            case Export():
                return Exported()
            case _:
                raise AssertionError(instruction)


def test_every_lane_runs_on_its_own_thread_and_compute_in_order() -> None:
    script = Script()
    end = Runner(WorkerMachine(), script).run()
    assert end.error is None
    assert {thread for thread, _ in script.seen} == {lane.value for lane in Lane}
    computed = [name for thread, name in script.seen if thread == "compute"]
    assert computed == ["Build()", *["0F0", "0F1", "0F2", "0B2", "0B1", "0B0", "0STEP"] * 2]


@pytest.mark.parametrize(
    "where", ["TakeLease()", "Build()", "0F1", "0RECV_B2", "0SEND_F0", "0DEL", "0STEP", "Export()"]
)
def test_a_failure_in_any_lane_ends_the_worker(where: str) -> None:
    error = StoreFull("no space")
    end = Runner(WorkerMachine(), Script(where, error)).run()
    assert end.error is error
    assert end.tell


def test_a_failure_does_not_wait_for_a_lane_that_is_stuck() -> None:
    # given an upload that fails while the compute lane hangs
    hanging, release = threading.Event(), threading.Event()

    class Stuck(Script):
        def __call__(self, instruction: Instruction) -> Event:
            if isinstance(instruction, Run) and str(instruction.start.action) == "0F1":
                hanging.set()
                release.wait()
            if isinstance(instruction, Run) and str(instruction.start.action) == "0SEND_F0":
                hanging.wait()
                raise StoreFull("no space")
            return super().__call__(instruction)

    # then the end comes all the same
    end = Runner(WorkerMachine(), Stuck()).run()
    release.set()
    assert isinstance(end.error, StoreFull)


def test_the_lanes_of_a_worker_that_was_stopped_end_and_can_be_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given a stop while the compute lane is busy for longer than a runner waits
    monkeypatch.setattr(runner, "LINGER_S", 0.01)
    computing, release = threading.Event(), threading.Event()
    finished: list[str] = []

    class Busy(Script):
        def __call__(self, instruction: Instruction) -> Event:
            if isinstance(instruction, Run) and str(instruction.start.action) == "0F1":
                computing.set()
                release.wait()
                finished.append("0F1")
            if isinstance(instruction, Run) and str(instruction.start.action) == "0SEND_F0":
                computing.wait()
                raise Stopped("enough")
            return super().__call__(instruction)

    end = Runner(WorkerMachine(), Busy()).run()
    assert isinstance(end.error, Stopped)
    assert finished == []
    # when the lane is let go, then all lanes come to their end
    release.set()
    join_lanes()
    assert finished == ["0F1"]
    assert {lane.value for lane in Lane}.isdisjoint(one.name for one in threading.enumerate())


def test_memory_and_unexpected_errors_are_named() -> None:
    end = Runner(WorkerMachine(), Script("0F0", MemoryError("4 GB"))).run()
    assert isinstance(end.error, OutOfMemory)
    end = Runner(WorkerMachine(), Script("0F0", KeyError("x"))).run()
    assert isinstance(end.error, FuncpipeError)
    assert "unexpected KeyError: 'x'" in str(end.error)


def test_it_can_be_stopped_from_outside() -> None:
    runner_box: list[Runner] = []

    class Stopping(Script):
        def __call__(self, instruction: Instruction) -> Event:
            if isinstance(instruction, Build):
                runner_box[0].stop(FuncpipeError("stop it"))
            return super().__call__(instruction)

    runner_box.append(Runner(WorkerMachine(), Stopping()))
    assert str(runner_box[0].run().error) == "stop it"
