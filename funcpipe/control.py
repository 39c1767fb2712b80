"""The run's control object: which attempt is current, and whether to go on.

It is a chain of immutable versions, each written if-absent under its number, so that two drivers
can never both write the same one and no reader ever sees a torn or a stale object. Whoever
knows version n looks for n + 1.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from funcpipe.errors import ObjectCorrupt, ObjectMissing, Stopped, Superseded
from funcpipe.keys import Run
from funcpipe.store.base import Buffer, ObjectStore

__all__ = ["Control", "Watch", "publish", "read_next"]

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Control:
    """One version. `state` is ``running`` or ``stop``; `reason` says why, for people."""

    version: int
    attempt: int
    state: str = "running"
    reason: str = ""

    def encode(self) -> bytes:
        return json.dumps({"format": FORMAT, **asdict(self)}).encode()

    @staticmethod
    def decode(data: Buffer) -> Control:
        try:
            fields: dict[str, Any] = json.loads(bytes(data))
            if fields.pop("format") != FORMAT:
                raise ValueError("unknown format")
            return Control(**fields)
        except (ValueError, TypeError, KeyError) as error:
            raise ObjectCorrupt(f"the control object is not readable: {error}") from error

    def next(self, **changes: Any) -> Control:
        return replace(self, version=self.version + 1, **changes)


def publish(store: ObjectStore, run: Run, control: Control) -> None:
    """Write a version; `ObjectExists` if another driver was faster."""
    store.put(run.control(control.version), control.encode(), if_absent=True)


def read_next(store: ObjectStore, run: Run, known: Control) -> Control | None:
    """The version after `known`, or None if there is none yet: one GET."""
    try:
        return Control.decode(store.get(run.control(known.version + 1)))
    except ObjectMissing:
        return None


class Watch:
    """A worker's eye on the control object: looks at most once in `every_s`, whoever asks.

    Safe to call from several threads. Calling it raises `Stopped` once the run was stopped and
    `Superseded` once another attempt is current; every caller is told, not the first one alone.
    `every_s` is in seconds of `clock`.
    """

    def __init__(
        self,
        store: ObjectStore,
        run: Run,
        known: Control,
        *,
        every_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._run = run
        self._known = known
        self._every_s = every_s
        self._clock = clock
        self._due_s = clock() + every_s
        self._lock = threading.Lock()
        self._over: Callable[[], Stopped | Superseded] | None = None

    def __call__(self) -> None:
        if self._over is None and self._is_due():
            self._look()
        if self._over is not None:
            raise self._over()

    def _look(self) -> None:
        newer = read_next(self._store, self._run, self._known)
        if newer is None:
            return
        if newer.attempt != self._known.attempt:
            text = f"attempt {newer.attempt} has replaced {self._known.attempt}"
            self._over = partial(Superseded, text)
        elif newer.state != "running":
            self._over = partial(Stopped, f"the run was stopped: {newer.reason}")
        self._known = newer

    def _is_due(self) -> bool:
        with self._lock:
            due = self._clock() >= self._due_s
            if due:
                self._due_s = self._clock() + self._every_s
            return due
