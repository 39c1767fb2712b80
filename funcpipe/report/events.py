"""The events of a run, as JSON lines in its folder.

Every event has ``kind`` and ``t`` (seconds since the run started). What else it has::

    run_started      run_id, job, platform, store
    plan             plan (as its JSON)
    store_ready      store, if_absent
    function_started stage, replica
    step             step (steps done, from 1), total, loss, seconds, alive,
                     requests (so far, if known); and if the platform has prices, dollars so far,
                     and these by_cause and by_name (function, driver or store): what a step cost is
                     the difference to the event before it
    evaluation       step, metrics
    function_ended   stage, replica, code
    note             text, level ("info" or "warning")
    run_ended        status ("done", "failed" or "stopped")

What an emulated platform adds; its durations are platform seconds::

    emulator         platform, title, dilation (real seconds that a platform second takes) and why,
                     enforced and missing (limits that this machine enforces and does not)
    delivery         one execution of an invocation has ended: name ("stage0-replica1"), id of the
                     invocation, delivery (1 for its first), memory_mb, cold, init_ms (0 if warm),
                     run_ms, reason (how it ended), requests (operation -> number, as a metered
                     store counts), bytes_up, bytes_down
    throttled        name, waited_s: the platform had no room for the function until then
    bill             what a bill has beside deliveries: driver_requests, driver_bytes_up,
                     driver_bytes_down, stored_byte_s (bytes in the store, summed over the seconds
                     that they lay there); and dollars, its total. The last one is the run's

The run's bill follows from these events and the platform's prices alone: every `delivery` and the
last `bill`, see `funcpipe.partitioner.pricing`.

Readers pass over kinds and fields that they do not know.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from funcpipe.errors import FuncpipeError
from funcpipe.report.plain import jsonable

__all__ = ["KINDS", "Event", "EventLog", "read_events"]

Event: TypeAlias = Mapping[str, Any]

KINDS = frozenset(
    {
        "run_started",
        "plan",
        "store_ready",
        "function_started",
        "step",
        "evaluation",
        "function_ended",
        "note",
        "run_ended",
        "emulator",
        "delivery",
        "throttled",
        "bill",
    }
)


class EventLog:
    """Appends events to the file at `path`, one line each, flushed one by one; thread-safe.

    `secrets` never reach the file (see `funcpipe.report.plain.jsonable`). An existing file is
    carried on with; a last line that was cut short is dropped from it first.
    """

    def __init__(self, path: Path, *, secrets: Iterable[str] = ()) -> None:
        self.path = path
        self._secrets = tuple(secrets)
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        _mend(path)
        self._file = path.open("ab", buffering=0)

    def append(self, event: Event) -> bool:
        """Write `event`; False, and nothing written, once the log is closed.

        Raises ValueError for an event without a known kind or without its time.
        """
        if event.get("kind") not in KINDS or not isinstance(event.get("t"), int | float):
            raise ValueError(f"an event needs a kind of {sorted(KINDS)} and a time t: {event!r}")
        data = jsonable(event, secrets=self._secrets)
        line = json.dumps(data, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            if self._file.closed:
                return False
            _write_all(self._file.fileno(), line)
            return True

    def close(self) -> None:
        """Closing twice is no error."""
        with self._lock:
            self._file.close()

    def __enter__(self) -> EventLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_events(path: Path) -> list[dict[str, Any]]:
    """The events of a log, also while it is being written: a torn last line is passed over.

    Raises FuncpipeError if there is no such log or another line is damaged.
    """
    try:
        *lines, tail = path.read_bytes().split(b"\n")
    except OSError as error:
        raise FuncpipeError(
            f"cannot read the events of a run from {path}: {error.strerror}; "
            "expected the events file in a run's folder"
        ) from error
    events = []
    for number, line in enumerate(lines, start=1):
        event = _parse(line)
        if event is None:
            raise FuncpipeError(f"line {number} of {path} is not an event; found {line[:80]!r}")
        events.append(event)
    last = _parse(tail)
    return events if last is None else [*events, last]


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "kind" in event else None


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _mend(path: Path) -> None:
    """Make the file end with a whole line."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole == len(data):
        return
    with path.open("r+b") as file:
        if _parse(data[whole:]) is None:
            file.truncate(whole)
        else:
            file.seek(0, os.SEEK_END)
            file.write(b"\n")
