"""No plan deadlocks, and every step costs the requests that the formula says."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from funcpipe.errors import ScheduleError
from funcpipe.schedule.action import Action, Kind
from funcpipe.schedule.count import requests_per_evaluation, requests_per_step
from funcpipe.schedule.program import (
    Program,
    Shape,
    Task,
    evaluation_program,
    training_program,
)
from funcpipe.schedule.validate import check_order, dry_run, validate

DEGREES = [
    degrees
    for num_stages in range(1, 5)
    for degrees in itertools.product((1, 2, 3), repeat=num_stages)
]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("sync", ["pipelined", "three-phase"])
def test_every_small_plan_runs_to_its_end(schedule: str, sync: str) -> None:
    for degrees in DEGREES:
        shape = Shape(degrees=degrees, trains=(True,) * len(degrees), schedule=schedule, sync=sync)
        validate(shape, num_micro_batches=(1, 2, 3, 4, 8), evaluation=3)


plans = st.builds(
    lambda degrees, trains, schedule, in_flight, sync: Shape(
        degrees=tuple(degrees),
        trains=tuple(trains[: len(degrees)]),
        schedule=schedule,
        in_flight=in_flight,
        sync=sync,
    ),
    st.lists(st.integers(1, 5), min_size=1, max_size=8),
    st.lists(st.booleans(), min_size=8, max_size=8),
    st.sampled_from(["gpipe", "1f1b"]),
    st.one_of(st.none(), st.integers(1, 12)),
    st.sampled_from(["pipelined", "three-phase"]),
)


@settings(max_examples=150, deadline=None)
@given(plans, st.lists(st.integers(1, 8), min_size=1, max_size=3), st.integers(0, 5))
def test_any_plan_runs_to_its_end(shape: Shape, sizes: list[int], evaluation: int) -> None:
    validate(shape, num_micro_batches=sizes, evaluation=evaluation)


@settings(max_examples=150, deadline=None)
@given(plans, st.integers(1, 9))
def test_requests_equal_the_formula(shape: Shape, num_micro_batches: int) -> None:
    for make, formula in (
        (training_program, requests_per_step),
        (evaluation_program, requests_per_evaluation),
    ):
        ran = dry_run(
            {
                (s, r): [make(shape, stage=s, replica=r, num_micro_batches=num_micro_batches)]
                for s, r in shape.workers()
            }
        )
        counted = {
            "PUT": sum(n for kind, n in ran.items() if kind.value.startswith("SEND"))
            + ran[Kind.REPORT],
            "GET": sum(n for kind, n in ran.items() if kind.value.startswith("RECV")),
            "DELETE": ran[Kind.DEL],
            "LIST": 0,
        }
        assert counted == formula(shape, num_micro_batches=num_micro_batches)


def test_a_deadlock_is_found_and_says_who_waits() -> None:
    # given two workers that each send only after they have received from the other
    def worker(stage: int, wanted: Action, given_: Action) -> list[Program]:
        return [Program(stage, 0, (Task(wanted), Task(given_, (wanted,))))]

    first = worker(0, Action(0, Kind.RECV_B, 0), Action(0, Kind.SEND_F, 0))
    second = worker(1, Action(1, Kind.RECV_F, 0), Action(1, Kind.SEND_B, 0))
    with pytest.raises(ScheduleError, match=r"deadlock: stage 0 replica 0 running 0RECV_B0"):
        dry_run({(0, 0): first, (1, 0): second})


def test_a_message_nobody_reads_is_found() -> None:
    with pytest.raises(ScheduleError, match="never read"):
        dry_run({(0, 0): [Program(0, 0, (Task(Action(0, Kind.SEND_F, 0)),))]})


def test_a_message_sent_by_two_is_found() -> None:
    twice = {(0, r): [Program(0, r, (Task(Action(0, Kind.SEND_F, 0)),))] for r in (0, 1)}
    with pytest.raises(ScheduleError, match="sent twice"):
        dry_run(twice)


@pytest.mark.parametrize(
    ("tokens", "complaint"),
    [
        ([(Kind.B, 0), (Kind.F, 0), (Kind.STEP, None)], "before its forward"),
        ([(Kind.F, 0), (Kind.STEP, None)], "but backwards"),
        ([(Kind.F, 0), (Kind.STEP, None), (Kind.B, 0)], "not the last computation"),
    ],
)
def test_an_order_that_cannot_be_right_is_refused(
    tokens: list[tuple[Kind, int | None]], complaint: str
) -> None:
    program = Program(0, 0, tuple(Task(Action(0, kind, index)) for kind, index in tokens))
    with pytest.raises(ScheduleError, match=complaint):
        check_order(program, num_stages=1)


def test_transfers_are_counted_against_the_order() -> None:
    tasks = (Task(Action(0, Kind.F, 0)), Task(Action(0, Kind.B, 0)), Task(Action(0, Kind.STEP)))
    with pytest.raises(ScheduleError, match="SEND_F"):
        check_order(Program(0, 0, tasks), num_stages=2)
