"""What each stage of a plan does over a step, as one line of letters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from funcpipe.schedule.action import Kind, parse

if TYPE_CHECKING:
    from funcpipe.partitioner.spans import Span

__all__ = ["LEGEND", "picture"]

_LETTERS: Mapping[Kind, str] = {
    Kind.F: "F",
    Kind.B: "B",
    Kind.STEP: "U",
    Kind.SEND_P: "S",
    Kind.RECV_P: "S",
    Kind.SEND_S: "S",
    Kind.RECV_S: "S",
}
_COMPUTED = "FBU"
IDLE = "."
LEGEND = (
    "F forward, B backward, S synchronises, U updates weights, . waits; small letters: for less "
    "than half of that time"
)


def picture(spans: Iterable[Span], *, num_stages: int, total_s: float, width: int) -> list[str]:
    """A line of `width` letters for each stage: what its replica 0 does in each part of `total_s`.

    A letter is what took most of its part of the time; a small one if the function waited for most
    of it. Transfers of activations and gradients are left out: they run beside the rest.
    """
    busy: list[dict[str, list[float]]] = [{} for _ in range(num_stages)]
    for span in spans:
        letter = _LETTERS.get(parse(span.action).kind) if span.replica == 0 else None
        if letter is not None and total_s > 0:
            cells = busy[span.stage].setdefault(letter, [0.0] * width)
            _fill(cells, span.start_s / total_s * width, span.end_s / total_s * width)
    return ["".join(_letter(cells, at) for at in range(width)) for cells in busy]


def _fill(cells: list[float], start: float, end: float) -> None:
    """Add to each cell how much of it lies between `start` and `end`, counted in cells."""
    for at in range(max(0, int(start)), min(len(cells), int(end) + 1)):
        cells[at] += max(0.0, min(end, at + 1) - max(start, at))


def _letter(busy: Mapping[str, list[float]], at: int) -> str:
    shares = {letter: cells[at] for letter, cells in busy.items()}
    computed = sum(shares.get(letter, 0.0) for letter in _COMPUTED)
    # Both directions synchronise at once, and the processor may be busy beside them.
    if "S" in shares:
        shares["S"] = min(shares["S"], 1.0 - computed)
    letter = max(shares, key=lambda one: shares[one], default=IDLE)
    if shares.get(letter, 0.0) < _LEAST:
        return IDLE
    return letter if sum(shares.values()) >= 0.5 else letter.lower()


_LEAST = 0.05
