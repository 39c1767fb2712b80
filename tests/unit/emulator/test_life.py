"""What a platform does with invocations, told to its state machine event by event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from funcpipe.emulator.life import (
    Delivered,
    EndEnvironment,
    Instruction,
    Life,
    Report,
    Run,
    StartEnvironment,
)
from funcpipe.errors import Throttled
from funcpipe.partitioner.platform import load_platform

COLD_S = 5.0


def life(*, seed: int = 0, **changes: str) -> Life:
    figures = {"time.cold_start_s": "5", "time.warm_start_s": "0.01", "time.keep_warm_s": "300"}
    figures |= {"time.limit_s": "900", "invocation.concurrency": "10"}
    named = {path.replace("__", "."): value for path, value in changes.items()}
    return Life(load_platform("aws-lambda", changes=figures | named), seed=seed)


def of(kind: type[Any], told: Sequence[Instruction]) -> list[Any]:
    return [one for one in told if isinstance(one, kind)]


def begun(machine: Life, id: str = "a", *, now: float = 0.0, memory_mb: int = 1769) -> str:
    """Invoke `id` cold, and let its environment be ready in time; the environment."""
    (start,) = of(StartEnvironment, machine.invoke(id, name=id, memory_mb=memory_mb, now=now))
    assert machine.ready(start.environment, now=now) == []
    told = machine.tick(now=now + COLD_S)
    assert of(Run, told) == [Run(start.environment, id, COLD_S)]
    return str(start.environment)


def test_a_cold_start_takes_the_platform_s_time_and_is_billed_apart() -> None:
    machine = life()

    environment = begun(machine)
    told = machine.finished(environment, now=7.0004)

    (delivered,) = of(Delivered, told)
    one = delivered.delivery
    assert (one.cold, one.init_ms(9.0), one.run_ms(9.0, 900.0)) == (True, 5000, 2001)
    assert of(Report, told) == [Report("a", environment, "done", 0)]


def test_a_process_that_is_slower_than_the_platform_is_not_billed_for_that() -> None:
    machine = life()
    (start,) = of(StartEnvironment, machine.invoke("a", name="a", memory_mb=1769, now=0.0))

    assert machine.tick(now=COLD_S) == []
    (run,) = machine.ready(start.environment, now=8.0)
    (delivered,) = of(Delivered, machine.finished(start.environment, now=9.0))

    assert run == Run(start.environment, "a", COLD_S)
    assert delivered.delivery.init_ms(9.0) == 5000
    assert delivered.delivery.run_ms(9.0, 900.0) == 1000
    assert delivered.delivery.late_s == 3.0


def test_an_idle_environment_of_the_same_size_serves_again_without_initialisation() -> None:
    machine = life()
    environment = begun(machine)
    machine.finished(environment, now=6.0)

    assert machine.invoke("b", name="b", memory_mb=1769, now=10.0) == []
    told = machine.tick(now=10.01)
    other = machine.invoke("c", name="c", memory_mb=1024, now=11.0)

    assert told == [Run(environment, "b", 0.0)]
    assert of(StartEnvironment, other)[0].environment != environment
    assert machine.deliveries[1].init_ms(20.0) == 0


def test_an_environment_that_nobody_needs_ends() -> None:
    machine = life()
    environment = begun(machine)
    machine.finished(environment, now=6.0)

    assert machine.next_due_s() == 306.0
    assert machine.tick(now=305.9) == []
    assert machine.tick(now=306.0) == [EndEnvironment(environment, "done")]
    assert machine.tick(now=307.0) == []
    assert machine.gone(environment, reason="killed", code=-9, now=307.0) == []


def test_one_too_many_is_throttled_and_takes_nothing() -> None:
    machine = life(invocation__concurrency="2")
    first = begun(machine, "a")
    machine.invoke("b", name="b", memory_mb=1769, now=0.0)

    with pytest.raises(Throttled, match=r"runs 2 functions at once .* c was answered with 429"):
        machine.invoke("c", name="c", memory_mb=1769, now=1.0)
    machine.finished(first, now=6.0)

    assert machine.busy() == 1
    assert machine.invoke("c", name="c", memory_mb=1769, now=7.0) == []  # warm, due in 10 ms
    assert len(machine.deliveries) == 3


def test_a_function_that_runs_too_long_is_ended_for_that_and_billed_to_the_limit() -> None:
    machine = life(time__limit_s="30")
    environment = begun(machine)

    assert machine.next_due_s() == 35.0
    assert machine.tick(now=34.99) == []
    assert machine.tick(now=35.0) == [EndEnvironment(environment, "time-limit")]
    told = machine.gone(environment, reason="killed", code=-9, now=35.2)

    assert of(Report, told) == [Report("a", environment, "time-limit", -9)]
    assert machine.deliveries[0].run_ms(99.0, 30.0) == 30_000


def test_the_first_reason_for_an_end_stays() -> None:
    machine = life()
    environment = begun(machine)

    assert machine.end(environment, "out-of-memory") == [
        EndEnvironment(environment, "out-of-memory")
    ]
    assert machine.stop(["a"]) == []
    assert machine.finished(environment, now=6.0) == []
    told = machine.gone(environment, reason="done", code=0, now=6.0)

    assert of(Report, told) == [Report("a", environment, "out-of-memory", 0)]


def test_a_duplicate_runs_beside_the_first_and_the_end_is_told_once() -> None:
    machine = life(invocation__duplicate_rate="1")
    first = begun(machine)

    second = machine.deliveries[1].environment
    machine.ready(second, now=6.5)
    assert machine.tick(now=12.0) == [Run(second, "a", COLD_S)]
    superseded = machine.finished(second, now=12.1)
    done = machine.finished(first, now=20.0)

    assert of(Report, superseded) == []
    assert of(Report, done) == [Report("a", first, "done", 0)]
    assert [one.number for one in machine.deliveries] == [0, 1]
    assert all(of(Delivered, told) for told in (superseded, done))


def test_which_invocations_come_twice_follows_from_the_seed() -> None:
    def twice(seed: int) -> list[str]:
        machine = life(seed=seed, invocation__duplicate_rate="0.5", invocation__concurrency="900")
        for number in range(40):
            machine.invoke(f"i{number}", name="n", memory_mb=1769, now=0.0)
        machine.tick(now=10.0)
        return [one.invocation for one in machine.deliveries[40:]]

    assert twice(1) == twice(1)
    assert twice(1) != twice(2)
    assert 8 < len(twice(1)) < 32


def test_a_failed_invocation_is_retried_as_often_as_the_platform_does_and_told_at_once() -> None:
    machine = life(invocation__retries="1", invocation__retry_delays_s="60")
    environment = begun(machine)

    told = machine.gone(environment, reason="crashed", code=-11, now=6.0)
    assert of(Report, told) == [Report("a", environment, "crashed", -11)]
    assert machine.next_due_s() == 66.0
    (start,) = of(StartEnvironment, machine.tick(now=66.0))
    machine.ready(start.environment, now=67.0)
    machine.tick(now=71.0)
    again = machine.gone(start.environment, reason="crashed", code=-11, now=72.0)

    assert of(Report, again) == []
    assert len(of(Delivered, again)) == 1
    assert machine.next_due_s() == float("inf")


def test_what_is_stopped_is_not_delivered_again() -> None:
    machine = life(invocation__duplicate_rate="1")
    (start,) = of(StartEnvironment, machine.invoke("a", name="a", memory_mb=1769, now=0.0))

    assert machine.stop(["a", "unknown"]) == [EndEnvironment(start.environment, "stopped")]
    told = machine.gone(start.environment, reason="crashed", code=-15, now=0.1)

    assert of(Report, told) == [Report("a", start.environment, "stopped", -15)]
    assert machine.tick(now=100.0) == []
    assert len(machine.deliveries) == 1


def test_a_duplicate_waits_while_the_platform_is_full() -> None:
    machine = life(invocation__duplicate_rate="1", invocation__concurrency="1")
    first = begun(machine)

    assert of(StartEnvironment, machine.tick(now=6.0)) == []
    machine.finished(first, now=6.2)
    told = machine.tick(now=8.0) + machine.tick(now=8.1)

    assert of(Run, told) == [Run(first, "a", 0.0)]
    assert not machine.deliveries[1].cold
