"""Where a function on this machine begins: the local counterpart of a cloud's handler.

Standard input brings frames, each a line with a length and then so many bytes of JSON: the
``payload`` and what ``surroundings`` the platform gives it. The next frame is for the same process
when it has done with one (a warm start). The pipe stays open as long as the driver lives: when it
ends, so does this process, at once.

The variables FUNCPIPE_STATUS and FUNCPIPE_METER name descriptors: a pipe on which lines of JSON say
``{"ready": true}`` after the imports and ``{"done": 0}`` after each frame, and the memory in which
requests are counted. Without the former nobody would know when to send a second frame, so this
process ends with the first. Any other code than 0 ends it too.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import queue
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


def _take_descriptor(variable: str) -> int | None:
    """A descriptor that a variable names; neither is handed on to what user code starts."""
    text = os.environ.pop(variable, "")
    if not text:
        return None
    os.set_inheritable(int(text), False)
    return int(text)


def _read(pipe: int, num_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < num_bytes:
        part = os.read(pipe, num_bytes - len(data))
        if not part:
            _end_at_once()
        data += part
    return bytes(data)


def _end_at_once() -> NoReturn:
    if os.getsid(0) == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)  # with what user code has started
    os._exit(1)


def _read_frames(pipe: int, frames: queue.SimpleQueue[bytes]) -> NoReturn:
    """Hand on frame after frame; the pipe's end is the driver's, and this process's."""
    while True:
        length = bytearray()
        while not length.endswith(b"\n"):
            length += _read(pipe, 1)
        frames.put(_read(pipe, int(length)))


def _on_term(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + signal.SIGTERM)


def _tell(status: int | None, **facts: object) -> None:
    sys.stdout.flush()  # whoever hears that it is done finds all that was printed
    sys.stderr.flush()
    if status is not None:
        os.write(status, json.dumps(facts).encode() + b"\n")


def _work(frame: bytes, meter: int | None) -> int:
    from funcpipe.worker import entry
    from funcpipe.worker.context import Context

    told: dict[str, Any] = json.loads(frame)
    payload, context = told["payload"], Context.from_dict(told["surroundings"], meter=meter)
    match payload.get("task"):
        case None:
            return entry.main(payload, context)
        case "profile":
            from funcpipe.worker import profiler  # training functions do not wait for this import

            return profiler.main(payload, context)
        case other:
            print(f"this function knows no task {other!r}: deploy again", flush=True)
            return 1


def main() -> int:
    """Serve frames; returns the code of the one that is the last."""
    _die_with_parent()
    pipe = _take_pipe()
    frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    status, meter = _take_descriptor("FUNCPIPE_STATUS"), _take_descriptor("FUNCPIPE_METER")
    threading.Thread(
        target=_read_frames, args=(pipe, frames), name="driver-watch", daemon=True
    ).start()
    signal.signal(signal.SIGTERM, _on_term)
    os.environ["FUNCPIPE_FUNCTION"] = "1"
    faulthandler.enable(all_threads=False)  # a crash of user code: on which line
    for variable in _THREAD_VARIABLES:
        os.environ.setdefault(variable, "1")
    import funcpipe.worker.entry  # noqa: F401 - a cold start's long part

    _tell(status, ready=True)
    while True:
        code = _work(frames.get(), meter)
        if code != 0 or status is None:
            return code
        _tell(status, done=0)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # after a failure other lanes may still be at work; nothing waits for them
