"""What the deliveries of an emulated platform have used: what is billed for them."""

from __future__ import annotations

from collections.abc import Callable

from funcpipe.driver.host import Execution
from funcpipe.emulator.life import Delivery, Life
from funcpipe.partitioner.pricing import Use
from funcpipe.store.usage import OPERATIONS, Usage

__all__ = ["Books"]


class Books:
    """running: what a delivery that has begun and not ended has asked of the store up to now."""

    def __init__(self, life: Life, running: Callable[[Delivery], Usage]) -> None:
        self._life = life
        self._running = running
        self._ended: dict[int, Usage] = {}
        self._executions: list[Execution] = []

    def close(self, delivery: Delivery, now: float) -> None:
        """A delivery has ended, in an environment that is still there."""
        began = delivery.began_s is not None
        self._ended[delivery.number] = self._running(delivery) if began else Usage()
        self._executions.append(
            Execution(
                invocation=delivery.invocation,
                number=delivery.attempt,
                environment=delivery.environment,
                cold=delivery.cold,
                late_s=delivery.late_s,
                reason=delivery.reason or "stopped",
                use=self._use(delivery, now),
            )
        )

    def executions(self) -> list[Execution]:
        """Those that ended since the last call."""
        told, self._executions = self._executions, []
        return told

    def uses(self, now: float) -> list[Use]:
        return [self._use(delivery, now) for delivery in self._life.deliveries]

    def stored_bytes(self) -> int:
        usages = [self._usage(delivery) for delivery in self._life.deliveries]
        up = sum(sum(usage.bytes_up.values()) for usage in usages)
        return up - sum(sum(usage.deleted_bytes.values()) for usage in usages)

    def _usage(self, delivery: Delivery) -> Usage:
        ended = self._ended.get(delivery.number)
        if ended is not None or delivery.began_s is None:
            return ended or Usage()
        return self._running(delivery)

    def _use(self, delivery: Delivery, now: float) -> Use:
        usage = self._usage(delivery)
        return Use(
            name=delivery.name,
            memory_mb=delivery.memory_mb,
            init_ms=delivery.init_ms(now),
            run_ms=delivery.run_ms(now, self._life.limit_s),
            requests={name: usage.total(name) for name in OPERATIONS if usage.total(name)},
            bytes_up=sum(usage.bytes_up.values()),
            bytes_down=sum(usage.bytes_down.values()),
        )
