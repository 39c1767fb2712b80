"""Which texts are numbers, and how values are shown in errors."""

from __future__ import annotations

from typing import Any

import pytest

from funcpipe.partitioner.limits import (
    MOST_COUNT,
    is_count,
    is_version,
    read_count,
    read_number,
    shown,
    written,
)


@pytest.mark.parametrize(
    ("text", "value"), [("1", 1), ("-2.5", -2.5), (".5", 0.5), ("3.", 3), ("+1e-3", 1e-3)]
)
def test_a_plain_decimal_is_a_number(text: str, value: float) -> None:
    assert read_number(text) == value


@pytest.mark.parametrize(
    "text", ["", ".", "1_0", " 1", "1 ", "٣", "1e400", "nan", "inf", "0x10", "1,5", "9" * 5000]
)
def test_anything_else_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"^$"):
        read_number(text)


@pytest.mark.parametrize("text", ["1", "007", str(MOST_COUNT)])
def test_digits_are_a_count(text: str) -> None:
    assert read_count(text) == int(text)


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "1_0", "1.0", "²", "٣", str(MOST_COUNT + 1), "9" * 5000]
)
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^$"):
        read_count(text)


@pytest.mark.parametrize("value", [True, 1.0, "1", None, 0, MOST_COUNT + 1])
def test_other_values_are_no_counts(value: Any) -> None:
    assert is_count(1)
    assert not is_count(value)


@pytest.mark.parametrize("value", [True, 1.0, "1", 2, None])
def test_what_equals_a_version_is_not_always_one(value: Any) -> None:
    assert is_version(1, 1)
    assert not is_version(value, 1)


def test_values_are_shown_but_not_at_length() -> None:
    assert shown("short") == "'short'"
    assert shown(10**60) == "1" + "0" * 56 + "..."
    assert shown([10**5000]) == "(list, too long to show)"


@pytest.mark.parametrize(
    ("number", "text"), [(10**9, "1,000,000,000"), (0.001, "0.001"), (1.0, "1"), (0, "0")]
)
def test_limits_are_written_as_people_read_them(number: float, text: str) -> None:
    assert written(number) == text
