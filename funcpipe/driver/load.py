"""Whether this machine had enough CPU time for what ran on it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["Load"]

_EVERY_S = 0.5
_FULL = 0.03  # of the time idle, or less: somebody waited


class Load:
    """Looks now and then, when it is asked to, how idle all CPUs have been since the last look.

    Functions get their share of CPU time only if there is some: on a machine that has none to
    spare, they are slower than their platform's. `full_share` is the share of looks without any.
    """

    def __init__(
        self,
        read: Callable[[], tuple[float, float]] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read_cpu_time if read is None else read
        self._now = now
        self._looked_s = now()
        self._last = self._read()
        self._looks = self._full = 0

    def look(self) -> None:
        """Cheap, and at most twice a second."""
        if self._now() - self._looked_s < _EVERY_S:
            return
        self._looked_s = self._now()
        idle, total = self._read()
        passed = total - self._last[1]
        if passed > 0:
            self._looks += 1
            self._full += (idle - self._last[0]) / passed <= _FULL
        self._last = (idle, total)

    @property
    def full_share(self) -> float:
        return self._full / self._looks if self._looks else 0.0


def read_cpu_time() -> tuple[float, float]:
    """Idle and all time of all CPUs so far, in the kernel's ticks."""
    fields = [float(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return fields[3] + fields[4], sum(fields[:8])
