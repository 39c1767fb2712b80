"""An emulated network between a worker and its store: bandwidth each way, and latency.

Every moment is absolute: a request's first byte passes no earlier than its latency after the
call, and each further byte at the link's rate after that, whatever the real transfer does in the
meantime. So the real time runs inside the emulated time and is not added to it; where the real
store is the slower one, the link lets the bytes catch up.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from funcpipe.clock import Clock
from funcpipe.errors import StoreError
from funcpipe.store.base import DELETE_BATCH_KEYS, Data, Pace, PacedStore
from funcpipe.store.buffers import batches, check_key, check_prefix, total_bytes
from funcpipe.store.wait import wait_for

__all__ = ["Link", "LinkSpec", "Shaped"]

_CHUNK_S = 0.005  # how finely concurrent transfers share a direction
_LEAST_CHUNK_BYTES = 16 << 10
_MOST_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class LinkSpec:
    """What a `Link` is like, as plain data. Raises `ValueError` for what cannot be."""

    up_bytes_per_s: float | None = None
    down_bytes_per_s: float | None = None
    latency_s: float = 0.0
    burst_bytes: int = 0
    burst_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("up_bytes_per_s", "down_bytes_per_s", "burst_bytes_per_s"):
            rate = getattr(self, name)
            if rate is not None and not 0 < rate < math.inf:
                raise ValueError(f"{name} must be above 0, or None for no limit; found {rate}")
        if not (0 <= self.latency_s < math.inf and 0 <= self.burst_bytes < math.inf):
            raise ValueError(
                "latency_s and burst_bytes must be 0 or more, "
                f"found latency_s={self.latency_s}, burst_bytes={self.burst_bytes}"
            )

    def open(self, clock: Clock) -> Link:
        """Such a link, whose seconds are those of `clock`."""
        return Link(**asdict(self), clock=clock.now, sleep=clock.sleep)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> LinkSpec:
        return LinkSpec(**data)


class Link:
    """One worker's connection, shared by all stores and threads that should compete for it.

    Each direction is a token bucket: `up_bytes_per_s` and `down_bytes_per_s` (None: not limited)
    with `burst_bytes` that pass after a rest, at `burst_bytes_per_s` (None: at once). A direction
    that is faster than that has no burst. `latency_s` is spent once per request.
    """

    def __init__(
        self,
        *,
        up_bytes_per_s: float | None = None,
        down_bytes_per_s: float | None = None,
        latency_s: float = 0.0,
        burst_bytes: int = 0,
        burst_bytes_per_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        LinkSpec(
            up_bytes_per_s=up_bytes_per_s,
            down_bytes_per_s=down_bytes_per_s,
            latency_s=latency_s,
            burst_bytes=burst_bytes,
            burst_bytes_per_s=burst_bytes_per_s,
        )
        self.latency_s = latency_s
        self._up = _Direction(up_bytes_per_s, burst_bytes, burst_bytes_per_s)
        self._down = _Direction(down_bytes_per_s, burst_bytes, burst_bytes_per_s)
        self._clock = clock
        self._sleep = sleep
        self._tails = _Tails(latency_s)
        self._lock = threading.Lock()
        self.taken_s = self.late_s = 0.0
        """What requests should have taken so far, and what they took longer than that."""

    def upload(self, num_bytes: int = 0) -> _Passage:
        """The passage of a request that begins now and sends bytes."""
        return _Passage(self, self._up, lead_s=self._tails.expected_s(num_bytes))

    def uploaded(self, passage: _Passage, num_bytes: int) -> None:
        """A put has returned: how long the store took after its last byte."""
        self._tails.learn(num_bytes, passage.behind_s())

    def done(self, taken_s: float, late_s: float) -> None:
        with self._lock:
            self.taken_s += taken_s
            self.late_s += max(0.0, late_s)

    def download(self) -> _Passage:
        """The passage of a request that begins now and receives bytes."""
        return _Passage(self, self._down)

    def now_s(self) -> float:
        return self._clock()

    def sleep_until(self, moment_s: float) -> None:
        left_s = moment_s - self._clock()
        if left_s > 0:
            self._sleep(left_s)

    def wait_for(self, store: PacedStore, key: str, deadline_s: float) -> memoryview:
        """`ObjectStore.wait` in this link's seconds."""
        arrival = wait_for(store, key, deadline_s=deadline_s, clock=self._clock, sleep=self._sleep)
        return arrival.data


