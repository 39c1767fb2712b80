"""A bill as tables: by cause, and by who caused it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from funcpipe.partitioner.pricing import Bill, Charge
from funcpipe.report.summary import FunctionSummary
from funcpipe.report.units import format_bytes, format_dollars, places_of

__all__ = ["bill_tables"]

_HOUR_S = 3600
_TOTAL_DIGITS = 6
_PARTS = ("time", "requests", "other")
_PART_OF = {"compute": "time", "initialisation": "time"}
_PART_OF |= dict.fromkeys(("storage", "transfer", "internet"), "other")


def bill_tables(bill: Bill, functions: Sequence[FunctionSummary]) -> Iterator[RenderableType]:
    """What was paid for, and for whom; nothing for an empty bill.

    All amounts have the same decimal places, enough for three digits of a thousandth of the total.
    """
    if bill.charges:
        places = places_of(bill.total, digits=_TOTAL_DIGITS)
        yield _by_cause(bill, places)
        yield _by_name(bill, functions, places)


def _by_cause(bill: Bill, places: int) -> Table:
    table = _table("bill", "quantity", "dollars", "share")
    for cause, dollars in bill.by_cause().items():
        charges = [charge for charge in bill.charges if charge.cause == cause]
        share = f"{dollars / bill.total:.1%}" if bill.total else "-"
        table.add_row(cause, _quantity(charges), format_dollars(dollars, places=places), share)
    table.add_row("total", "", format_dollars(bill.total, places=places), "")
    return table


def _by_name(bill: Bill, functions: Sequence[FunctionSummary], places: int) -> Table:
    known = {f"stage{one.stage}-replica{one.replica}": one for one in functions}
    table = _table("bill of", "memory\nMB", "cold\nstarts", *_PARTS, "dollars")
    for name, dollars in bill.by_name().items():
        one = known.get(name)
        parts = _parts(charge for charge in bill.charges if charge.name == name)
        table.add_row(
            Text(name),
            _count(None if one is None else one.memory_mb),
            _count(None if one is None else one.cold_starts),
            *(format_dollars(part, places=places) if part else "-" for part in parts),
            format_dollars(dollars, places=places),
        )
    return table


def _parts(charges: Iterator[Charge]) -> list[float]:
    """Dollars of each of `_PARTS`."""
    found: dict[str, list[float]] = {part: [] for part in _PARTS}
    for charge in charges:
        found[_PART_OF.get(charge.cause, "requests")].append(charge.dollars)
    return [math.fsum(dollars) for dollars in found.values()]


def _quantity(charges: Sequence[Charge]) -> str:
    total, unit = math.fsum(charge.quantity for charge in charges), charges[0].unit
    if unit == "s":
        return f"{total:,.3f} s"
    if unit == "byte-s":
        return f"{format_bytes(total / _HOUR_S)}-hours"
    return format_bytes(total) if unit == "bytes" else f"{total:,.0f}"


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(first, vertical="bottom", no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", vertical="bottom")
    return table
