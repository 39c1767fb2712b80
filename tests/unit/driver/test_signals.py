"""When a signal breaks in, and when it is only noted."""

from __future__ import annotations

import signal

import pytest

from funcpipe.driver.signals import Signals
from funcpipe.errors import Stopped


def test_the_first_signal_breaks_in_and_the_next_ones_do_not() -> None:
    with Signals() as signals:
        with pytest.raises(Stopped, match="interrupted by SIGTERM"), signals.breaking_in():
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert signals.interrupted.is_set()


def test_one_that_comes_elsewhere_is_told_when_it_may_break_in() -> None:
    with Signals() as signals:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Stopped), signals.breaking_in():
            pytest.fail("it went on")


def in_the_loop(signals: Signals, *numbers: signal.Signals) -> None:
    with signals.breaking_in():
        with signals.left_to_the_loop():
            for number in numbers:
                signal.raise_signal(number)
                assert signals.interrupted.is_set()
        pytest.fail("it went on")


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((signal.SIGINT,), "^interrupted$"),  # seen by the loop or, as here, at its end
        ((signal.SIGINT, signal.SIGTERM), "^interrupted by SIGTERM$"),
    ],
)
def test_the_loop_sees_the_first_and_is_broken_into_by_the_second(
    numbers: tuple[signal.Signals, ...], words: str
) -> None:
    with Signals() as signals, pytest.raises(Stopped, match=words):
        in_the_loop(signals, *numbers)


def test_handlers_are_given_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Signals():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
