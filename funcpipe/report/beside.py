"""What was measured beside what was predicted: rows of a table, from whoever knows both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from funcpipe.partitioner.limits import is_number
from funcpipe.report.units import format_dollars, format_number

__all__ = ["UNITS", "Beside", "beside_table", "number_of", "rows_of_run"]

SECONDS, DOLLARS, BYTES, NUMBER = "s", "dollars", "bytes", ""
UNITS = (SECONDS, DOLLARS, BYTES, NUMBER)

_MOST = 1e300


@dataclass(frozen=True, kw_only=True)
class Beside:
    """One figure. None: not known. unit: of `UNITS`."""

    name: str
    unit: str
    predicted: float | None
    measured: float | None

    @property
    def off(self) -> float | None:
        """predicted / measured - 1: below 0 where more was measured than predicted."""
        if self.predicted is None or not self.measured:
            return None
        return self.predicted / self.measured - 1

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self) | {"off": self.off}


def beside_table(rows: Sequence[Beside]) -> Table:
    """A row for each figure that is known in both ways, and those that are known in one."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    for name in ("predicted", "measured", "prediction off by"):
        table.add_column(name, justify="right")
    for row in rows:
        off = row.off
        table.add_row(
            Text(row.name),
            _shown(row.predicted, row.unit),
            _shown(row.measured, row.unit),
            "-" if off is None else f"{off:+.1%}",
        )
    return table


def rows_of_run(predicted: object, measured: Mapping[str, Any] | None) -> list[Beside]:
    """Of a run's summary. predicted: of its plan, whose file may be anyone's: only numbers count;
    measured: its own. Empty where one of the two is missing."""
    if not isinstance(predicted, Mapping) or measured is None:
        return []
    rows = [
        Beside(
            name="step",
            unit=SECONDS,
            predicted=number_of(predicted.get("step_s")),
            measured=number_of(measured.get("step_s")),
        ),
        Beside(
            name="cost of a step",
            unit=DOLLARS,
            predicted=_without_starts(predicted),
            measured=number_of(measured.get("dollars")),
        ),
    ]
    rows += _memory(predicted.get("stages"), measured.get("stages"))
    return [row for row in rows if row.predicted is not None and row.measured is not None]


def _memory(predicted: object, measured: object) -> Iterator[Beside]:
    if not isinstance(predicted, list | tuple) or not isinstance(measured, list | tuple):
        return
    if len(predicted) != len(measured):
        return
    for number, (told, seen) in enumerate(zip(predicted, measured, strict=True)):
        planned = told.get("memory_bytes") if isinstance(told, Mapping) else None
        if not isinstance(planned, Mapping) or not isinstance(seen, Mapping):
            continue
        total = number_of(planned.get("total"))
        # What a plan calls base has libraries in it that a function loads as it goes.
        base = number_of(seen.get("base_bytes")) or number_of(planned.get("base"))
        yield Beside(
            name=f"stage {number}: memory over base",
            unit=BYTES,
            predicted=None if total is None or base is None else total - base,
            measured=number_of(seen.get("over_base_bytes")) or None,
        )


def _without_starts(predicted: Mapping[str, Any]) -> float | None:
    """Dollars of a step, without its share of the functions' starts, which no step shows."""
    dollars, causes = number_of(predicted.get("dollars")), predicted.get("dollars_by_cause")
    starts = number_of(causes.get("starts")) if isinstance(causes, Mapping) else None
    return None if dollars is None else dollars - (starts or 0.0)


def number_of(value: object) -> float | None:
    """A number that a file says, if it is one that can be reckoned with."""
    usable = is_number(value) and abs(value) <= _MOST  # type: ignore[arg-type]
    return float(value) if usable else None  # type: ignore[arg-type]


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit == DOLLARS:
        return format_dollars(value)
    if unit == BYTES:
        return f"{value / 1e6:,.1f} MB"
    return f"{format_number(value)} {unit}".rstrip()
