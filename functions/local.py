"""Where a function on this machine begins: the local counterpart of a cloud's handler.

Standard input brings one line with the payload's length and then the payload, JSON. The pipe stays
open as long as the driver lives: when it ends, so does this process, at once.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def _die_with_parent() -> None:
    # A second net under the pipe: it holds even while user code keeps the interpreter's lock.
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _take_pipe() -> int:
    """The pipe from the driver, moved away from standard input, where user code could read it."""
    pipe = os.dup(0)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    return pipe


def _read(pipe: int, num_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < num_bytes:
        part = os.read(pipe, num_bytes - len(data))
        if not part:
            os._exit(1)
        data += part
    return bytes(data)


def _read_payload(pipe: int) -> dict[str, Any]:
    length = bytearray()
    while not length.endswith(b"\n"):
        length += _read(pipe, 1)
    payload: dict[str, Any] = json.loads(_read(pipe, int(length)))
    return payload


def _end_with_driver(pipe: int) -> NoReturn:
    while os.read(pipe, 4096):
        pass
    if os.getsid(0) == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)  # with what user code has started
    os._exit(1)


def _on_term(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + signal.SIGTERM)


def main() -> int:
    _die_with_parent()
    pipe = _take_pipe()
    payload = _read_payload(pipe)
    threading.Thread(
        target=_end_with_driver, args=(pipe,), name="driver-watch", daemon=True
    ).start()
    signal.signal(signal.SIGTERM, _on_term)
    os.environ["FUNCPIPE_FUNCTION"] = "1"
    faulthandler.enable(all_threads=False)  # a crash of user code: on which line
    for variable in _THREAD_VARIABLES:
        os.environ.setdefault(variable, "1")
    from funcpipe.worker.entry import main as work

    return work(payload)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # after a failure other lanes may still be at work; nothing waits for them
