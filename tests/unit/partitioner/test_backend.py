"""Time limits, and parts of them."""

from __future__ import annotations

import math

import pytest

from funcpipe.errors import PlanError
from funcpipe.partitioner.backend import Deadline


class Clock:
    def __init__(self) -> None:
        self.now_s = 5.0

    def __call__(self) -> float:
        return self.now_s


def test_a_part_is_that_of_the_time_left() -> None:
    clock = Clock()
    whole = Deadline(10.0, clock=clock)
    clock.now_s += 2

    part = whole.part(1 / 4)

    assert (part.passed_s, part.left_s) == (0, 2)
    clock.now_s += 1.5
    assert (part.left_s, whole.left_s) == (0.5, 6.5)
    assert not part.over
    clock.now_s += 0.5
    assert (part.over, whole.over) == (True, False)
    assert whole.part(1 / 3).left_s == 2


@pytest.mark.parametrize(
    ("limit_s", "share", "passed_s"), [(10, 1, 2), (None, 0.5, 2), (1, 0.5, 3)]
)
def test_of_all_without_a_limit_and_of_none_there_is_no_part(
    limit_s: float | None, share: float, passed_s: float
) -> None:
    clock = Clock()
    whole = Deadline(limit_s, clock=clock)
    clock.now_s += passed_s

    part = whole.part(share)

    assert part is whole
    assert part.over == (limit_s == 1)


def test_without_a_limit_it_is_never_over() -> None:
    clock = Clock()
    deadline = Deadline(clock=clock)
    clock.now_s = 1e12

    assert (deadline.left_s, deadline.over) == (math.inf, False)


@pytest.mark.parametrize("limit_s", [0, -1, math.inf, math.nan, "soon"])
def test_a_limit_that_is_none_is_refused(limit_s: float) -> None:
    with pytest.raises(PlanError, match=r"the time limit is .*; expected seconds above 0"):
        Deadline(limit_s)
