import pytest

from funcpipe.errors import ScheduleError
from funcpipe.schedule.action import Action, Kind, Lane, parse

ALL = [
    Action(
        2, kind, *([0, 1] if kind.value in {"SEND_P", "RECV_P", "ADD", "SEND_S", "RECV_S"} else [3])
    )
    for kind in Kind
    if kind not in {Kind.STEP, Kind.REPORT, Kind.DEL}
] + [Action(0, Kind.STEP), Action(11, Kind.REPORT), Action(7, Kind.DEL)]


@pytest.mark.parametrize("action", ALL, ids=str)
def test_every_action_prints_as_a_token_that_parses_back(action: Action) -> None:
    assert parse(str(action)) == action


def test_every_kind_is_covered() -> None:
    assert {action.kind for action in ALL} == set(Kind)


@pytest.mark.parametrize(
    "token", ["", "F0", "2F", "2X0", "2F0.1", "2SEND_P1", "2STEP1", "-1F0", "2F-1", "2f0", "2F0 "]
)
def test_what_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(ScheduleError):
        parse(token)


def test_lanes() -> None:
    lanes = {kind: kind.lane for kind in Kind}
    assert [k for k, lane in lanes.items() if lane is Lane.SERVICE] == [Kind.REPORT, Kind.DEL]
    assert lanes[Kind.ADD] is Lane.COMPUTE
    assert lanes[Kind.RECV_S] is Lane.DOWN
    assert lanes[Kind.SEND_P] is Lane.UP
