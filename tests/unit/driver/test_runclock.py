"""The driver's clock shows platform seconds while a platform is emulated."""

from __future__ import annotations

import pytest

from funcpipe.driver.runclock import RunClock


class Seconds:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_slowed_phase_counts_in_platform_seconds_and_the_wall_in_real_ones() -> None:
    seconds = Seconds()
    clock = RunClock(seconds)

    with clock.phase("setup"):
        seconds.now += 2.0
    with clock.slowed(4.0), clock.phase("training"):
        seconds.now += 40.0
        assert clock.elapsed() == 12.0
    with clock.phase("export"):
        seconds.now += 1.0
    clock.close()

    expected = {"setup": 2.0, "training": 10.0, "export": 1.0, "total": 13.0, "wall": 43.0}
    assert clock.phases == expected


def test_a_step_is_the_mean_time_after_the_first_one() -> None:
    seconds = Seconds()
    clock = RunClock(seconds)

    with clock.slowed(2.0):
        for _ in range(4):
            seconds.now += 3.0
            clock.step_done()

    assert clock.phases["step"] == pytest.approx(1.5)


def test_after_an_error_time_is_real_again() -> None:
    seconds = Seconds()
    clock = RunClock(seconds)

    def fail() -> None:
        with clock.slowed(10.0):
            seconds.now += 10.0
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    seconds.now += 1.0

    assert clock.elapsed() == 2.0
