"""What tests run in a forked function: does as a line on its standard input says, prints JSON."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

Task = dict[str, Any]


def show(_: Task) -> Any:
    names = [int(one) for one in os.listdir("/proc/self/fd")]
    return {
        "pid": os.getpid(),
        "processes": [int(one) for one in os.listdir("/proc") if one.isdigit()],
        "session": os.getsid(0) == os.getpid(),
        "user": os.getuid(),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "listing": os.listdir(),
        "descriptors": [one for one in names if os.path.exists(f"/proc/self/fd/{one}")],
        "torch": "torch" in sys.modules,
        "name": __name__,
        "path": sys.path,
        "argv": sys.argv,
        "chance": [random.random(), _numpy_chance()],
    }


def _numpy_chance() -> float:
    import numpy

    return float(numpy.random.random())


def compute(_: Task) -> Any:
    import torch

    torch.set_num_threads(2)
    layer = torch.nn.Linear(600, 600)
    layer(torch.ones(600, 600)).sum().backward()
    gradient = layer.weight.grad
    assert gradient is not None
    threads = len(os.listdir("/proc/self/task"))
    return {"threads": threads, "sum": float(gradient.sum()), "set": torch.get_num_threads()}


def leave(task: Task) -> Any:
    raise SystemExit(task["code"])


def die(task: Task) -> Any:
    os.kill(os.getpid(), task["number"])
    time.sleep(600)


def crash(_: Task) -> Any:
    ctypes.string_at(0)


def fail(_: Task) -> Any:
    raise RuntimeError("as planned")


def family(task: Task) -> Any:
    """Children of every kind: one in our group, one in its own session, an orphan."""
    subprocess.Popen(["sleep", "600"])
    subprocess.Popen(["sleep", "600"], start_new_session=not task.get("same_group"))
    subprocess.run(["sh", "-c", "sleep 600 >/dev/null 2>&1 &"], check=True)
    return {}


def sleep(_: Task) -> Any:
    time.sleep(600)


def write(task: Task) -> Any:
    """For each path, what comes of writing a few bytes there."""
    return {path: _outcome(path, b"text") for path in task["paths"]}


def fill(task: Task) -> Any:
    """Write to a file until it fails."""
    block, written = b"x" * (1 << 20), 0
    try:
        with open(task["path"], "wb", buffering=0) as file:
            while written < task["most_mb"]:
                file.write(block)
                written += 1
            os.fsync(file.fileno())
    except OSError as error:
        os.unlink(task["path"])
        return {"error": errno.errorcode[error.errno or 0], "mb": written}
    return {"error": None, "mb": written}


def read(task: Task) -> Any:
    return {path: Path(path).read_text() for path in task["paths"]}


def look(task: Task) -> Any:
    return {path: sorted(os.listdir(path)) for path in task["paths"]}


def connect(task: Task) -> Any:
    with socket.create_connection(("127.0.0.1", task["port"]), timeout=10) as link:
        return {"said": link.recv(100).decode()}


def meter(_: Task) -> Any:
    os.pwrite(4, b"counted", 0)
    return {"variable": os.environ["FUNCPIPE_METER"]}


def _outcome(path: str, data: bytes) -> str:
    try:
        Path(path).write_bytes(data)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "ok"


TASKS = (show, compute, leave, die, crash, fail, family, sleep, write, fill, read, look)
TASKS += (connect, meter)

if __name__ == "__main__":
    line = sys.stdin.readline()
    for step in json.loads(line):
        action = next(one for one in TASKS if one.__name__ == step["do"])
        print(json.dumps(action(step)), flush=True)
        if step.get("then") == "sleep":
            signal.pause()
