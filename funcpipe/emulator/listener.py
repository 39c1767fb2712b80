"""The host's one thread: hears what environments say and print, and keeps the time."""

from __future__ import annotations

import os
import selectors
import threading
from contextlib import AbstractContextManager
from typing import Any, Protocol

from funcpipe.emulator.environment import Environment

__all__ = ["Listener"]

_MOST_WAIT_S = 5.0


class Host(Protocol):
    """What a listener calls, under the lock."""

    def heard(self, environment: Environment) -> None:
        """Its process has written to its status pipe, or closed it."""

    def collect(self) -> None:
        """Processes have ended."""

    def tick(self) -> float:
        """Do what is due; real seconds until the next time."""


class Listener:
    """Waits on all pipes of all environments; `wake` makes it look at the time again."""

    def __init__(self, host: Host, lock: AbstractContextManager[Any], *, template: int) -> None:
        self._host = host
        self._lock = lock
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, "wake")
        self._selector.register(template, selectors.EVENT_READ, "template")
        self._closing = False
        self.failure: Exception | None = None
        """What ended the thread, though it should never end by itself."""
        self._thread = threading.Thread(target=self._run, name="funcpipe-host", daemon=True)
        self._thread.start()

    def add(self, one: Environment) -> None:
        self._selector.register(one.output_fd, selectors.EVENT_READ, one)
        self._selector.register(one.status_fd, selectors.EVENT_READ, one)

    def remove(self, one: Environment) -> None:
        for descriptor in (one.output_fd, one.status_fd):
            if descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)

    def wake(self) -> None:
        os.write(self._wake_write, b"!")

    def _run(self) -> None:
        try:
            self._listen()
        except Exception as error:  # noqa: BLE001 - told by the host to whoever asks next
            self.failure = error

    def _listen(self) -> None:
        wait_s = 0.0
        while not self._closing:
            ready = self._selector.select(min(max(wait_s, 0.0), _MOST_WAIT_S))
            with self._lock:
                for key, _ in ready:
                    self._serve(key)
                wait_s = self._host.tick()

    def _serve(self, key: selectors.SelectorKey) -> None:
        if key.data == "wake":
            os.read(self._wake_read, 1 << 12)
        elif key.data == "template":
            self._host.collect()
        elif self._selector.get_map().get(key.fd) != key:
            return  # it ended a moment ago
        elif key.fd == key.data.status_fd:
            self._host.heard(key.data)
            if key.data.status_closed:
                self._selector.unregister(key.fd)
        elif not key.data.drain():
            self._selector.unregister(key.fd)

    def close(self) -> None:
        self._closing = True
        self.wake()
        self._thread.join()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
