"""When a machine counts as having no CPU time to spare."""

from __future__ import annotations

from funcpipe.driver.load import Load, read_cpu_time


class Machine:
    """Two CPUs; `idle` is how much of each half second is."""

    def __init__(self) -> None:
        self.now = 0.0
        self.idle = self.total = 100.0

    def clock(self) -> float:
        return self.now

    def read(self) -> tuple[float, float]:
        return self.idle, self.total

    def passes(self, idle: float) -> None:
        self.now += 0.5
        self.total += 100.0
        self.idle += 100.0 * idle


def test_the_share_of_looks_without_idle_time() -> None:
    machine = Machine()
    load = Load(machine.read, machine.clock)

    for idle in (0.5, 0.0, 0.02, 0.04):
        machine.passes(idle)
        load.look()

    assert load.full_share == 0.5


def test_looks_that_come_too_soon_are_none() -> None:
    machine = Machine()
    load = Load(machine.read, machine.clock)

    machine.now += 0.4
    load.look()

    assert load.full_share == 0.0


def test_the_kernel_s_numbers_grow() -> None:
    idle, total = read_cpu_time()

    assert 0 < idle < total
