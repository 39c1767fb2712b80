"""What the driver makes of what it sees, without functions or a store."""

from typing import Any

import pytest

from funcpipe.driver.lost import Exited
from funcpipe.driver.machine import (
    Announce,
    DriverMachine,
    FaultSeen,
    Finish,
    Interrupted,
    ReadFault,
    ReadResult,
    ReportSeen,
    ResultSeen,
    StopAll,
    combine,
)
from funcpipe.errors import FunctionLost, LossError, Stopped, describe


def train(step: int, losses: dict[int, float]) -> dict[str, Any]:
    return {"trains": True, "step": step, "losses": [[k, v] for k, v in losses.items()]}


def test_a_step_is_announced_once_all_replicas_of_the_last_stage_have_reported() -> None:
    machine = DriverMachine((1, 2), num_steps=5)
    assert machine.reporters == [(1, 0), (1, 1)]
    assert machine.handle(ReportSeen((1, 0), [train(0, {0: 0.1, 2: 0.3})])) == []
    told = machine.handle(ReportSeen((1, 1), [train(0, {1: 0.2})]))
    assert told == [Announce("step", {"step": 1, "total": 5, "loss": 0.6})]
    assert machine.losses == [0.6]


def test_losses_are_added_exactly_whatever_order_replicas_report_in() -> None:
    values = {0: 1e16, 1: 1.0, 2: -1e16}
    for first, second in (((0, 2), (1,)), ((1,), (0, 2))):
        machine = DriverMachine((2,), num_steps=1)
        machine.handle(ReportSeen((0, 0), [train(0, {k: values[k] for k in first})]))
        machine.handle(ReportSeen((0, 1), [train(0, {k: values[k] for k in second})]))
        assert machine.losses == [1.0]


def test_one_replica_may_be_steps_ahead_of_another() -> None:
    machine = DriverMachine((2,), num_steps=2)
    machine.handle(ReportSeen((0, 0), [train(0, {0: 1.0})]))
    machine.handle(ReportSeen((0, 0), [train(1, {0: 3.0})]))
    machine.handle(ReportSeen((0, 1), [train(0, {1: 1.0}), train(1, {1: 4.0})]))
    assert machine.losses == [2.0, 7.0]


def row(loss: float, weight: float, hits: float, count: int) -> dict[str, Any]:
    return {"loss": loss, "weight": weight, "count": count, "metrics": {"accuracy": hits}}


def test_metrics_are_means_over_samples_not_over_micro_batches() -> None:
    rows = [row(8.0, 8.0, 8.0, 8), row(4.0, 2.0, 0.0, 2)]
    assert combine(rows, mean=True) == {"loss": 1.2, "accuracy": 0.8}
    assert combine(rows, mean=False)["loss"] == 12.0


def test_the_run_is_done_when_every_function_has_left_its_result() -> None:
    machine = DriverMachine((1, 1), num_steps=1)
    result = {"peak_bytes": 7}
    assert machine.handle(Exited((0, 0), "done", 0)) == [ReadResult((0, 0))]
    assert Finish() not in machine.handle(ResultSeen((0, 0), result))
    assert Finish() in machine.handle(ResultSeen((1, 0), result))
    assert machine.finished
    assert machine.error is None


def test_a_failed_function_s_own_words_are_what_ends_the_run() -> None:
    machine = DriverMachine((1, 1), num_steps=1)
    exited = Exited((1, 0), "failed", 1)
    assert machine.handle(exited) == [ReadFault(exited)]
    fault = describe(LossError("loss is nan", stage=1, replica=0, step=3))
    stop, finish = machine.handle(FaultSeen(fault, exited))
    assert stop == StopAll("loss is nan")
    assert isinstance(finish, Finish)
    assert isinstance(machine.error, LossError)
    assert (machine.error.stage, machine.error.step) == (1, 3)


def test_a_function_that_vanishes_is_named_with_its_last_words() -> None:
    machine = DriverMachine((1, 1), num_steps=1)
    machine.handle(FaultSeen(None, Exited((1, 0), "killed", -9, "Killed by the kernel")))
    assert isinstance(machine.error, FunctionLost)
    assert "killed by SIGKILL, perhaps because the machine ran out of memory" in str(machine.error)
    assert "Killed by the kernel" in str(machine.error)


def test_a_duplicate_that_left_without_a_result_is_noticed() -> None:
    machine = DriverMachine((1,), num_steps=1)
    machine.handle(ResultSeen((0, 0), None))
    assert isinstance(machine.error, FunctionLost)


def test_a_look_that_finds_no_fault_changes_nothing() -> None:
    machine = DriverMachine((1,), num_steps=1)
    assert machine.handle(FaultSeen(None)) == []
    assert not machine.finished


def test_an_interrupt_stops_all() -> None:
    machine = DriverMachine((1,), num_steps=1)
    assert machine.handle(Interrupted("Ctrl-C"))[0] == StopAll("Ctrl-C")
    assert isinstance(machine.error, Stopped)


@pytest.mark.parametrize("late", [Interrupted("x"), Exited((0, 0), "killed", -9)])
def test_nothing_counts_after_the_end(late: Any) -> None:
    machine = DriverMachine((1,), num_steps=1)
    machine.handle(Interrupted("Ctrl-C"))
    assert machine.handle(late) == []
