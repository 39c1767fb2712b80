"""Time as a platform has it that is emulated slower than real time."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

__all__ = ["REAL", "Clock"]


@dataclass(frozen=True)
class Clock:
    """Seconds of a platform, each of which takes `dilation` seconds of this machine.

    Everything inside an emulated platform (durations, waits, bandwidths, limits) is in these
    seconds. On a real platform, `REAL`, they are the same.
    """

    dilation: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.dilation < math.inf:
            raise ValueError(f"dilation must be above 0, found {self.dilation}")

    def now(self) -> float:
        """Monotonic; only differences mean something."""
        return time.monotonic() / self.dilation

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds * self.dilation)


REAL = Clock()
