"""Helpers to see what a process tree of ours holds, and whether any of it is left."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import psutil
from botocore.config import Config

from funcpipe.emulator.server import RunningServer


def processes_with(marker: str) -> list[psutil.Process]:
    """Every process that carries `marker` in its environment, command line or working folder."""
    found = []
    for process in psutil.process_iter():
        try:
            traces = [*process.cmdline(), process.cwd(), *process.environ().values()]
            if process.status() != psutil.STATUS_ZOMBIE and any(marker in one for one in traces):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def eventually(condition: Callable[[], bool], *, within_s: float = 10.0) -> bool:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def tree_of(server: RunningServer) -> list[psutil.Process]:
    guard = psutil.Process(server._guarded.guard_pid)
    return [guard, *guard.children(recursive=True)]


@contextlib.contextmanager
def client_of(server: RunningServer, **changes: str) -> Iterator[Any]:
    keys = {
        "aws_access_key_id": server.credentials.access_key,
        "aws_secret_access_key": server.credentials.secret_key,
    }
    client = boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        region_name=server.region,
        config=Config(retries={"total_max_attempts": 1}, read_timeout=20),
        **{**keys, **changes},
    )
    yield client
    client.close()


def left_of(name: str) -> dict[str, list[str]]:
    """What of the kernel's carries `name`: mounts, loop devices, control groups; nothing if {}."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    devices = [*Path("/sys/block").glob("loop*/loop/backing_file")]
    found = {
        "mounts": [line for line in mounts if name in line],
        "loop devices": [text for one in devices if name in (text := _text_of(one))],
        "cgroups": [folder for folder, _, _ in os.walk("/sys/fs/cgroup") if name in folder],
    }
    return {kind: left for kind, left in found.items() if left}


def _text_of(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it has just been taken away
        return ""