class _Direction:
    """A token bucket, kept as the moment at which all bytes granted so far have passed.

    With a rate for bursts, a second bucket of that rate, which holds no burst, is in series.
    """

    def __init__(
        self, bytes_per_s: float | None, burst_bytes: int, burst_bytes_per_s: float | None
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._burst_s = burst_bytes / bytes_per_s if bytes_per_s else 0.0
        self._passed_s = -math.inf
        self._burst_bytes_per_s = burst_bytes_per_s and max(burst_bytes_per_s, bytes_per_s or 0)
        self._burst_passed_s = -math.inf
        self._lock = threading.Lock()

    @property
    def chunk_bytes(self) -> int:
        if self._bytes_per_s is None:
            return _MOST_CHUNK_BYTES
        fine = int(self._bytes_per_s * _CHUNK_S)
        return min(max(fine, _LEAST_CHUNK_BYTES), _MOST_CHUNK_BYTES)

    def grant(self, num_bytes: int, ready_s: float) -> float:
        """When `num_bytes` that were ready to go at `ready_s` have passed."""
        if self._bytes_per_s is None:
            return ready_s
        with self._lock:
            begin_s = max(self._passed_s, ready_s - self._burst_s)
            self._passed_s = begin_s + num_bytes / self._bytes_per_s
            if self._burst_bytes_per_s is None:
                return self._passed_s
            begin_s = max(self._burst_passed_s, ready_s)
            self._burst_passed_s = begin_s + num_bytes / self._burst_bytes_per_s
            return max(self._passed_s, self._burst_passed_s)


class _Tails:
    """How long the real store takes to make an object of a put's bytes, by their magnitude.

    The emulated store takes its latency for that, and the real one's time must lie inside it: a
    put's bytes go ahead by what puts of that size took before, so that its object appears when it
    should, and not later.
    """

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._learned: dict[int, float] = {}
        self._lock = threading.Lock()

    def expected_s(self, num_bytes: int) -> float:
        with self._lock:
            return min(self._learned.get(num_bytes.bit_length(), 0.0), self._most_s)

    def learn(self, num_bytes: int, seconds: float) -> None:
        magnitude = num_bytes.bit_length()
        with self._lock:
            known = self._learned.get(magnitude)
            seconds = max(0.0, seconds)
            self._learned[magnitude] = seconds if known is None else (known + seconds) / 2


class _Passage:
    """The `Pace` of one request.

    A chunk is ready when the one before it has passed, not when the real transfer has come to
    it: that is what keeps real time from adding to emulated time. All of it goes ahead by `lead_s`
    (at most the latency), which `settle` makes up for at the end.
    """

    def __init__(self, link: Link, direction: _Direction, *, lead_s: float = 0.0) -> None:
        self._link = link
        self._direction = direction
        self._lead_s = lead_s
        self._began_s = link.now_s()
        self._first_s = self._began_s + link.latency_s - lead_s
        self._ready_s = self._first_s
        self.chunk_bytes = direction.chunk_bytes

    def __call__(self, num_bytes: int) -> None:
        if self._ready_s == self._first_s:
            # Granting bytes ahead of the latency would idle the link for others.
            self._link.sleep_until(self._first_s)
        passed_s = self._direction.grant(num_bytes, self._ready_s)
        self._link.sleep_until(passed_s)
        self._ready_s = max(passed_s, self._ready_s)

    def behind_s(self) -> float:
        """How long ago the last byte has passed."""
        return self._link.now_s() - self._ready_s

    def settle(self) -> None:
        """Return once the request is over; one without a body takes the latency."""
        end_s = self._ready_s + self._lead_s
        self._link.done(end_s - self._began_s, self._link.now_s() - end_s)
        self._link.sleep_until(end_s)


class _Both:
    """A link behind a link."""

    def __init__(self, outer: Pace, inner: Pace) -> None:
        self._outer = outer
        self._inner = inner
        self.chunk_bytes = min(outer.chunk_bytes, inner.chunk_bytes)

    def __call__(self, num_bytes: int) -> None:
        self._outer(num_bytes)
        self._inner(num_bytes)


class Shaped:
    """A store at the other end of `link`.

    A put's object appears after its last byte has passed; a get returns then. Deletes and
    listings take the latency per request of 1,000 keys.
    """

    def __init__(self, store: PacedStore, link: Link) -> None:
        self._store = store
        self._link = link

    def put(
        self, key: str, data: Data, *, if_absent: bool = False, pace: Pace | None = None
    ) -> None:
        check_key(key)
        num_bytes = total_bytes(data)
        passage = self._link.upload(num_bytes)
        both = passage if pace is None else _Both(pace, passage)
        try:
            self._store.put(key, data, if_absent=if_absent, pace=both)
        except StoreError:
            passage.settle()
            raise
        self._link.uploaded(passage, num_bytes)
        passage.settle()

    def get(
        self, key: str, *, start: int = 0, stop: int | None = None, pace: Pace | None = None
    ) -> memoryview:
        check_key(key)
        passage = self._link.download()
        both = passage if pace is None else _Both(pace, passage)
        try:
            body = self._store.get(key, start=start, stop=stop, pace=both)
        except StoreError:
            passage.settle()
            raise
        passage.settle()
        return body

    def wait(self, key: str, *, deadline_s: float) -> memoryview:
        return self._link.wait_for(self, key, deadline_s)

    def delete(self, keys: Iterable[str]) -> None:
        for batch in batches([check_key(key) for key in keys], DELETE_BATCH_KEYS):
            passage = self._link.upload()
            self._store.delete(batch)
            passage.settle()

    def list(self, prefix: str) -> Iterator[str]:
        check_prefix(prefix)
        return self._listed(prefix)

    def _listed(self, prefix: str) -> Iterator[str]:
        passage = self._link.download()
        for index, key in enumerate(self._store.list(prefix)):
            if index and index % DELETE_BATCH_KEYS == 0:
                passage = self._link.download()
            if index % DELETE_BATCH_KEYS == 0:
                passage.settle()
            yield key
        passage.settle()

    def close(self) -> None:
        self._store.close()
