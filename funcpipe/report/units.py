"""Amounts as short texts."""

from __future__ import annotations

import math

__all__ = ["format_bytes", "format_dollars", "format_number", "places_of"]

_UNITS = ("B", "kB", "MB", "GB", "TB")
_DIGITS = 3
_EXTREME = 1e15


def format_bytes(number: float) -> str:
    """`number` bytes in decimal units: 999 B, 1.5 kB, 64.0 MB."""
    for unit in _UNITS[:-1]:
        if number < (1000 if unit == "B" else 999.95):
            return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} {_UNITS[-1]}"


def format_dollars(dollars: float, *, places: int | None = None) -> str:
    """Three significant digits, cents or more from a dollar on.

    $0.00000120, $0.0123, $1.23, $1,234.57; an exponent only far beyond what anything costs,
    $1.00e-20. With so many decimal places if they are given; what
    they are too few for is then said to be less than one of the last: <$0.0001.
    """
    if dollars == 0:
        return "$0"
    if _is_extreme(dollars):
        return f"${dollars:.{_DIGITS - 1}e}"
    if places is None:
        places = places_of(dollars)
    least = 10.0**-places
    return f"<${least:.{places}f}" if dollars < least / 2 else f"${dollars:,.{places}f}"


def places_of(dollars: float, *, digits: int = _DIGITS) -> int:
    """Decimal places that show so many significant digits of an amount, at least two."""
    if dollars <= 0 or _is_extreme(dollars):
        return 2
    # Rounded first: 0.09996 is 0.100 and has one leading zero less than it seems.
    rounded = float(f"{dollars:.{digits - 1}e}")
    return max(2, digits - 1 - math.floor(math.log10(rounded)))


def format_number(number: float, *, digits: int = _DIGITS) -> str:
    """So many significant digits, all digits before the point.

    0.00123, 0.120, 12.3, 1,235; 0 is 0. An exponent only where there would be more than a dozen
    zeros: 1.00e-20.
    """
    if number == 0 or not math.isfinite(number):
        return f"{number:g}"
    if _is_extreme(number):
        return f"{number:.{digits - 1}e}"
    rounded = float(f"{number:.{digits - 1}e}")
    places = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{number:,.{places}f}"


def _is_extreme(number: float) -> bool:
    return not 1 / _EXTREME <= abs(number) < _EXTREME
