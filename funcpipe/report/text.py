"""A run's summary as text: what an engineer wants to see first comes first."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from funcpipe.errors import revive
from funcpipe.partitioner.pricing import Bill
from funcpipe.report.beside import beside_table, rows_of_run
from funcpipe.report.bill import bill_tables
from funcpipe.report.summary import FunctionSummary, Summary
from funcpipe.report.units import format_bytes, format_dollars, format_number

__all__ = ["WIDTH", "print_summary", "summary_text"]

WIDTH = 100
_NARROW = 90
_STYLES = {"done": "bold green", "failed": "bold red", "stopped": "bold yellow"}
_OPERATIONS = {"PUT": "PUT", "GET": "GET", "GET_MISSED": "missed GET", "DELETE": "DELETE"}


def print_summary(summary: Summary, console: Console) -> None:
    """Print with colours on a terminal, as plain text elsewhere; at most 100 columns wide,
    except for paths that are longer.
    """
    if console.is_terminal:
        _print(summary, console, min(console.width, WIDTH))
    else:
        console.file.write(summary_text(summary))


def summary_text(summary: Summary, *, width: int = WIDTH) -> str:
    """The summary as plain text: no escape codes, no blanks at the ends of lines."""
    buffer = io.StringIO()
    plain = Console(file=buffer, width=width, color_system=None, force_terminal=False)
    _print(summary, plain, width)
    lines = [line.rstrip() for line in buffer.getvalue().splitlines()]
    return "\n".join(lines).strip("\n") + "\n"


def _print(summary: Summary, console: Console, width: int) -> None:
    for number, part in enumerate(_parts(summary, width)):
        if number:
            console.print()
        console.print(part, width=width)
    if summary.model_path is not None:
        console.print()
        # Never folded, so that the lines can be copied.
        console.print(_how_to_load(summary.model_path), soft_wrap=True)


def _parts(summary: Summary, width: int) -> Iterator[RenderableType]:
    yield _headline(summary)
    if summary.error is not None:
        yield Padding(_error_text(summary.error), (0, 0, 0, 2))
    yield _facts(summary)
    beside = rows_of_run(summary.plan.get("predicted"), summary.measured)
    if beside:
        yield beside_table(beside)
    if summary.requests_by_kind:
        yield _requests_by_kind(summary.requests_by_kind)
    if summary.status != "done":
        yield Text("No model was written.")
    if summary.functions:
        yield _functions(summary.functions, narrow=width < _NARROW)
    if summary.bill is not None:
        yield from bill_tables(Bill.from_dict(summary.bill), summary.functions)


def _headline(summary: Summary) -> Text:
    line = Text(f"Run {summary.run_id}: ")
    line.append(summary.status, _STYLES[summary.status])
    line.append(f" after {_counted(summary.steps, 'step')}")
    if "total" in summary.seconds:
        line.append(f", {summary.seconds['total']:.1f} s")
    return line


def _error_text(error: Mapping[str, Any]) -> Text:
    return Text(f"{error.get('type', 'Error')}: {revive(error)}", style="red")


def _facts(summary: Summary) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in _fact_rows(summary):
        grid.add_row(Text(name), Text(value))
    return grid


def _fact_rows(summary: Summary) -> Iterator[tuple[str, str]]:
    when = "" if summary.status == "done" else " (at its last evaluation; that model was not kept)"
    for name, value in summary.metrics.items():
        yield name, f"{value:.4f}{when}"
    if summary.losses:
        yield "training loss", f"{summary.losses[0]:.4f} -> {summary.losses[-1]:.4f}"
    if summary.seconds:
        yield "seconds", _seconds(summary)
    if summary.bill is not None:
        yield "cost", _cost(summary, Bill.from_dict(summary.bill))
    yield "job", f"{summary.job}, {_counted(summary.epochs, 'epoch')}"
    yield "plan", _plan_text(summary.plan)
    on_none = bool(summary.functions) and summary.emulation is None
    yield from _predicted(summary.plan.get("predicted"), on_none=on_none)
    yield "ran on", f"{summary.platform}, store {summary.store}"
    yield from _emulation_rows(summary.emulation or {})
    if not summary.if_absent:
        yield "warning", "this store ignores conditional writes, so leases are not exclusive"
    for note in summary.notes:
        yield "note", note
    if summary.requests:
        yield "requests", _requests(summary)
    if summary.driver_requests:
        yield "of the driver", _counts(summary.driver_requests)
    if summary.functions:  # only functions that came to their end have told what they moved
        yield "bytes", ", ".join(f"{format_bytes(n)} {way}" for way, n in summary.bytes.items())


def _emulation_rows(emulation: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if emulation:
        text = f"{emulation.get('title', emulation.get('platform'))}; times are platform seconds"
        dilation, why = emulation.get("dilation", 1), emulation.get("why", "")
        if dilation != 1:
            text += f"; this machine took {dilation:g} x as long"
        if why and (dilation != 1 or "user" in why):  # that one may be too small
            text += f": {why}"
        yield "emulated", text
    for missing in emulation.get("missing", ()):
        yield "note", f"not enforced: {missing}"
    if unverified := emulation.get("unverified"):
        yield "note", f"prices without a public source: {', '.join(unverified)}"


def _cost(summary: Summary, bill: Bill) -> str:
    text = format_dollars(bill.total)
    if summary.steps:
        text += f", {format_dollars(bill.total / summary.steps)} per step"
    return text


def _seconds(summary: Summary) -> str:
    phases = {name: value for name, value in summary.seconds.items() if name != "step"}
    text = ", ".join(f"{name} {value:.1f}" for name, value in phases.items())
    step = summary.seconds.get("step")
    return text if step is None else f"{text}; step {step:.3f}"


def _requests(summary: Summary) -> str:
    total = sum(summary.requests.values())
    text = f"{_counts(summary.requests)}; {total:,} in all"
    return f"{text}, {total / summary.steps:.1f} per step" if summary.steps else text


def _counts(counts: Mapping[str, int]) -> str:
    order = [*(op for op in _OPERATIONS if op in counts), *sorted(set(counts) - set(_OPERATIONS))]
    return ", ".join(f"{_OPERATIONS.get(op, op)} {counts[op]:,}" for op in order)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _plan_text(plan: Mapping[str, Any]) -> str:
    degrees = [stage.get("replicas", 1) for stage in plan.get("stages", ())]
    parts = []
    if degrees:
        same = len(set(degrees)) == 1
        replicas = _counted(degrees[0], "replica") if same else f"{_joined(degrees)} replicas"
        parts.append(f"{_counted(len(degrees), 'stage')} x {replicas}")
    if "micro_batch_size" in plan:
        parts.append(f"micro-batches of {plan['micro_batch_size']}")
    if "schedule" in plan:
        depth = plan.get("in_flight")
        parts.append(
            plan["schedule"] if depth is None else f"{plan['schedule']}, {depth} in flight"
        )
    if "sync" in plan:
        parts.append(f"{plan['sync']} synchronisation")
    again = [k for k, stage in enumerate(plan.get("stages", ())) if stage.get("recompute")]
    if again:
        one = f"stage {again[0]} recomputes"
        parts.append(one if len(again) == 1 else f"stages {_joined(again)} recompute")
    return ", ".join(parts) or "none"


def _predicted(told: object, *, on_none: bool) -> Iterator[tuple[str, str]]:
    """What the planner said of the plan; its file may be anyone's, so only numbers are shown.

    on_none: whether what was measured is of no platform, unlike what was predicted.
    """
    if not isinstance(told, Mapping):
        return
    step_s, dollars = told.get("step_s"), told.get("dollars")
    parts = []
    if isinstance(step_s, int | float):
        parts.append(f"step {format_number(step_s)} s")
    if isinstance(dollars, int | float):
        parts.append(f"{format_dollars(dollars)} per step")
    if parts:
        where = f" on {told['platform']}" if "platform" in told else ""
        other = "; this run was on no platform, so that the two do not compare" if on_none else ""
        without = ", without cold starts, loading and the driver's requests"
        yield "predicted", ", ".join(parts) + where + (other or without)


def _joined(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(first, vertical="bottom")
    for name in others:
        table.add_column(name, justify="right", vertical="bottom")
    return table


def _requests_by_kind(counts: Mapping[str, int]) -> Table:
    """`counts` are by ``"OPERATION kind"``."""
    pairs = {tuple(name.partition(" ")[::2]): number for name, number in counts.items()}
    used = {op for op, _ in pairs}
    columns = [*(op for op in _OPERATIONS if op in used), *sorted(used - set(_OPERATIONS))]
    table = _table("objects", *(_OPERATIONS.get(op, op) for op in columns))
    for kind in sorted({kind for _, kind in pairs}):
        table.add_row(Text(kind), *(f"{pairs.get((op, kind), 0):,}" for op in columns))
    return table


def _functions(functions: Sequence[FunctionSummary], *, narrow: bool) -> Table:
    names = ["replica", "layers", "over\nbase MB", "base\nMB", "data\nMB"]
    names += [] if narrow else ["start\ns", "data\ns"]
    names += ["compute\ns", "transfer\ns", "waiting\ns", "total\ns", "requests"]
    table = _table("stage", *names)
    for one in sorted(functions, key=lambda one: (one.stage, one.replica)):
        over_base_bytes = max(0, one.peak_bytes - one.base_bytes)
        start = [] if narrow else [f"{one.start_s:.1f}", _seconds_or_none(one.data_s)]
        table.add_row(
            str(one.stage),
            str(one.replica),
            one.layers,
            _megabytes(over_base_bytes),
            _megabytes(one.base_bytes),
            _megabytes(one.data_bytes),
            *start,
            f"{one.compute_s:.1f}",
            f"{one.transfer_s:.1f}",
            f"{one.waiting_s:.1f}",
            f"{one.seconds:.1f}",
            f"{one.requests:,}",
        )
    return table


def _megabytes(number: int) -> str:
    return f"{number / 1e6:.1f}" if number else "-"


def _seconds_or_none(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds else "-"


def _how_to_load(path: str) -> Text:
    lines = (
        f"Trained model: {path}",
        "  from safetensors.torch import load_file",
        f"  model.load_state_dict(load_file({path!r}))",
    )
    return Text("\n".join(lines))
