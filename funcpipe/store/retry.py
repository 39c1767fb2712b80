"""Trying again what a second try can mend."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TypeVar

from funcpipe.errors import ObjectExists, ObjectMissing, StoreUnavailable
from funcpipe.store.base import DELETE_BATCH_KEYS, Data, Pace, PacedStore
from funcpipe.store.buffers import batches, check_key, check_prefix, equal
from funcpipe.store.wait import wait_for

__all__ = ["RetryPolicy", "Retrying"]

T = TypeVar("T")

# Not the global generator: the user's model draws from it, seeded, while other lanes retry.
_jitter = random.Random().random  # noqa: S311 - it spreads load, it keeps no secret


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """At most `tries` tries of an operation; none begins later than `limit_s` after the first.

    Before try n + 1 it pauses between half and all of ``min(cap_s, first_s * factor ** (n - 1))``.
    """

    tries: int = 6
    limit_s: float = 30.0
    first_s: float = 0.1
    factor: float = 2.0
    cap_s: float = 5.0

    def __post_init__(self) -> None:
        if self.tries < 1:
            raise ValueError(f"tries must be 1 or more (1: no retry), found {self.tries}")
        if not (0 < self.first_s <= self.cap_s and self.factor >= 1 and self.limit_s >= 0):
            raise ValueError(
                f"needed: 0 < first_s <= cap_s, factor >= 1 and limit_s >= 0; found {self}"
            )

    def pause_s(self, failures: int, share: float) -> float:
        """Seconds to pause after that many failures; `share` in [0, 1) is the jitter."""
        full_s = min(self.cap_s, self.first_s * self.factor ** (failures - 1))
        return full_s * (0.5 + 0.5 * share)


class Retrying:
    """Retries `StoreUnavailable` (throttled, 5xx, refused or broken connections, short bodies).

    Everything else is the caller's to handle and passes through. When a put with `if_absent`
    fails after its first answer was lost, the object found may be one's own: it is read back, and
    counts as put if its bytes are the same. So let what must have one winner carry a token.
    """

    def __init__(
        self,
        store: PacedStore,
        policy: RetryPolicy = RetryPolicy(),
        *,
        rng: Callable[[], float] = _jitter,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._policy = policy
        self._rng = rng
        self._clock = clock
        self._sleep = sleep
        self._lock = Lock()
        self._num_retries = 0

    @property
    def num_retries(self) -> int:
        """Tries beyond the first, over all operations so far."""
        with self._lock:
            return self._num_retries

    def put(
        self, key: str, data: Data, *, if_absent: bool = False, pace: Pace | None = None
    ) -> None:
        check_key(key)
        tried = False

        def attempt() -> None:
            nonlocal tried
            again, tried = tried, True
            try:
                self._store.put(key, data, if_absent=if_absent, pace=pace)
            except ObjectExists:
                if not (again and self._holds(key, data)):
                    raise

        self._persist(attempt)

    def get(
        self, key: str, *, start: int = 0, stop: int | None = None, pace: Pace | None = None
    ) -> memoryview:
        check_key(key)
        return self._persist(lambda: self._store.get(key, start=start, stop=stop, pace=pace))

    def wait(self, key: str, *, deadline_s: float) -> memoryview:
        return wait_for(self, key, deadline_s=deadline_s).data

    def delete(self, keys: Iterable[str]) -> None:
        for batch in batches([check_key(key) for key in keys], DELETE_BATCH_KEYS):
            self._delete_batch(batch)

    def list(self, prefix: str) -> Iterator[str]:
        check_prefix(prefix)
        return self._listed(prefix)

    def close(self) -> None:
        self._store.close()

    def _delete_batch(self, batch: Sequence[str]) -> None:
        self._persist(lambda: self._store.delete(batch))

    def _listed(self, prefix: str) -> Iterator[str]:
        """Keys by key, so that the caller's work is not part of a try; a new try skips the seen."""
        seen: set[str] = set()
        source = self._store.list(prefix)

        def advance() -> str | None:
            nonlocal source
            try:
                return next((key for key in source if key not in seen), None)
            except StoreUnavailable:
                source = self._store.list(prefix)
                raise

        while (key := self._persist(advance)) is not None:
            seen.add(key)
            yield key

    def _holds(self, key: str, data: Data) -> bool:
        try:
            return equal(data, self._store.get(key))
        except ObjectMissing:
            return False

    def _persist(self, attempt: Callable[[], T]) -> T:
        begin_s = self._clock()
        failures = 0
        while True:
            try:
                return attempt()
            except StoreUnavailable as error:
                failures += 1
                pause_s = self._policy.pause_s(failures, self._rng())
                spent_s = self._clock() - begin_s
                if failures >= self._policy.tries or spent_s + pause_s > self._policy.limit_s:
                    raise StoreUnavailable(
                        f"{error.message} (tried {failures} times in {spent_s:.1f} s)"
                    ) from error
            self._sleep(pause_s)
            with self._lock:
                self._num_retries += 1
