"""Live progress of a run, fed with its events (see `funcpipe.report.events`). No threads.

`ProgressState` is what the events so far add up to; two views draw it: `LiveProgress` on a
terminal, `PlainProgress` as lines in a file or pipe.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from funcpipe.report.events import Event
from funcpipe.report.units import format_dollars

__all__ = ["LiveProgress", "PlainProgress", "Progress", "ProgressState", "progress_for"]

_RATE_STEPS = 20
_REDRAW_S = 0.1
_NUM_NOTES = 5


@dataclass(frozen=True, kw_only=True)
class ProgressState:
    """Where a run stands. `recent` holds (steps done, t) of the last steps, for the rate."""

    phase: str = "starting"
    t: float = 0.0
    step: int = 0
    total: int = 0
    loss: float | None = None
    alive: int = 0
    requests: int | None = None
    dollars: float | None = None
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    notes: tuple[tuple[str, str], ...] = ()
    recent: tuple[tuple[int, float], ...] = ()

    def after(self, event: Event) -> ProgressState:
        """The state once `event` has happened; events of unknown kinds change the time only."""
        handler = _HANDLERS.get(event["kind"])
        changes = {} if handler is None else handler(self, event)
        return dataclasses.replace(self, t=max(self.t, event["t"]), **changes)

    @property
    def steps_per_s(self) -> float | None:
        """Over the last steps; None before there are two."""
        if len(self.recent) < 2:
            return None
        (first, start), (last, stop) = self.recent[0], self.recent[-1]
        return (last - first) / (stop - start) if stop > start else None

    @property
    def remaining_s(self) -> float | None:
        rate = self.steps_per_s
        return None if rate is None else (self.total - self.step) / rate


def _on_step(state: ProgressState, event: Event) -> dict[str, Any]:
    return {
        "phase": "training",
        "step": event["step"],
        "total": event["total"],
        "loss": event.get("loss"),
        "alive": event.get("alive", state.alive),
        "requests": event.get("requests", state.requests),
        "dollars": event.get("dollars", state.dollars),
        "recent": (*state.recent, (event["step"], event["t"]))[-_RATE_STEPS - 1 :],
    }


def _on_note(state: ProgressState, event: Event) -> dict[str, Any]:
    return _noted(state, event.get("level", "info"), event["text"])


def _on_emulator(state: ProgressState, event: Event) -> dict[str, Any]:
    return _noted(state, "info", _emulator_line(event))


def _on_throttled(state: ProgressState, event: Event) -> dict[str, Any]:
    return _noted(state, "warning", _throttled_line(event))


def _noted(state: ProgressState, level: str, text: str) -> dict[str, Any]:
    return {"notes": (*state.notes, (level, text))[-_NUM_NOTES:]}


_HANDLERS: dict[str, Callable[[ProgressState, Event], dict[str, Any]]] = {
    "run_started": lambda _, __: {"phase": "preparing"},
    "plan": lambda _, __: {"phase": "planned"},
    "store_ready": lambda _, __: {"phase": "starting functions"},
    "function_started": lambda state, _: {"alive": state.alive + 1},
    "function_ended": lambda state, _: {"alive": max(0, state.alive - 1)},
    "step": _on_step,
    "evaluation": lambda _, event: {"phase": "evaluated", "metrics": event["metrics"]},
    "note": _on_note,
    "emulator": _on_emulator,
    "throttled": _on_throttled,
    "bill": lambda state, event: {"dollars": event.get("dollars", state.dollars)},
    "run_ended": lambda _, event: {"phase": event["status"]},
}


def _note_line(event: Event) -> str:
    level = event.get("level", "info")
    text: str = event["text"]
    return text if level == "info" else f"{level}: {text}"


def _emulator_line(event: Event) -> str:
    title, dilation = event.get("title", event.get("platform")), event.get("dilation", 1)
    why = event.get("why", "")
    if dilation == 1:
        # With a factor of 1 only one that was chosen needs a word: it may be too small.
        return f"emulates {title}, at real speed: {why}" if "user" in why else f"emulates {title}"
    return f"emulates {title}, {dilation:g} x slower: {why}".rstrip(": ")


def _throttled_line(event: Event) -> str:
    waited = event.get("waited_s", 0.0)
    return f"throttled: {event.get('name')} waited {waited:.1f} s for room on the platform"


_LINES: dict[str, Callable[[Event], str]] = {
    "run_started": lambda event: f"run {event['run_id']}: {event['job']}",
    "store_ready": lambda event: f"store ready: {event['store']}",
    "evaluation": lambda event: (
        f"evaluated after step {event['step']}: {_metrics_text(event['metrics'])}"
    ),
    "note": _note_line,
    "emulator": _emulator_line,
    "throttled": lambda event: f"warning: {_throttled_line(event)}",
    "run_ended": lambda event: f"run {event['status']}",
}


class Progress(Protocol):
    def update(self, event: Event) -> None: ...

    def __enter__(self) -> Progress: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def progress_for(console: Console, *, every_steps: int = 10) -> Progress:
    """A live view if `console` is a terminal, else a line every `every_steps` steps."""
    if console.is_terminal:
        return LiveProgress(console)
    return PlainProgress(_writer(console), every_steps=every_steps)


def _writer(console: Console) -> Callable[[str], None]:
    def write(line: str) -> None:
        console.file.write(f"{line}\n")
        console.file.flush()

    return write


class PlainProgress:
    """Calls `write` with one line per note, evaluation and change, and per `every_steps` steps."""

    def __init__(self, write: Callable[[str], None], *, every_steps: int = 10) -> None:
        if every_steps < 1:
            raise ValueError(f"every_steps must be at least 1, not {every_steps}")
        self._write = write
        self._every_steps = every_steps
        self._next_step = 1
        self.state = ProgressState()

    def update(self, event: Event) -> None:
        self.state = self.state.after(event)
        line = self._line(event)
        if line is not None:
            self._write(f"{event['t']:7.1f} s  {line}")

    def _line(self, event: Event) -> str | None:
        if event["kind"] == "step":
            return _step_text(self.state) if self._is_due() else None
        line = _LINES.get(event["kind"])
        return None if line is None else line(event)

    def _is_due(self) -> bool:
        """The first step, then every so many, and the last one."""
        step = self.state.step
        if step < self._next_step and step != self.state.total:
            return False
        self._next_step = (step // self._every_steps + 1) * self._every_steps
        return True

    def __enter__(self) -> PlainProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


class LiveProgress:
    """Redraws a few lines of the terminal when events come, at most ten times a second."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False)
        self._drawn_t = float("-inf")
        self.state = ProgressState()

    def update(self, event: Event) -> None:
        self.state = self.state.after(event)
        due = event["t"] - self._drawn_t >= _REDRAW_S
        if due or event["kind"] != "step" or self.state.step == self.state.total:
            self._drawn_t = event["t"]
            self._live.update(render_progress(self.state), refresh=True)

    def __enter__(self) -> LiveProgress:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.update(render_progress(self.state), refresh=True)
        self._live.stop()


def render_progress(state: ProgressState) -> RenderableType:
    parts: list[RenderableType] = []
    for level, text in state.notes:
        parts.append(Text(text, style="yellow" if level == "warning" else ""))
    if state.total:
        grid = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=state.total, completed=state.step, width=24)
        grid.add_row(bar, Text(_step_text(state)))
        parts.append(grid)
    status = f"{state.phase}, {state.t:.0f} s, functions alive {state.alive}"
    if state.requests is not None:
        status += f", requests {state.requests:,}"
    if state.metrics:
        status += f", {_metrics_text(state.metrics)}"
    parts.append(Text(status, style="dim"))
    return Group(*parts)


def _step_text(state: ProgressState) -> str:
    parts = [f"step {state.step}/{state.total}"]
    if state.loss is not None:
        parts.append(f"loss {state.loss:.4f}")
    rate = state.steps_per_s
    if rate is not None:
        parts.append(f"{rate:.2f} steps/s")
    remaining = state.remaining_s
    if remaining:
        parts.append(f"{remaining:.0f} s left")
    if state.dollars is not None:
        parts.append(format_dollars(state.dollars))
    return "  ".join(parts)


def _metrics_text(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
