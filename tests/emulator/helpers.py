"""Helpers to see what a process tree of ours holds, and whether any of it is left."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
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
