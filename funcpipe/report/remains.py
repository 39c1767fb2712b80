"""What the events of a run tell when it left no summary: it still goes on, or its driver died."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from funcpipe.report.events import Event
from funcpipe.report.progress import PlainProgress, ProgressState

__all__ = ["remains", "remains_text"]

WHY = (
    "no summary.json there: the run is still going on, or its driver was killed. "
    "Its events.jsonl says:"
)


def remains(events: Sequence[Event]) -> dict[str, Any]:
    """JSON-ready: the fields of a summary as far as they are known; `status` is "unknown" unless
    the run said how it ended.
    """
    told: dict[str, Any] = {}
    losses, state = [], ProgressState()
    for event in events:
        state = state.after(event)
        if event["kind"] in ("run_started", "plan"):
            told |= {name: value for name, value in event.items() if name not in ("kind", "t")}
        elif event["kind"] == "step":
            losses.append(event.get("loss"))
        elif event["kind"] == "run_ended":
            told["status"] = event["status"]
    return {
        "from": "events.jsonl",
        "status": "unknown",
        **told,
        "steps": state.step,
        "total_steps": told.get("steps"),
        "losses": losses,
        "metrics": dict(state.metrics),
        "notes": [text for _, text in state.notes],
        "seconds": {"total": state.t},
    }


def remains_text(events: Sequence[Event]) -> str:
    """The lines that the run showed, and the last step that it told of."""
    lines: list[str] = []
    steps = [event for event in events if event["kind"] == "step"]
    shown = PlainProgress(lines.append, every_steps=max(1, len(steps)))
    for event in events:
        if event["kind"] != "step" or event is steps[0] or event is steps[-1]:
            shown.update(event)
    if not lines:
        lines.append("nothing: the run died before it began")
    return "\n".join(lines) + "\n"
