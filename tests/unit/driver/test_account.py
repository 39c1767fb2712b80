"""The driver's account of a run: what it tells is what the bill is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from funcpipe.driver.account import Account
from funcpipe.driver.host import Execution
from funcpipe.partitioner.platform import load_platform
from funcpipe.partitioner.pricing import Use, bill
from funcpipe.store.meter import Usage

USE = Use(
    name="stage0-replica0",
    memory_mb=1769,
    init_ms=4000,
    run_ms=1000,
    requests={"PUT": 3, "GET_MISSED": 2},
    bytes_up=1000,
    bytes_down=500,
)
DRIVER = Usage(
    requests={("PUT", "bundle"): 1, ("GET", "final"): 2},
    bytes_up={"bundle": 4000},
    bytes_down={"final": 7000},
)


class Host:
    """Only what an account asks of a host."""

    def __init__(self) -> None:
        self.stored = 0
        self.ended: list[Execution] = []
        self.used = [USE]

    def uses(self) -> list[Use]:
        return self.used

    def stored_bytes(self) -> int:
        return self.stored

    def executions(self) -> list[Execution]:
        told, self.ended = self.ended, []
        return told


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def told() -> list[tuple[str, Mapping[str, Any]]]:
    return []


def test_storage_is_bytes_times_platform_seconds_between_looks(
    told: list[tuple[str, Mapping[str, Any]]],
) -> None:
    host, clock, platform = Host(), Clock(), load_platform("aws-lambda")
    account = Account(platform, host, driver=lambda: DRIVER, now=clock)  # type: ignore[arg-type]

    clock.now, host.stored = 10.0, 6000
    account.bill()  # 0 before, 10,000 now: a mean of 5,000 for 10 s
    clock.now, host.stored = 14.0, -2000  # readers have deleted what others put
    final = account.close(lambda kind, fields: told.append((kind, fields)))

    assert told == [
        (
            "bill",
            {
                "driver_requests": {"PUT": 1, "GET": 2},
                "driver_bytes_up": 4000,
                "driver_bytes_down": 7000,
                "stored_byte_s": 50_000.0 + 4.0 * (10_000 + 2000) / 2,
                "dollars": final.total,
            },
        )
    ]
    expected = bill(
        platform,
        [USE],
        driver_requests={"PUT": 1, "GET": 2},
        driver_bytes_up=4000,
        driver_bytes_down=7000,
        stored_byte_s=74_000.0,
    )
    assert final == expected


def test_a_delivery_is_told_once_with_all_that_is_billed(
    told: list[tuple[str, Mapping[str, Any]]],
) -> None:
    host, clock = Host(), Clock()
    account = Account(
        load_platform("aws-lambda"),
        host,  # type: ignore[arg-type]
        driver=Usage,
        now=clock,
    )
    one = Execution(
        invocation="i",
        number=0,
        environment="e0",
        cold=True,
        late_s=0.0,
        reason="out-of-memory",
        use=USE,
    )
    host.ended = [one, replace(one, number=1, cold=False)]

    for _ in range(2):
        account.tell_ended(lambda kind, fields: told.append((kind, fields)))

    first = {
        "name": "stage0-replica0",
        "id": "i",
        "delivery": 0,
        "memory_mb": 1769,
        "cold": True,
        "init_ms": 4000,
        "run_ms": 1000,
        "reason": "out-of-memory",
        "requests": {"PUT": 3, "GET_MISSED": 2},
        "bytes_up": 1000,
        "bytes_down": 500,
    }
    assert told == [("delivery", first), ("delivery", first | {"delivery": 1, "cold": False})]
