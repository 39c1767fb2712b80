from __future__ import annotations

import math

import pytest

from funcpipe.worker.estimates import Block, Line, line, mid, scaled, spread, stretched


def block(wall_s: float, *parts: float, counts: tuple[int, ...] = (4, 4, 1)) -> Block:
    return Block(wall_s=wall_s, cpu_s=math.fsum(parts), parts=parts, counts=counts)


def test_cpu_seconds_are_stretched_as_all_of_them_were() -> None:
    # Given a quota of a half: twice the CPU seconds pass, in whichever part the pauses fell
    found = stretched([block(14.0, 2.0, 4.0, 1.0)] * 3)
    assert found == pytest.approx((1.0, 2.0, 2.0))


def test_blocks_that_were_interrupted_are_left_out() -> None:
    good = [block(7.0, 2.0, 4.0, 1.0)] * 3
    assert stretched([*good, block(700.0, 2.0, 4.0, 1.0)]) == stretched(good)
    assert len(mid([*good, good[0]])) == 2
    assert mid(good[:1]) == good[:1]


def test_shares_sum_to_the_whole() -> None:
    parts = scaled([[1.0, 3.0, 0.0], [1.0, 3.0, 0.0], [9.0, 3.0, 0.0]], 8.0)
    assert parts == [2.0, 6.0, 0.0]
    assert scaled([[0.0, 0.0]], 8.0) == [4.0, 4.0]


def test_spread_is_the_interquartile_range_over_the_median() -> None:
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3)
    assert spread([1.0]) == 0.0


@pytest.mark.parametrize(
    ("sizes", "values", "expected"),
    [
        ([4], [8.0], Line(0.0, 2.0)),
        ([1, 5], [12.0, 20.0], Line(10.0, 2.0)),
        ([1, 5], [1.0, 20.0], Line(0.0, 4.0)),
        ([1, 5], [9.0, 7.0], Line(9.0, 0.0)),
    ],
)
def test_a_line_is_never_below_what_was_measured(
    sizes: list[int], values: list[float], expected: Line
) -> None:
    found = line(sizes, values)
    assert found == expected
    for size, value in zip(sizes, values, strict=True):
        assert found.fixed + found.slope * size >= value
