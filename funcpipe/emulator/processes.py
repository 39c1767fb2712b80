"""Processes of this machine, as /proc shows them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["descendants"]


def descendants(pid: int) -> list[int]:
    """Every process below `pid`, as far as the kernel tells."""
    found: list[int] = []
    rest = [pid]
    while rest:
        tasks = f"/proc/{rest.pop()}/task"
        with contextlib.suppress(OSError):
            for task in os.listdir(tasks):
                children = Path(tasks, task, "children").read_text().split()
                fresh = [int(child) for child in children if int(child) not in found]
                found += fresh
                rest += fresh
    return found
