"""Whose the time of a step was, on timelines made by hand."""

from __future__ import annotations

import pytest

from funcpipe.report.critical import (
    Ran,
    Shares,
    StepPath,
    late_arrivals,
    step_paths,
    total,
)
from funcpipe.schedule.action import Kind, parse
from funcpipe.schedule.program import Program, Shape, evaluation_program, training_program

SHAPE = Shape(degrees=(1, 1), trains=(True, True))


def ran(token: str, start_s: float, end_s: float, *, in_pass: int = 1, **known: float) -> Ran:
    times = {f"{name}_s": value for name, value in known.items()}
    return Ran(
        pass_index=in_pass, action=parse(token), start_s=start_s, end_s=end_s, misses=0, **times
    )


def program(num_micro_batches: int = 1, stage: int = 1, shape: Shape = SHAPE) -> Program:
    return training_program(
        shape, stage=stage, replica=0, num_micro_batches=num_micro_batches, report=False
    )


def tokens(path: StepPath) -> list[str]:
    return [str(link.ran.action) for link in path.links]


def only(rows: list[Ran], programs: dict[int, Program]) -> StepPath:
    (path,) = step_paths(rows, programs)
    return path


BEFORE = ran("1STEP", 9.0, 10.0, in_pass=0, user=1.0)


def test_every_moment_of_a_step_is_somebodys() -> None:
    # given a step of the last stage: one micro-batch, each action right after what it needs
    rows = [
        BEFORE,
        ran("1RECV_F0", 9.5, 12.0, wait=2.0, transfer=0.25),
        ran("1F0", 12.125, 13.0, user=0.75),
        ran("1B0", 13.0, 14.0, user=1.0),
        ran("1STEP", 14.25, 15.0, user=0.75),
        ran("1SEND_B0", 14.0, 14.5, transfer=0.5),
    ]
    path = only(rows, {0: program(), 1: program()})
    # then the path runs through what each waited for; the upload that nobody waited for is off it
    assert tokens(path) == ["1RECV_F0", "1F0", "1B0", "1STEP"]
    assert (path.pass_index, path.begin_s, path.end_s) == (1, 10.0, 15.0)
    assert path.shares.total_s == pytest.approx(5.0)
    # and the receive, which began before the step did, counts from its begin, waiting cut first
    assert path.by_kind()[Kind.RECV_F] == Shares(0.0, 0.25, 1.5, 0.25, 0.0)
    assert path.by_kind()[Kind.F] == Shares(0.75, 0.0, 0.0, 0.125, 0.125)
    assert path.by_kind()[Kind.STEP] == Shares(0.75, 0.0, 0.0, 0.0, 0.25)
    assert path.shares == Shares(2.5, 0.25, 1.5, 0.375, 0.375)
    assert path.shares.overhead_share == pytest.approx(0.75 / 5)


def test_the_binding_dependency_is_the_one_that_ended_last() -> None:
    # given two micro-batches whose second message came while the first was computed
    two = program(2)
    rows = [
        BEFORE,
        ran("1RECV_F0", 10.0, 11.0, wait=1.0),
        ran("1RECV_F1", 11.0, 12.0, wait=1.0),
        ran("1F0", 11.0, 14.0, user=3.0),
        ran("1F1", 14.0, 15.0, user=1.0),
        ran("1B1", 15.0, 16.0, user=1.0),
        ran("1B0", 16.0, 17.0, user=1.0),
        ran("1STEP", 17.0, 18.0, user=1.0),
    ]
    assert tokens(only(rows, {1: two})) == ["1RECV_F0", "1F0", "1F1", "1B1", "1B0", "1STEP"]
    # and when it came later than that, the path goes through its receive
    late = [one for one in rows if str(one.action) not in ("1RECV_F1", "1F0")]
    late += [ran("1F0", 11.0, 12.0, user=1.0), ran("1RECV_F1", 11.0, 14.0, wait=3.0)]
    assert tokens(only(late, {1: two}))[:3] == ["1RECV_F0", "1RECV_F1", "1F1"]


def test_a_step_ends_with_its_last_upload() -> None:
    rows = [
        BEFORE,
        ran("1RECV_F0", 10.0, 11.0, wait=1.0),
        ran("1F0", 11.0, 12.0, user=1.0),
        ran("1B0", 12.0, 13.0, user=1.0),
        ran("1STEP", 13.0, 14.0, user=1.0),
        ran("1SEND_B0", 13.5, 16.0, transfer=2.0),
    ]
    path = only(rows, {1: program()})
    assert tokens(path) == ["1RECV_F0", "1F0", "1B0", "1SEND_B0"]
    assert path.by_kind()[Kind.SEND_B] == Shares(0.0, 2.0, 0.0, 0.5, 0.5)


def test_what_the_step_before_left_to_be_done_binds() -> None:
    # given an optimiser step that had to wait for the deletions of the step before
    rows = [
        BEFORE,
        ran("1DEL", 10.0, 18.0, in_pass=0, transfer=8.0),
        ran("1RECV_F0", 10.0, 11.0, wait=1.0),
        ran("1F0", 11.0, 12.0, user=1.0),
        ran("1B0", 12.0, 13.0, user=1.0),
        ran("1STEP", 18.0, 19.0, user=1.0),
    ]
    path = only(rows, {0: program(), 1: program()})
    assert tokens(path) == ["1DEL", "1STEP"]
    assert path.shares == Shares(1.0, 8.0, 0.0, 0.0, 0.0)


