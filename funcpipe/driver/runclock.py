"""The driver's clock: real seconds, and platform seconds while an emulated platform runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["RunClock"]


class RunClock:
    """Seconds of each phase of a run.

    While a platform is emulated `dilation` times slower than real time, the clock shows its time;
    ``wall`` is then what passed outside.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.phases: dict[str, float] = {}
        self._now = now
        self._began = self._since = now()
        self._before_s = 0.0
        self._dilation = 1.0
        self._first_step: float | None = None
        self._num_steps = 0

    def elapsed(self) -> float:
        return self._before_s + (self._now() - self._since) / self._dilation

    @contextmanager
    def slowed(self, dilation: float) -> Iterator[None]:
        self._set(dilation)
        try:
            yield
        finally:
            self._set(1.0)

    def _set(self, dilation: float) -> None:
        moment = self._now()
        self._before_s += (moment - self._since) / self._dilation
        self._since, self._dilation = moment, dilation

    def step_done(self) -> None:
        """The mean from the first step to this one: what came before it was starting up."""
        now = self.elapsed()
        if self._first_step is None:
            self._first_step = now
        else:
            self._num_steps += 1
            self.phases["step"] = (now - self._first_step) / self._num_steps

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = self.elapsed()
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + self.elapsed() - began

    def close(self) -> None:
        self.phases["total"] = self.elapsed()
        self.phases["wall"] = self._now() - self._began
