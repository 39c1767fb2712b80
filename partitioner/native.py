"""Calling solvers written in C: quietly, and so that Ctrl-C stops them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

__all__ = ["quiet", "stoppable"]


@contextmanager
def quiet() -> Iterator[None]:
    """Within it, whatever this process writes to file descriptors 1 and 2 is lost.

    That holds for all threads. Solvers written in C print past `sys.stdout`; what they have in
    their own buffers is thrown away too, before the descriptors are as they were.
    """
    _flush()
    saved = {}
    try:
        with open(os.devnull, "wb") as nowhere:
            for target in (1, 2):
                with suppress(OSError):  # closed: nothing can be written to it anyway
                    saved[target] = os.dup(target)
                    os.dup2(nowhere.fileno(), target)
        yield
    finally:
        _flush()
        for target, copy in saved.items():
            os.dup2(copy, target)
            os.close(copy)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # none, broken or closed
            stream.flush()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).fflush(None)


def stoppable(work: Callable[[], object], stop: Callable[[], object]) -> bool:
    """Do `work`, and call `stop` at each Ctrl-C; whether there was one. Raises what `work` raises.

    Python handles a signal between two of its own instructions only, of which C code has none:
    `work` gets a thread of its own, which has ended on return. Ctrl-C raises nothing meanwhile, so
    that it can come at no wrong moment. In other threads than the main one there is no Ctrl-C.
    """
    raised: list[BaseException] = []
    pressed: list[int] = []

    def call() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again below
            raised.append(error)

    def on_signal(number: int, _frame: FrameType | None) -> None:
        pressed.append(number)
        stop()

    usual = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    listens = is_main and callable(usual)  # not where it is ignored
    if listens:
        signal.signal(signal.SIGINT, on_signal)
    try:
        thread = threading.Thread(target=call, name="solver")
        thread.start()
        while thread.is_alive():
            thread.join(0.1)
    finally:
        if listens:
            signal.signal(signal.SIGINT, usual)
    if raised:
        raise raised[0]
    return bool(pressed)
