"""One group in one cgroup hierarchy: its control files, in the words of version 1 or 2.

Every operation on a group that has been removed raises `FileNotFoundError` or another `OSError`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass

__all__ = ["CellMemory", "Group", "V1Group", "V2Group", "cfs_quota", "make_group"]

_LEAST_QUOTA_US = 1_000  # the kernel's own
# Being stopped and started costs time that is the function's, and the caches' content: some 0.4 ms
# each time (2026-11, a virtual machine): 14 % of 2.5 ms, 9 % of 5 ms, 5 % of 10 ms. A longer quota
# loses less, and lets longer bursts pass unslowed. Two of the slices in which the kernel hands time
# to CPUs (5 ms): parts of one get stranded where a thread moves.
_GOOD_QUOTA_US = 10_000
_MOST_PERIOD_US = 1_000_000
_WAIT_S = 0.01


@dataclass(frozen=True, kw_only=True)
class CellMemory:
    """What a group holds. `oom_kills`: how many of its processes the kernel killed for memory."""

    charged_bytes: int
    anon_bytes: int
    oom_kills: int


def cfs_quota(cpus: float) -> tuple[int, int]:
    """Microseconds of CPU, and the period in which they may be used, for a share of `cpus`.

    The period is as short as may be, for a burst passes unslowed while the quota lasts, and so long
    that stopping and starting costs little of it, about as much whatever the share.
    """
    if not cpus > 0:
        raise ValueError(f"a CPU share must be positive, not {cpus}")
    period_us = min(round(_GOOD_QUOTA_US / min(cpus, 1.0)), _MOST_PERIOD_US)
    return max(round(cpus * period_us), _LEAST_QUOTA_US), period_us


def _read(folder: str, name: str) -> str:
    with open(os.path.join(folder, name), encoding="ascii") as file:
        return file.read()


class Group(ABC):
    """A group's folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    @property
    def procs_file(self) -> str:
        return os.path.join(self.folder, "cgroup.procs")

    @abstractmethod
    def limit_cpu(self, quota_us: int | None, period_us: int) -> None: ...

    @abstractmethod
    def limit_memory(self, num_bytes: int | None) -> bool: ...

    @abstractmethod
    def charged_bytes(self) -> int: ...

    @abstractmethod
    def anon_bytes(self) -> int: ...

    @abstractmethod
    def oom_kills(self) -> int: ...

    @abstractmethod
    def cpu_s(self) -> float: ...

    @abstractmethod
    def throttled_s(self) -> float: ...

    def read(self, name: str) -> str:
        return _read(self.folder, name)

    def write(self, name: str, text: str) -> None:
        """Never makes the file: what the kernel does not offer must not look as if it were set."""
        target = os.open(os.path.join(self.folder, name), os.O_WRONLY | os.O_TRUNC)
        try:
            os.write(target, text.encode())
        finally:
            os.close(target)

    def has(self, *names: str) -> bool:
        return all(os.path.exists(os.path.join(self.folder, name)) for name in names)

    def memory(self) -> CellMemory:
        return CellMemory(
            charged_bytes=self.charged_bytes(),
            anon_bytes=self.anon_bytes(),
            oom_kills=self.oom_kills(),
        )

    def table(self, name: str) -> dict[str, int]:
        """The numbers of a file with lines such as ``rss 4096``."""
        pairs = (line.split() for line in self.read(name).splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}

    def pids(self) -> list[int]:
        """Processes in this group and those below it, as far as our pid namespace shows them."""
        found: set[int] = set()
        for place, _, _ in os.walk(self.folder):
            with contextlib.suppress(OSError):
                found |= {int(pid) for pid in _read(place, "cgroup.procs").split()}
        return sorted(found - {0})

    def kill(self, *, within_s: float = 5.0) -> bool:
        """Kill every process in it until it is empty; False if some are left after `within_s`."""
        deadline = time.monotonic() + within_s
        while pids := self.pids():
            self._kill_once(pids)
            if time.monotonic() > deadline:
                return False
            time.sleep(_WAIT_S)
        return True

    def _kill_once(self, pids: list[int]) -> None:
        for pid in pids:
            if pid == os.getpid():
                continue
            with contextlib.suppress(ProcessLookupError, PermissionError):
                handle = os.pidfd_open(pid)
                try:
                    if pid in self.pids():  # the number is still that of the process we mean
                        signal.pidfd_send_signal(handle, signal.SIGKILL)
                finally:
                    os.close(handle)

    def remove(self, *, within_s: float = 5.0) -> bool:
        """Kill what is in it and remove it, with the groups below it; True if it is gone."""
        deadline = time.monotonic() + within_s
        while os.path.isdir(self.folder):
            self.kill(within_s=max(0.0, deadline - time.monotonic()))
            for place, _, _ in os.walk(self.folder, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(place)
            if time.monotonic() > deadline:
                return not os.path.isdir(self.folder)
            if os.path.isdir(self.folder):
                time.sleep(_WAIT_S)
        return True


class V1Group(Group):
    """In a version 1 hierarchy, which has the files of its own controllers only."""

    def limit_cpu(self, quota_us: int | None, period_us: int) -> None:
        # Unlimited in between: the kernel checks each new pair of old and new numbers.
        self.write("cpu.cfs_quota_us", "-1")
        self.write("cpu.cfs_period_us", str(period_us))
        if quota_us is None:
            return
        try:
            self.write("cpu.cfs_quota_us", str(quota_us))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # More than a group above has: that one is the limit.

    def limit_memory(self, num_bytes: int | None) -> bool:
        """False if what it holds cannot be pressed under the limit."""
        text = "-1" if num_bytes is None else str(num_bytes)
        files = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
        if not self.has(files[1]):
            return self._set(files[0], text)
        # Memory with swap may never be less than memory alone: the order depends on the old limit.
        try:
            return self._set(files[0], text) and self._set(files[1], text)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return self._set(files[1], text) and self._set(files[0], text)

    def _set(self, name: str, text: str) -> bool:
        try:
            self.write(name, text)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False
        return True

    def charged_bytes(self) -> int:
        return int(self.read("memory.usage_in_bytes"))

    def anon_bytes(self) -> int:
        stat = self.table("memory.stat")
        return stat.get("total_rss", stat["rss"])

    def oom_kills(self) -> int:
        return self.table("memory.oom_control").get("oom_kill", 0)

    def cpu_s(self) -> float:
        return int(self.read("cpuacct.usage")) / 1e9

    def throttled_s(self) -> float:
        return self.table("cpu.stat").get("throttled_time", 0) / 1e9


class V2Group(Group):
    """In the unified hierarchy."""

    def limit_cpu(self, quota_us: int | None, period_us: int) -> None:
        self.write("cpu.max", f"{'max' if quota_us is None else quota_us} {period_us}")

    def limit_memory(self, num_bytes: int | None) -> bool:
        self.write("memory.max", "max" if num_bytes is None else str(num_bytes))
        return True  # the kernel kills rather than refuse

    def charged_bytes(self) -> int:
        return int(self.read("memory.current"))

    def anon_bytes(self) -> int:
        return self.table("memory.stat")["anon"]

    def oom_kills(self) -> int:
        return self.table("memory.events").get("oom_kill", 0)

    def cpu_s(self) -> float:
        return self.table("cpu.stat").get("usage_usec", 0) / 1e6

    def throttled_s(self) -> float:
        return self.table("cpu.stat").get("throttled_usec", 0) / 1e6

    def _kill_once(self, pids: list[int]) -> None:
        if self.has("cgroup.kill") and os.getpid() not in pids:
            self.write("cgroup.kill", "1")
        else:
            super()._kill_once(pids)


def make_group(version: int, folder: str) -> Group:
    """A new group; for memory, no swap, and all of its processes die together where that exists."""
    os.mkdir(folder)
    group: Group = V1Group(folder) if version == 1 else V2Group(folder)
    settings = {"memory.swap.max": "0", "memory.oom.group": "1"} if version == 2 else {}
    if version == 1 and group.has("memory.swappiness"):
        settings["memory.swappiness"] = "0"
    for name, text in settings.items():
        if group.has(name):
            with contextlib.suppress(OSError):
                group.write(name, text)
    return group
