"""What a worker did when: one record per action, bounded, and what follows from it."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from funcpipe.clock import REAL, Clock
from funcpipe.schedule.execute import Start
from funcpipe.worker.tasks import Cost

__all__ = ["Record", "Timeline"]

KEPT = 20_000


@dataclass(frozen=True, slots=True)
class Record:
    """Seconds since the timeline began; user, transfer and wait lie between start and end.

    misses: looks in vain for the object that was waited for.
    """

    pass_index: int
    token: str
    start_s: float
    end_s: float
    user_s: float
    transfer_s: float
    wait_s: float
    misses: int

    def row(self) -> list[Any]:
        """Pass, token, start, end, user, transfer, wait, misses; for JSON, to the microsecond."""
        times = (self.start_s, self.end_s, self.user_s, self.transfer_s, self.wait_s)
        return [self.pass_index, self.token, *(round(t, 6) for t in times), self.misses]


class Timeline:
    """Records of the last `KEPT` actions, and sums over all of them. Safe from several threads.

    Seconds are those of `clock`, but `began_at` is this machine's time of day.
    """

    def __init__(self, clock: Clock = REAL) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self.began_at = time.time()
        self._zero = clock.now()
        self._records: deque[Record] = deque(maxlen=KEPT)
        self.user_s = self.transfer_s = self.wait_s = 0.0

    def now(self) -> float:
        return self._clock.now() - self._zero

    def add(self, start: Start, began: float, ended: float, cost: Cost) -> None:
        record = Record(
            start.pass_index,
            str(start.action),
            began,
            ended,
            cost.user_s,
            cost.transfer_s,
            cost.wait_s,
            cost.misses,
        )
        with self._lock:
            self._records.append(record)
            self.user_s += cost.user_s
            self.transfer_s += cost.transfer_s
            self.wait_s += cost.wait_s

    def rows(self) -> list[list[Any]]:
        with self._lock:
            return [record.row() for record in self._records]
