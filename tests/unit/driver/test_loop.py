"""The driver's loop around a host that refuses: what it waits for, tells and gives up on."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from funcpipe.driver import loop as module
from funcpipe.driver.account import Account
from funcpipe.driver.host import Execution, Exit
from funcpipe.driver.loop import Loop
from funcpipe.driver.machine import DriverMachine
from funcpipe.errors import OutOfMemory, Stopped, Throttled
from funcpipe.invocation import Invocation, RunSpec
from funcpipe.partitioner.plan import Plan, StagePlan
from funcpipe.partitioner.platform import load_platform
from funcpipe.partitioner.pricing import Use
from funcpipe.store.memory import MemoryStore
from funcpipe.store.meter import Metered
from funcpipe.store.open import StoreSpec

PLAN = Plan(
    stages=(
        StagePlan(first_layer=0, stop_layer=1, memory_mb=512),
        StagePlan(first_layer=1, stop_layer=2, memory_mb=1024),
    ),
    micro_batch_size=4,
)
SPEC = RunSpec(
    root="r",
    attempt=1,
    control_version=1,
    plan=PLAN,
    trains=(True, True),
    entry="job:job",
    digest="0",
    num_train=8,
    num_eval=0,
    num_steps=1,
    store=StoreSpec(url="memory:x"),
    if_absent=True,
)


class Host:
    """Refuses the first `refusals` starts of each function; `then` happens after all starts."""

    def __init__(self, refusals: int, then: list[Exit] | None = None) -> None:
        self.refusals = refusals
        self.left = refusals
        self.started: list[tuple[str, int | None]] = []
        self.then = then or []
        self.stopped = False

    def start(self, payload: bytes, *, name: str, memory_mb: int | None) -> str:
        if self.left:
            self.left -= 1
            raise Throttled(f"{name} was answered with 429")
        self.left = self.refusals
        self.started.append((name, memory_mb))
        return name

    def exits(self) -> list[Exit]:
        if len(self.started) < 2:
            return []
        told, self.then = self.then, []
        return told

    def executions(self) -> list[Execution]:
        return []

    def uses(self) -> list[Use]:
        return []

    def stored_bytes(self) -> int:
        return 0

    def alive(self) -> int:
        return len(self.started)

    def stop(self, ids: Any = None, *, grace_s: float = 2.0) -> None:
        self.stopped = True

    def close(self) -> None:
        pass


class Driver:
    """A loop over a memory store, and what it has told."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.told: list[tuple[str, Mapping[str, Any]]] = []
        self.interrupted = threading.Event()
        self.store = Metered(MemoryStore())

    def run(self) -> None:
        account = Account(
            load_platform("aws-lambda"), self.host, driver=self.store.counts, now=lambda: 0.0
        )
        loop = Loop(
            spec=SPEC,
            machine=DriverMachine(PLAN.degrees, num_steps=1),
            host=self.host,
            store=self.store,
            tell=lambda kind, fields: self.told.append((kind, fields)),
            account=account,
            dilation=1.0,
            interrupted=self.interrupted,
        )
        loop.run([Invocation(spec=SPEC, stage=s, replica=0, token="t") for s in (0, 1)])

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.told]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "THROTTLED_FIRST_S", 0.01)
    monkeypatch.setattr(module, "THROTTLED_PATIENCE_S", 0.2)


def out_of_memory(name: str) -> Exit:
    return Exit(id=name, name=name, code=-9, reason="out-of-memory", log_tail="", detail="too much")


def test_a_throttled_start_is_told_and_tried_again() -> None:
    driver = Driver(Host(2, then=[out_of_memory("stage1-replica0")]))

    with pytest.raises(OutOfMemory, match="too much"):
        driver.run()

    assert driver.host.started == [("stage0-replica0", 512), ("stage1-replica0", 1024)]
    started = ["throttled", "throttled", "function_started"]
    assert driver.kinds() == started * 2
    assert driver.told[0][1]["name"] == "stage0-replica0"
    assert driver.host.stopped


def test_patience_with_a_platform_ends_with_its_own_error() -> None:
    driver = Driver(Host(10_000))

    with pytest.raises(Throttled, match="stage0-replica0 was answered with 429") as caught:
        driver.run()

    assert (caught.value.stage, caught.value.replica) == (0, 0)
    assert driver.host.started == []


def test_an_interrupt_ends_the_waiting_for_room() -> None:
    driver = Driver(Host(10_000))
    driver.interrupted.set()

    with pytest.raises(Stopped):
        driver.run()

    assert driver.host.started == []
