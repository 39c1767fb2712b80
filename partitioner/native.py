"""Calling solvers written in C: quietly, and so that Ctrl-C stops them."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

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

    Python sees a signal between two of its own instructions only, of which C code has none: `work`
    gets a thread of its own, which has ended on return.
    """
    raised: list[BaseException] = []

    def call() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again below
            raised.append(error)

    stopped = False
    thread = threading.Thread(target=call, name="solver")
    thread.start()
    while thread.is_alive():
        try:
            thread.join(0.1)
        except KeyboardInterrupt:
            stopped = True
            stop()
    if raised:
        raise raised[0]
    return stopped
