"""A function for tests: the real entry point around a worker that does as the payload says."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

Task = dict[str, Any]

# A child without libraries that takes so many bytes, keeps them for a moment and ends well.
GROW = "import sys, time; held = b'x' * int(sys.argv[1]); time.sleep(float(sys.argv[2]))"


def work(payload: Task, context: FakeContext) -> int:
    if payload.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    code: int = ACTIONS[payload["do"]](payload, context)
    return code


# -- actions, which return the function's code ---------------------------------------------------


def leave(task: Task, _: FakeContext) -> int:
    print(task.get("text", ""), flush=True)
    return int(task["code"])


def die(task: Task, _: FakeContext) -> int:
    os.kill(os.getpid(), task["number"])
    return sleep(task, _)


def fail(task: Task, _: FakeContext) -> int:
    raise RuntimeError(task["text"])


def print_lines(task: Task, _: FakeContext) -> int:
    for number in range(task["num_lines"]):
        print(f"line {number:09d}")
    return 0


def show(task: Task, _: FakeContext) -> int:
    seen = {"environment": dict(os.environ), "folder": os.getcwd(), "path": sys.path}
    seen |= {"temporary": tempfile.gettempdir()}
    seen |= {"stdin": sys.stdin.read(), "session": os.getsid(0) == os.getpid()}
    seen |= {"funcpipe": os.path.realpath(str(sys.modules["funcpipe"].__file__))}
    Path(task["to"]).write_text(json.dumps(seen))
    return 0


def context_given(task: Task, context: FakeContext) -> int:
    print(json.dumps([os.getpid(), task["value"], context.surroundings, context.meter]))
    return 0


def spawn(task: Task, _: FakeContext) -> int:
    child = subprocess.Popen(["sleep", "600"])
    draft = Path(task["mark"] + ".new")
    draft.write_text(str(child.pid))
    draft.rename(task["mark"])
    return sleep(task, _)


def sleep(task: Task, _: FakeContext) -> int:
    time.sleep(task.get("seconds", 600))
    return 0


def say_junk(task: Task, _: FakeContext) -> int:
    """Write to the descriptor on which the entry point tells of itself."""
    os.write(3, task["text"].encode())
    return sleep(task, _)


def loop(_: Task, __: FakeContext) -> int:
    while True:
        pass


def allocate(task: Task, context: FakeContext) -> int:
    """Take memory until the function holds `to_mb`; with `in_child`, the rest is a child's."""
    more = (task["to_mb"] << 20) - held_bytes(context.surroundings["unseen_file_bytes"])
    print(f"taking {more >> 20} MB", flush=True)
    if task.get("in_child"):
        argv = [sys.executable, "-IS", "-c", GROW, str(more), "0.5"]
        print("the child ended with", subprocess.run(argv, check=False).returncode, flush=True)
        time.sleep(1.0)
        return 0
    held = []
    for _ in range(20):
        held.append(b"x" * (more // 20))
        time.sleep(0.01)
    time.sleep(0.5)
    return 0


def held_bytes(unseen_file_bytes: int) -> int:
    """What a fresh process like this one would hold."""
    lines = Path("/proc/self/status").read_text().splitlines()
    sizes = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Rss")}
    anon, files, shared = (int(sizes[name]) << 10 for name in ("RssAnon", "RssFile", "RssShmem"))
    return anon + shared + max(files, unseen_file_bytes)


def several(task: Task, context: FakeContext) -> int:
    """Probe after probe; then a line of JSON with what was found, and what the platform gave."""
    told = {one["do"]: PROBES[one["do"]](one) for one in task["tasks"]}
    print(json.dumps({"surroundings": context.surroundings, **told}), flush=True)
    return 0


# -- probes --------------------------------------------------------------------------------------


def fill(task: Task) -> Any:
    """Write to a file until it fails; why, and how many MB there was room for."""
    path, written = Path(task["path"]), 0
    try:
        with path.open("wb", buffering=0) as file:
            while written < task["most_mb"]:
                file.write(b"x" * (1 << 20))
                written += 1
    except OSError as error:
        path.unlink()
        return [errno.errorcode[error.errno or 0], written]
    return ["", written]


def write(task: Task) -> Any:
    """For each path, what comes of writing a few bytes there."""
    return {path: outcome(Path(path)) for path in task["paths"]}


def write_code(_: Task) -> Any:
    """Whether something can be put beside its own code, funcpipe's and Python's."""
    files = [__file__, os.path.realpath(sys.modules["funcpipe"].__file__ or ""), os.__file__]
    return {file: outcome(Path(file + ".new")) for file in files}


def remount(_: Task) -> Any:
    """Whether it can undo its walls: the error number of making all mounts writable again."""
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.mount(None, b"/", None, ctypes.c_ulong(32), None)  # MS_REMOUNT
    return errno.errorcode[ctypes.get_errno()] if failed else "ok"


def look(task: Task) -> Any:
    """What lies at the paths."""
    return {path: Path(path).exists() for path in task["paths"]}


def outcome(path: Path) -> str:
    try:
        path.write_text("text")
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "ok"


ACTIONS: dict[str, Callable[[Task, FakeContext], int]] = {
    "exit": leave,
    "signal": die,
    "raise": fail,
    "print": print_lines,
    "show": show,
    "context": context_given,
    "spawn": spawn,
    "sleep": sleep,
    "loop": loop,
    "junk": say_junk,
    "allocate": allocate,
    "several": several,
}
PROBES: dict[str, Callable[[Task], Any]] = {
    "fill": fill,
    "write": write,
    "write_code": write_code,
    "look": look,
    "remount": remount,
}


class FakeContext:
    """Keeps what a platform told the function."""

    def __init__(self, surroundings: Task, meter: int | None) -> None:
        self.surroundings = surroundings
        self.meter = meter

    @staticmethod
    def from_dict(data: Task, *, meter: int | None) -> FakeContext:
        return FakeContext(data, meter)


def stub(name: str, **contents: object) -> None:
    module = types.ModuleType(name)
    vars(module).update(contents)
    sys.modules[name] = module


stub("funcpipe.worker", __path__=[])
stub("funcpipe.worker.entry", main=work)
stub("funcpipe.worker.context", Context=FakeContext)

if __name__ == "__main__":
    from funcpipe.functions import local

    sys.exit(local.main())