def test_a_lane_does_one_thing_at_a_time() -> None:
    # given an upload that was ready at 12 and had to wait for the one before it
    shape = Shape(degrees=(1, 1, 1), trains=(True, True, True))
    middle = program(1, shape=shape)
    rows = [
        BEFORE,
        ran("1RECV_F0", 10.0, 11.0, wait=1.0),
        ran("1F0", 11.0, 12.0, user=1.0),
        ran("1SEND_F0", 12.0, 20.0, transfer=8.0),
        ran("1RECV_B0", 12.0, 13.0, wait=1.0),
        ran("1B0", 13.0, 14.0, user=1.0),
        ran("1SEND_B0", 20.0, 21.0, transfer=1.0),
        ran("1STEP", 14.0, 15.0, user=1.0),
    ]
    path = only(rows, {1: middle})
    assert tokens(path) == ["1RECV_F0", "1F0", "1SEND_F0", "1SEND_B0"]
    assert path.shares.overhead_s == 0.0


def test_a_pass_opens_when_the_one_before_last_is_done() -> None:
    rows = [
        ran("1DEL", 8.0, 13.0, in_pass=0, transfer=5.0),
        ran("1STEP", 9.0, 10.0, in_pass=1, user=1.0),
        ran("1RECV_F0", 13.5, 14.0, in_pass=2, transfer=0.5),
        ran("1F0", 14.0, 15.0, in_pass=2, user=1.0),
        ran("1B0", 15.0, 16.0, in_pass=2, user=1.0),
        ran("1STEP", 16.0, 17.0, in_pass=2, user=1.0),
    ]
    path = only(rows, {2: program()})
    assert tokens(path)[:2] == ["1DEL", "1RECV_F0"]
    assert path.shares == Shares(3.0, 3.5, 0.0, 0.0, 0.5)


def test_where_nothing_is_known_the_time_is_our_own() -> None:
    # given a step of whose first half no record was kept
    rows = [BEFORE, ran("1B0", 13.0, 14.0, user=1.0), ran("1STEP", 14.0, 15.0, user=1.0)]
    path = only(rows, {1: program()})
    # then the compute lane's step before binds, and the hole is a gap
    assert tokens(path) == ["1B0", "1STEP"]
    assert path.shares == Shares(2.0, 0.0, 0.0, 0.0, 3.0)


def test_only_steps_after_a_known_pass_are_told() -> None:
    evaluation = evaluation_program(SHAPE, stage=1, replica=0, num_micro_batches=1)
    rows = [
        ran("1STEP", 0.0, 1.0, in_pass=0),
        ran("1STEP", 1.0, 2.0, in_pass=1),
        ran("1E0", 2.0, 3.0, in_pass=2),
        ran("1STEP", 5.0, 6.0, in_pass=4),
    ]
    programs = {0: program(), 1: program(), 2: evaluation, 4: program()}
    assert [path.pass_index for path in step_paths(rows, programs)] == [1]


def test_shares_add_up() -> None:
    assert total([]) == Shares()
    assert total([]).overhead_share == 0.0
    whole = total([Shares(1.0, 2.0, 3.0, 4.0, 5.0), Shares(own_s=1.0)])
    assert whole == Shares(1.0, 2.0, 3.0, 5.0, 5.0)
    assert (whole.total_s, whole.overhead_s) == (16.0, 10.0)


@pytest.mark.parametrize(
    ("begin_s", "expected"),
    [
        (0.0, (10.0, 14.0, 2.0, 1.0)),
        (11.0, (11.0, 14.0, 1.0, 1.0)),
        (12.0, (12.0, 14.0, 0.0, 1.0)),
        (13.0, (13.0, 14.0, 0.0, 0.5)),
    ],
)
def test_cutting_the_begin_of_an_action(
    begin_s: float, expected: tuple[float, float, float, float]
) -> None:
    cut = ran("1RECV_F0", 10.0, 14.0, wait=2.0, transfer=1.0).since(begin_s)
    assert (cut.start_s, cut.end_s, cut.wait_s, cut.transfer_s) == expected


def test_what_came_while_nobody_looked_is_late() -> None:
    # given an activation put at 103 on the common clock, and found by waiting until 103.5
    sender = (100.0, [ran("0SEND_F0", 2.0, 3.0, transfer=1.0)])
    receiver = (101.0, [ran("1RECV_F0", 0.5, 2.75, wait=2.0, transfer=0.25)])
    late = late_arrivals({(0, 0): sender, (1, 0): receiver})
    assert late == {(0, 0): {}, (1, 0): {(1, parse("1RECV_F0")): 0.5}}


def test_late_is_at_most_all_of_the_waiting_and_needs_a_known_sender() -> None:
    # given one that was there long before it was waited for, and one of an unknown sender
    sender = (100.0, [ran("0SEND_F0", 2.0, 3.0)])
    rows = [ran("1RECV_F0", 10.0, 10.5, wait=0.25), ran("1RECV_F1", 10.5, 12.0, wait=1.0)]
    late = late_arrivals({(0, 0): sender, (1, 0): (100.0, rows)})
    assert late[1, 0] == {(1, parse("1RECV_F0")): 0.25}


def test_shares_of_replicas_are_matched_by_who_sent_them() -> None:
    # given two replicas that exchange shares and sums: SEND_P names the owner, RECV_P the source
    rows = {
        (0, 0): (0.0, [ran("0SEND_P1.0", 0.0, 1.0), ran("0RECV_S1.0", 1.0, 5.0, wait=3.5)]),
        (0, 1): (0.0, [ran("0RECV_P0.0", 0.0, 2.0, wait=1.5), ran("0SEND_S1.0", 3.0, 4.0)]),
    }
    assert late_arrivals(rows) == {
        (0, 0): {(1, parse("0RECV_S1.0")): 0.5},
        (0, 1): {(1, parse("0RECV_P0.0")): 0.5},
    }
