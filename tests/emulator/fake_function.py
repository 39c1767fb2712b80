"""A function for tests: the real entry point around a worker that does as the payload says."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any


# A child without libraries that takes so many bytes, keeps them for a moment and ends well.
GROW = "import sys, time; held = b'x' * int(sys.argv[1]); time.sleep(float(sys.argv[2]))"


def work(payload: dict[str, Any], context: FakeContext) -> int:
    if payload.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    match payload["do"]:
        case "exit":
            print(payload.get("text", ""), flush=True)
            return int(payload["code"])
        case "signal":
            os.kill(os.getpid(), payload["number"])
        case "raise":
            raise RuntimeError(payload["text"])
        case "print":
            for number in range(payload["num_lines"]):
                print(f"line {number:09d}")
            return 0
        case "show":
            seen = {"environment": dict(os.environ), "folder": os.getcwd(), "path": sys.path}
            seen |= {"stdin": sys.stdin.read(), "session": os.getsid(0) == os.getpid()}
            seen |= {"funcpipe": os.path.realpath(str(sys.modules["funcpipe"].__file__))}
            Path(payload["to"]).write_text(json.dumps(seen))
            return 0
        case "context":
            assert context is not None
            pid = os.getpid()
            print(json.dumps([pid, payload["value"], context.surroundings, context.meter]))
            return 0
        case "spawn":
            child = subprocess.Popen(["sleep", "600"])
            draft = Path(payload["mark"] + ".new")
            draft.write_text(str(child.pid))
            draft.rename(payload["mark"])
            time.sleep(payload.get("seconds", 600))
            return 0
        case "allocate":
            return allocate(payload, context.surroundings["unseen_file_bytes"])
        case "loop":
            while True:
                pass
        case "several":
            told = {task["do"]: ACTIONS[task["do"]](task) for task in payload["tasks"]}
            print(json.dumps({"surroundings": context.surroundings, **told}), flush=True)
            time.sleep(payload.get("seconds", 0))
            return 0
    time.sleep(600)
    return 0


def allocate(task: dict[str, Any], unseen_file_bytes: int) -> int:
    """Take memory until the function holds `to_mb`; with `in_child`, the rest is a child's."""
    more = (task["to_mb"] << 20) - held_bytes(unseen_file_bytes)
    print(f"taking {more >> 20} MB", flush=True)
    if task.get("in_child"):
        code = subprocess.run([sys.executable, "-IS", "-c", GROW, str(more), "0.5"]).returncode
        print("the child ended with", code, flush=True)
        time.sleep(1.0)
        return 0
    held = []
    for _ in range(20):
        held.append(b"x" * (more // 20))
        time.sleep(0.01)
    time.sleep(task.get("seconds", 0.5))
    return 0


def held_bytes(unseen_file_bytes: int) -> int:
    """What a fresh process like this one would hold."""
    lines = Path("/proc/self/status").read_text().splitlines()
    sizes = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Rss")}
    anon, files, shared = (int(sizes[name]) << 10 for name in ("RssAnon", "RssFile", "RssShmem"))
    return anon + shared + max(files, unseen_file_bytes)


def fill(task: dict[str, Any]) -> Any:
    """Write to a file until it fails; how many MB there was room for."""
    path = Path(task["path"])
    block, written = b"x" * (1 << 20), 0
    try:
        with path.open("wb", buffering=0) as file:
            while written < task["most_mb"]:
                file.write(block)
                written += 1
    except OSError as error:
        path.unlink()
        return [errno.errorcode[error.errno or 0], written]
    return ["", written]


def write(task: dict[str, Any]) -> Any:
    """For each path, what comes of writing a few bytes there."""
    return {path: outcome(Path(path)) for path in task["paths"]}


def outcome(path: Path) -> str:
    try:
        path.write_text("text")
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "ok"


def write_code(_: dict[str, Any]) -> Any:
    """Whether its own code, or Python's, can be changed."""
    files = [__file__, os.path.realpath(sys.modules["funcpipe"].__file__ or ""), os.__file__]
    return {file: outcome(Path(file + ".new")) for file in files}


def shared_memory(_: dict[str, Any]) -> Any:
    return outcome(Path("/dev/shm/funcpipe-test"))


def look(task: dict[str, Any]) -> Any:
    """What lies at the paths."""
    return {path: Path(path).exists() for path in task["paths"]}


ACTIONS: dict[str, Any] = {
    action.__name__: action for action in (fill, write, write_code, shared_memory, look)
}


class FakeContext:
    """Keeps what a platform told the function."""

    def __init__(self, surroundings: dict[str, Any], meter: int | None) -> None:
        self.surroundings = surroundings
        self.meter = meter

    @staticmethod
    def from_dict(data: dict[str, Any], *, meter: int | None) -> FakeContext:
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
