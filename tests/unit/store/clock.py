"""A clock that moves only when somebody sleeps or a test says so."""

from __future__ import annotations


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 1000.0
        self.sleeps: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(round(seconds, 9))
        self.now_s += seconds

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
