import pytest

from funcpipe.errors import ScheduleError
from funcpipe.schedule.order import compute_order, from_text, to_text, window


def order(schedule: str, stage: int, **changes: int | None) -> str:
    plan = {"num_stages": 3, "num_micro_batches": 4, "replica": 0, "degree": 1, "in_flight": None}
    return to_text(compute_order(schedule, stage=stage, **(plan | changes)))  # type: ignore[arg-type]


def test_gpipe_does_all_forwards_then_all_backwards_in_reverse() -> None:
    assert order("gpipe", 1) == "1F0 1F1 1F2 1F3 1B3 1B2 1B1 1B0"


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        (0, "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3"),
        (1, "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3"),
        (2, "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3"),
    ],
)
def test_1f1b_with_as_many_in_flight_as_stages_is_the_classic_one(
    stage: int, expected: str
) -> None:
    assert order("1f1b", stage) == expected


def test_1f1b_with_more_in_flight_warms_up_longer() -> None:
    assert order("1f1b", 2, in_flight=6) == "2F0 2F1 2B0 2F2 2B1 2F3 2B2 2B3"


def test_a_replica_does_its_own_micro_batches_only() -> None:
    assert order("gpipe", 0, replica=1, degree=3) == "0F1 0B1"
    assert order("gpipe", 0, replica=0, degree=3) == "0F0 0F3 0B3 0B0"


def test_a_replica_without_work_has_an_empty_order() -> None:
    assert order("1f1b", 0, replica=4, degree=5) == ""


def test_the_window_never_grows_downstream() -> None:
    for num_stages in range(1, 9):
        for in_flight in range(1, 20):
            sizes = [window(s, num_stages, in_flight) for s in range(num_stages)]
            assert sizes == sorted(sizes, reverse=True)
            assert sizes[0] == in_flight


def test_text_parses_back() -> None:
    text = order("1f1b", 1)
    assert to_text(from_text(text)) == text


def test_unknown_schedules_and_depths_are_refused() -> None:
    with pytest.raises(ScheduleError, match="known: gpipe, 1f1b"):
        order("zigzag", 0)
    with pytest.raises(ScheduleError, match="at least one"):
        order("1f1b", 0, in_flight=0)
