"""SIGINT, SIGTERM and SIGHUP end a run in order, whatever it is doing."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from funcpipe.errors import Stopped

__all__ = ["Signals"]


class Signals:
    """In the ``with`` block, what a signal does depends on what the main thread is at.

    * In `breaking_in` the first one raises `Stopped` there and then.
    * In `left_to_the_loop` the first one sets `interrupted`, and the loop ends the run; a second
      one raises, since the loop may be waiting for a store that does not answer.
    * Elsewhere, as when everything is given back, it only sets `interrupted`.
    """

    def __init__(self) -> None:
        self.interrupted = threading.Event()
        self._breaking = False
        self._patience = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
                # Inherited from a daemon, it would hide how functions and servers end.
                self._previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is signal.SIG_IGN:
                    continue  # as under nohup
                self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def breaking_in(self) -> Iterator[None]:
        self._breaking = True
        try:
            if self.interrupted.is_set():
                raise Stopped("interrupted")
            yield
        finally:
            self._breaking = False

    @contextmanager
    def left_to_the_loop(self) -> Iterator[None]:
        """Within `breaking_in`. A signal that the loop did not come to see raises at its end."""
        self._patience = 1
        try:
            yield
        finally:
            self._patience = 0
        if self.interrupted.is_set():
            raise Stopped("interrupted")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within `breaking_in`, in the main thread: a signal waits, and raises at the end."""
        breaking, self._breaking = self._breaking, False
        try:
            yield
        finally:
            self._breaking = breaking
        if breaking and self.interrupted.is_set():
            self._breaking = False
            raise Stopped("interrupted")

    def _receive(self, number: int, _: object) -> None:
        self.interrupted.set()
        if not self._breaking:
            return
        if self._patience:
            self._patience -= 1
            return
        self._breaking = False  # once: what it breaks into gives everything back
        raise Stopped(f"interrupted by {signal.Signals(number).name}")
