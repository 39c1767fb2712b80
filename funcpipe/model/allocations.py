"""What tensors take of memory while something runs, as torch's own allocator tells it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

__all__ = ["Phase", "Trace", "phases_of", "traced"]

_MARK = "funcpipe mark "


@dataclass(frozen=True, kw_only=True)
class Phase:
    """From one mark to the next: bytes held at most, and at its end, beside those before all.

    What is freed of that which was there before does not count.
    """

    name: str
    peak: int
    end: int


@dataclass
class Trace:
    """`phases` are there once the tracing is over."""

    phases: list[Phase] = field(default_factory=list)

    def mark(self, name: str) -> None:
        """A new phase of that name begins here."""
        with record_function(_MARK + name):
            pass


@contextmanager
def traced() -> Iterator[Trace]:
    """Every allocation in the block, those inside of torch's kernels too; made for one thread."""
    trace = Trace()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        yield trace
    results: Any = profiler.profiler
    tree = results.kineto_results.experimental_event_tree()
    trace.phases += phases_of(_told(tree))


def _told(tree: Any) -> Iterator[tuple[str, int, int]]:
    """In time: ("", address, bytes) for an allocation, negative ones freed; marks by name."""
    events = sorted(_walk(tree), key=lambda event: event.start_time_ns)
    for event in events:
        if event.name.startswith(_MARK):
            yield event.name.removeprefix(_MARK), 0, 0
        elif event.name == "[memory]":
            yield "", event.extra_fields.ptr, event.extra_fields.alloc_size


def _walk(tree: Any) -> Iterator[Any]:
    waiting = list(tree)
    while waiting:
        event = waiting.pop()
        yield event
        waiting += event.children


def phases_of(told: Iterable[tuple[str, int, int]]) -> Iterator[Phase]:
    """From marks ``(name, 0, 0)`` and changes ``("", address, bytes)``, in time.

    What comes before the first mark belongs to no phase.
    """
    held: dict[int, int] = {}
    name, live, peak = "", 0, 0
    for mark, address, num_bytes in told:
        if mark:
            if name:
                yield Phase(name=name, peak=peak, end=live)
            name, peak = mark, live
        elif num_bytes > 0:
            held[address] = num_bytes
            live += num_bytes
            peak = max(peak, live)
        else:
            live -= held.pop(address, 0)
    if name:
        yield Phase(name=name, peak=peak, end=live)
