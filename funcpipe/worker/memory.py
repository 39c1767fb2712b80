"""This process as the kernel counts it. Linux only, like the functions themselves."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

__all__ = ["age_s", "base_bytes", "peak_bytes", "resident_bytes"]

_STATUS = Path("/proc/self/status")


def base_bytes() -> int:
    """What a function holds before it has a model: the interpreter and its libraries.

    Among them torch's compiler, which plain PyTorch loads too when its first optimiser is made (1
    to 2 s and 72 MB). Not on a thread beside the downloads, which would gain no more than the
    network's share of them: user code that imports the same meanwhile could see it half made.
    """
    importlib.import_module("torch._dynamo")
    return resident_bytes()


def age_s() -> float:
    """Seconds since this process was started, to a hundredth."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return float(Path("/proc/uptime").read_text().split()[0]) - started_s


def resident_bytes() -> int:
    """Resident set size now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_bytes() -> int:
    """Highest resident set size since the process image was loaded (VmHWM)."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{_STATUS} has no VmHWM line")
