"""Golden texts of programs, and the executor's rules."""

import pytest

from funcpipe.errors import ScheduleError
from funcpipe.schedule.action import Action, Kind, Lane
from funcpipe.schedule.execute import Executor, Start
from funcpipe.schedule.program import Program, Shape, Task, evaluation_program, training_program


def shape(*degrees: int, **changes: str) -> Shape:
    return Shape(degrees=degrees, trains=(True,) * len(degrees), **changes)  # type: ignore[arg-type]


def test_first_stage() -> None:
    program = training_program(shape(1, 1), stage=0, replica=0, num_micro_batches=2)
    assert program.text() == (
        "down: 0RECV_B1 0RECV_B0\n"
        "compute: 0F0 0F1 0B1 0B0 0STEP\n"
        "up: 0SEND_F0 0SEND_F1\n"
        "service: 0DEL"
    )


def test_last_of_two_replicas() -> None:
    program = training_program(shape(1, 2), stage=1, replica=1, num_micro_batches=3)
    assert program.text() == (
        "down: 1RECV_F1 1RECV_P0.0 1RECV_S0.0\n"
        "compute: 1F1 1B1 1ADD0.0 1STEP\n"
        "up: 1SEND_B1 1SEND_P0.0 1SEND_S1.0\n"
        "service: 1REPORT 1DEL"
    )


def test_pipelined_scatter_reduce_pairs_an_upload_and_a_download_in_each_round() -> None:
    program = training_program(shape(4), stage=0, replica=1, num_micro_batches=4)
    lines = dict(line.split(": ") for line in program.text().splitlines())
    assert lines["up"] == "0SEND_P2.0 0SEND_P3.0 0SEND_P0.0 0SEND_S1.0"
    assert lines["down"] == ("0RECV_P0.0 0RECV_P3.0 0RECV_P2.0 0RECV_S2.0 0RECV_S3.0 0RECV_S0.0")


def test_three_phase_receives_nothing_before_all_is_sent() -> None:
    program = training_program(
        shape(3, sync="three-phase"), stage=0, replica=0, num_micro_batches=3
    )
    after = {str(task.action): {str(a) for a in task.after} for task in program.tasks}
    assert after["0RECV_P2.0"] == after["0RECV_P1.0"] == {"0SEND_P1.0", "0SEND_P2.0"}
    assert "0SEND_S0.0" in after["0RECV_S1.0"]


def test_a_stage_that_does_not_train_does_not_synchronise() -> None:
    frozen = Shape(degrees=(2, 1), trains=(False, True))
    program = training_program(frozen, stage=0, replica=0, num_micro_batches=2)
    assert not any(task.action.kind in {Kind.SEND_P, Kind.RECV_P} for task in program.tasks)


def test_a_replica_without_work_still_contributes() -> None:
    program = training_program(shape(2), stage=0, replica=1, num_micro_batches=1)
    assert program.text().splitlines()[1] == "compute: 0ADD0.0 0STEP"


def test_a_receive_waits_until_fewer_than_two_messages_are_unused() -> None:
    program = training_program(shape(1, 1), stage=1, replica=0, num_micro_batches=4)
    after = {str(task.action): tuple(str(a) for a in task.after) for task in program.tasks}
    assert after["1RECV_F1"] == ()
    assert after["1RECV_F2"] == ("1F0",)
    assert after["1RECV_F3"] == ("1F1",)


def test_evaluation_is_forward_only() -> None:
    program = evaluation_program(shape(1, 2), stage=1, replica=0, num_micro_batches=3)
    assert program.text() == ("down: 1RECV_F0 1RECV_F2\ncompute: 1E0 1E2\nservice: 1REPORT 1DEL")


def test_unknown_methods_are_refused() -> None:
    with pytest.raises(ScheduleError, match="known: pipelined, three-phase"):
        training_program(shape(2, sync="gossip"), stage=0, replica=0, num_micro_batches=1)


F, G = Action(0, Kind.F, 0), Action(0, Kind.F, 1)
UP0, UP1 = Action(0, Kind.SEND_F, 0), Action(0, Kind.SEND_F, 1)


def test_compute_starts_strictly_in_order_and_one_at_a_time() -> None:
    executor = Executor([Program(0, 0, (Task(F), Task(G)))])
    assert executor.start() == [Start(0, F)]
    assert executor.start() == []
    executor.done(Start(0, F))
    assert executor.start() == [Start(0, G)]
    executor.done(Start(0, G))
    assert not executor.start()
    assert executor.finished
    assert executor.passes_done == 1


def test_the_upload_lane_takes_whatever_is_ready_the_compute_lane_does_not() -> None:
    executor = Executor(
        [Program(0, 0, (Task(UP0, (G,)), Task(UP1, (F,)), Task(F), Task(G, (UP1,))))]
    )
    assert executor.start() == [Start(0, F)]
    executor.done(Start(0, F))
    assert executor.start() == [Start(0, UP1)]
    executor.done(Start(0, UP1))
    assert executor.start() == [Start(0, G)]


def test_after_previous_looks_one_pass_back() -> None:
    first = Program(0, 0, (Task(F),))
    second = Program(0, 0, (Task(UP0, (), (F,)),))
    executor = Executor([first, second])
    assert executor.start() == [Start(0, F)]
    executor.done(Start(0, F))
    assert executor.start() == [Start(1, UP0)]


def test_capacity_lets_a_lane_run_several() -> None:
    program = Program(0, 0, (Task(UP0), Task(UP1)))
    executor = Executor([program], capacity={Lane.UP: 2})
    assert len(executor.start()) == 2


def test_an_action_that_was_not_started_cannot_be_done() -> None:
    executor = Executor([Program(0, 0, (Task(F),))])
    with pytest.raises(ScheduleError, match="not running"):
        executor.done(Start(0, F))


def test_empty_programs_are_passed_over() -> None:
    executor = Executor([Program(0, 0, ()), Program(0, 0, (Task(F),))])
    assert executor.start() == [Start(1, F)]
