"""This process as the kernel counts it. Linux only, like the functions themselves.

A process that was forked shares pages of program files with its parent without having them
counted until it touches them. `unseen_file_bytes` is what its parent holds of them: where less
shows, that much is counted, as in a process that has loaded everything itself.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

__all__ = ["age_s", "base_bytes", "forget_peak", "peak_bytes", "resident_bytes", "trim"]

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


def base_bytes(*, unseen_file_bytes: int = 0) -> int:
    """What a function holds before it has a model: the interpreter and its libraries.

    Among them torch's compiler, which plain PyTorch loads too when its first optimiser is made (1
    to 2 s and 72 MB). Not on a thread beside the downloads, which would gain no more than the
    network's share of them: user code that imports the same meanwhile could see it half made.
    """
    importlib.import_module("torch._dynamo")
    return resident_bytes(unseen_file_bytes=unseen_file_bytes)


def age_s() -> float:
    """Seconds since this process was started, to a hundredth."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return float(Path("/proc/uptime").read_text().split()[0]) - started_s


def resident_bytes(*, unseen_file_bytes: int = 0) -> int:
    """Resident set size now."""
    return _held(_status(), "VmRSS", unseen_file_bytes)


def peak_bytes(*, unseen_file_bytes: int = 0) -> int:
    """Highest resident set size since the process was made, or since `forget_peak`."""
    return _held(_status(), "VmHWM", unseen_file_bytes)


def forget_peak() -> None:
    """Let the peak begin anew from what is held now, where the kernel lets this process say so."""
    with suppress(OSError):
        _CLEAR_REFS.write_text("5")


def trim() -> None:
    """Give the heap's free memory back to the kernel, where the C library can."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def _held(status: Mapping[str, int], name: str, unseen_file_bytes: int) -> int:
    # How much of the peak was files is not told; files, once touched, tend to stay.
    return status[name] + max(0, unseen_file_bytes - status["RssFile"])


def _status() -> dict[str, int]:
    """The sizes in this process's status, in bytes."""
    lines = [line.split() for line in _STATUS.read_text().splitlines() if line.endswith(" kB")]
    return {name.rstrip(":"): int(size) * 1024 for name, size, _ in lines}
