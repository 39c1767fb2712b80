"""What a run has cost so far, and in the end: from what its host and its stores count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from funcpipe.driver.host import Execution, FunctionHost
from funcpipe.partitioner.platform import PlatformSpec
from funcpipe.partitioner.pricing import Bill, bill
from funcpipe.store.usage import OPERATIONS, Usage

__all__ = ["Account"]

Tell = Callable[[str, Mapping[str, Any]], None]


class Account:
    """The bill of one run on `platform`. now: the run's clock, in platform seconds.

    driver: what the driver itself has asked of the store. It sits outside the cloud, so that what
    it reads crosses the internet.
    """

    def __init__(
        self,
        platform: PlatformSpec,
        host: FunctionHost,
        *,
        driver: Callable[[], Usage],
        now: Callable[[], float],
    ) -> None:
        self._platform = platform
        self._host = host
        self._driver = driver
        self._now = now
        self.cold_starts: Counter[str] = Counter()
        self.late_s = 0.0
        """What the slowest start took longer than the platform's, in platform seconds."""
        self._looked_s = now()
        self._stored_bytes = 0
        self._stored_byte_s = 0.0

    @property
    def has_prices(self) -> bool:
        return self._platform.limited

    def bill(self) -> Bill:
        """Up to now."""
        self._look()
        usage = self._driver()
        return bill(
            self._platform,
            self._host.uses(),
            driver_requests=by_operation(usage),
            driver_bytes_up=sum(usage.bytes_up.values()),
            driver_bytes_down=sum(usage.bytes_down.values()),
            stored_byte_s=self._stored_byte_s,
        )

    def tell_ended(self, tell: Tell) -> None:
        """One event for each delivery that has ended since the last call."""
        for one in self._host.executions():
            self.cold_starts[one.use.name] += one.cold
            self.late_s = max(self.late_s, one.late_s if one.cold else 0.0)
            tell("delivery", delivery_event(one))

    def close(self, tell: Tell) -> Bill:
        """The final bill, told with all that it is made of if there are prices."""
        self.tell_ended(tell)
        final = self.bill()
        if not self.has_prices:
            return final
        usage = self._driver()
        tell(
            "bill",
            {
                "driver_requests": by_operation(usage),
                "driver_bytes_up": sum(usage.bytes_up.values()),
                "driver_bytes_down": sum(usage.bytes_down.values()),
                "stored_byte_s": self._stored_byte_s,
                "dollars": final.total,
            },
        )
        return final

    def _look(self) -> None:
        """Storage is billed by bytes and time: the mean of two looks for the time between them."""
        usage, now = self._driver(), self._now()
        stored = self._host.stored_bytes() + stored_bytes(usage)
        self._stored_byte_s += (now - self._looked_s) * max(0, self._stored_bytes + stored) / 2
        self._looked_s, self._stored_bytes = now, stored


def by_operation(usage: Usage) -> dict[str, int]:
    """Requests by operation, those that were made."""
    counts = {operation: usage.total(operation) for operation in OPERATIONS}
    return {operation: count for operation, count in counts.items() if count}


def stored_bytes(usage: Usage) -> int:
    """What was put and not deleted by the same hand."""
    return sum(usage.bytes_up.values()) - sum(usage.deleted_bytes.values())


def delivery_event(one: Execution) -> dict[str, Any]:
    use = one.use
    return {
        "name": use.name,
        "id": one.invocation,
        "delivery": one.number,
        "memory_mb": use.memory_mb,
        "cold": one.cold,
        "init_ms": use.init_ms,
        "run_ms": use.run_ms,
        "reason": one.reason,
        "requests": dict(use.requests),
        "bytes_up": use.bytes_up,
        "bytes_down": use.bytes_down,
    }
