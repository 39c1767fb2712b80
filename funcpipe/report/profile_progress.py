"""Live progress of measuring a job, fed with the events of `funcpipe.driver.profiling`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

__all__ = ["MeasuringProgress", "MeasuringState", "measuring_progress"]

Event = Mapping[str, Any]

_NUM_NOTES = 5


@dataclass(frozen=True, kw_only=True)
class MeasuringState:
    """Where it stands: memory size number `point` of `points`, with `done` of its `sizes`."""

    phase: str = "starting"
    point: int = 0
    points: int = 0
    done: int = 0
    sizes: tuple[int, ...] = ()
    place: str = ""
    notes: tuple[str, ...] = ()

    def after(self, event: Event) -> MeasuringState:
        """Events of unknown kinds change nothing."""
        match event["kind"]:
            case "profile_started":
                changes: dict[str, Any] = {
                    "phase": "starting a store", "points": len(event["tiers_mb"]),
                    "sizes": tuple(event["sizes"]),
                }  # fmt: skip
            case "profile_point":
                changes = {
                    "phase": "starting functions", "point": event["number"], "done": 0,
                    "place": _place(event), "sizes": tuple(event["sizes"]),
                }  # fmt: skip
            case "profile_progress":
                size = event["size"]
                layers = "layers {}-{}".format(*event["layers"])
                changes = {
                    "phase": f"micro-batches of {size}, {layers}",
                    "done": sum(one <= size for one in self.sizes),
                }
            case "profile_ended":
                changes = {"phase": "measured", "place": "", "point": self.points + 1, "done": 0}
            case "note":
                changes = {"notes": (*self.notes, event["text"])[-_NUM_NOTES:]}
            case _:
                changes = {}
        return dataclasses.replace(self, **changes)

    @property
    def share(self) -> float:
        """Of everything, from 0 to 1."""
        if not self.points or not self.point:
            return 0.0
        here = self.done / len(self.sizes) if self.sizes else 0.0
        return min(1.0, (self.point - 1 + here) / self.points)


def _place(event: Event) -> str:
    return f"{event['memory_mb']:,} MB ({event['vcpu']:.2f} vCPU)"


class MeasuringProgress(Protocol):
    def update(self, event: Event) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def measuring_progress(console: Console) -> MeasuringProgress:
    """A bar if `console` is a terminal, else a line for each memory size."""
    if console.is_terminal:
        return _Live(console)

    def write(line: str) -> None:
        console.file.write(f"{line}\n")
        console.file.flush()

    return _Plain(write)


class _Plain:
    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    def update(self, event: Event) -> None:
        line = _line(event)
        if line is not None:
            self._write(f"{event['t']:7.1f} s  {line}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


def _line(event: Event) -> str | None:
    match event["kind"]:
        case "profile_started":
            sizes = ", ".join(map(str, event["sizes"]))
            return f"measuring {event['job']} for {event['platform']}: micro-batches of {sizes}"
        case "profile_point":
            return f"{event['number']}/{event['total']}: {_place(event)}"
        case "note":
            level = event.get("level", "info")
            return str(event["text"]) if level == "info" else f"{level}: {event['text']}"
        case _:
            return None


class _Live:
    """Drawn again four times a second, since a long pass sends no event."""

    def __init__(self, console: Console) -> None:
        self._state = MeasuringState()
        self._began = time.monotonic()
        self._live = Live(console=console, get_renderable=self._drawn, refresh_per_second=4)

    def _drawn(self) -> RenderableType:
        return render_measuring(self._state, time.monotonic() - self._began)

    def update(self, event: Event) -> None:
        self._state = self._state.after(event)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()


def render_measuring(state: MeasuringState, seconds: float) -> RenderableType:
    parts: list[RenderableType] = [Text(note) for note in state.notes]
    if state.points:
        grid = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=1.0, completed=state.share, width=24)
        grid.add_row(bar, Text(f"{state.share:4.0%}  {state.place}"))
        parts.append(grid)
    parts.append(Text(f"{state.phase}, {seconds:.0f} s", style="dim"))
    return Group(*parts)
