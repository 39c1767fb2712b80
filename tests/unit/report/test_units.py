"""Amounts as texts."""

from __future__ import annotations

import math

import pytest

from funcpipe.report.units import format_bytes, format_dollars, format_number, places_of


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (64e6, "64.0 MB"),
        (5e15, "5000.0 TB"),
    ],
)
def test_bytes_are_shown_in_decimal_units(number: float, text: str) -> None:
    assert format_bytes(number) == text


@pytest.mark.parametrize(
    ("dollars", "text"),
    [
        (0.0, "$0"),
        (1.2e-9, "$0.00000000120"),
        (0.0123456, "$0.0123"),
        (0.09996, "$0.100"),
        (0.999, "$0.999"),
        (0.9996, "$1.00"),
        (1.234, "$1.23"),
        (1234.567, "$1,234.57"),
        (1e-300, "$1.00e-300"),
        (1e300, "$1.00e+300"),
    ],
)
def test_dollars_have_three_digits_and_an_exponent_only_far_from_money(
    dollars: float, text: str
) -> None:
    assert format_dollars(dollars) == text


@pytest.mark.parametrize(
    ("dollars", "text"),
    [(1.5, "$1.5000"), (0.00006, "$0.0001"), (0.00004, "<$0.0001"), (0.0, "$0")],
)
def test_dollars_too_few_for_their_places_are_said_to_be_less(dollars: float, text: str) -> None:
    assert format_dollars(dollars, places=4) == text


def test_places_are_those_of_the_digits_that_are_wanted() -> None:
    assert [places_of(x, digits=6) for x in (0.0, 0.0281, 0.999, 1.0, 250.0, 1e9)] == [
        2,
        7,
        6,
        5,
        3,
        2,
    ]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (0.0000123456, "0.0000123"),
        (0.09996, "0.100"),
        (1, "1.00"),
        (12.34, "12.3"),
        (999.9, "1,000"),
        (1234.5, "1,234"),
        (-0.5, "-0.500"),
        (math.inf, "inf"),
        (1.234e-300, "1.23e-300"),
        (1.234e300, "1.23e+300"),
    ],
)
def test_numbers_have_three_significant_digits_and_hardly_ever_an_exponent(
    number: float, text: str
) -> None:
    assert format_number(number) == text


def test_numbers_may_have_fewer_digits() -> None:
    assert format_number(1.23, digits=2) == "1.2"
