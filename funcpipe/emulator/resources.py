"""What of this machine's CPU time and memory is ours to use."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from funcpipe.emulator.cgroup_mounts import Hierarchy, find_hierarchies

__all__ = ["memory_bytes", "usable_cpus"]


def usable_cpus(hierarchies: list[Hierarchy] | None = None) -> float:
    """CPUs that this process may use: those it may run on, or less where a group above has less."""
    least = float(len(os.sched_getaffinity(0)))
    for one, folder in _groups("cpu", hierarchies):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            if one.version == 2:
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota = (folder / "cpu.cfs_quota_us").read_text().strip()
                period = (folder / "cpu.cfs_period_us").read_text()
            if quota not in ("max", "-1"):
                least = min(least, int(quota) / int(period))
    return least


def memory_bytes(
    hierarchies: list[Hierarchy] | None = None, *, meminfo: str | None = None
) -> tuple[int, int]:
    """Memory that this process may use at most, and how much of it is still to be had."""
    text = Path("/proc/meminfo").read_text() if meminfo is None else meminfo
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in text.splitlines() if line}
    most, free = sizes["MemTotal"], sizes["MemAvailable"]
    for one, folder in _groups("memory", hierarchies):
        with contextlib.suppress(OSError, ValueError):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            limit, used = ("memory.max", "memory.current") if one.version == 2 else names
            bound = int((folder / limit).read_text())  # "max" is no number
            held = int((folder / used).read_text()) - _reclaimable(folder)
            most, free = min(most, bound), min(free, max(0, bound - held))
    return most, free


def _reclaimable(folder: Path) -> int:
    """Page cache that the kernel would give up at once."""
    pairs = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
    stat = {name: int(value) for name, value in pairs}
    return stat.get("total_inactive_file", stat.get("inactive_file", 0))


def _groups(
    controller: str, hierarchies: list[Hierarchy] | None
) -> Iterator[tuple[Hierarchy, Path]]:
    """Our own group and those above it, in the hierarchies that may have the controller."""
    if hierarchies is None:
        hierarchies = find_hierarchies(
            Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()
        )
    for one in hierarchies:
        if one.own is not None and (one.version == 2 or controller in one.controllers):
            folder = Path(one.own)
            while folder.is_relative_to(one.mount):
                yield one, folder
                folder = folder.parent
