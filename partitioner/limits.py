"""How large the numbers may be that users give, which texts are numbers, and how errors show them.

Beyond these limits a number has the wrong unit or was mistyped; within them all arithmetic of the
planner stays far inside of what floats and 64-bit integers hold. Imported by the command line
before anything else, so it imports next to nothing.
"""

from __future__ import annotations

import math
import re

__all__ = [
    "LEAST_VCPUS",
    "MOST_BYTES",
    "MOST_COUNT",
    "MOST_PRICE",
    "MOST_SAMPLES",
    "MOST_SECONDS",
    "MOST_VCPUS",
    "is_count",
    "is_number",
    "is_version",
    "read_count",
    "read_number",
    "shown",
    "written",
]

MOST_COUNT = 10**9
"""Of steps, layers, functions and MB."""
MOST_SAMPLES = 10**6
"""Of a batch, all of whose micro-batches are simulated."""
MOST_BYTES = 2**53
"""Floats hold every whole number up to here."""
MOST_SECONDS = 366 * 24 * 3600
"""Nobody waits a year for a layer, nor for a platform."""
MOST_PRICE = 10**6
LEAST_VCPUS, MOST_VCPUS = 0.001, 10**6

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_MOST_DIGITS = 300  # of a text that is read at all


def is_number(value: object) -> bool:
    """Whether it is an int or float, which True is not; it may be infinite, or none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_count(value: object, least: int = 1, most: int = MOST_COUNT) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_version(value: object, known: int) -> bool:
    """Neither True nor 1.0 is version 1, though they equal it."""
    return type(value) is int and value == known


def read_count(text: str, *, least: int = 1) -> int:
    """The whole number from `least` to `MOST_COUNT` that a text of digits is; or ValueError."""
    if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS:
        value = int(text)
        if is_count(value, least):
            return value
    raise ValueError


def read_number(text: str) -> float:
    """Of a plain decimal: Python's ``float`` also takes 1_0, spaces, other scripts' digits and nan.

    ValueError for all of these, and for what no float holds.
    """
    if len(text) <= _MOST_DIGITS and _NUMBER.fullmatch(text):
        value = float(text)
        if math.isfinite(value):
            return value
    raise ValueError


def shown(value: object, letters: int = 60) -> str:
    """As Python writes it, cut to so many letters."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # integers of thousands of digits have no text
        return f"({type(value).__name__}, too long to show)"
    return text if len(text) <= letters else f"{text[: letters - 3]}..."


def written(number: float) -> str:
    """As people read it: 1,000,000,000 and 0.001."""
    return f"{int(number):,}" if number == int(number) else f"{number:g}"
