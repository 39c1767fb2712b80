"""Control groups: shares of CPU and limits of memory for one function's whole process tree.

Version 1 and version 2 of the kernel's interface, and machines that have both: each controller is
used where it lies. What this process may not use is named in `Cgroups.why_not`; nothing else fails.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from funcpipe.emulator.cgroup_files import CellMemory, Group, V2Group, cfs_quota, make_group
from funcpipe.emulator.cgroup_mounts import Hierarchy, find_hierarchies
from funcpipe.emulator.processes import descendants
from funcpipe.errors import PlatformError

__all__ = ["Cell", "CellMemory", "Cgroups", "open_cgroups"]

# Where a driver moves to in a version 2 hierarchy, in which a group with processes of its own may
# not hand controllers to the groups below it.
DRIVER_LEAF = "funcpipe-driver"

_NEEDED = {
    (1, "cpu"): ("cpu.cfs_quota_us", "cpu.cfs_period_us"),
    (1, "cpuacct"): ("cpuacct.usage",),
    (1, "memory"): ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control"),
    (2, "cpu"): ("cpu.max",),
    (2, "memory"): ("memory.max", "memory.current", "memory.events"),
}


class Cell:
    """One environment's groups.

    Limits for which there is no group do nothing: see `Cgroups.cpu` and `Cgroups.memory`. On a cell
    that has been removed, everything but `kill` and `remove` raises an `OSError`.
    """

    def __init__(self, groups: Mapping[str, Group], forget: Callable[[Cell], None]) -> None:
        self._groups = dict(groups)
        self._forget = forget
        self._distinct = list({group.folder: group for group in groups.values()}.values())
        self.folders = tuple(group.folder for group in self._distinct)
        """For whoever must clean up in our place."""
        self.procs_files = tuple(group.procs_file for group in self._distinct)
        """A process that writes "0" to each of them has joined, with what it forks from then on."""

    @property
    def holds_cpu(self) -> bool:
        return "cpu" in self._groups

    @property
    def holds_memory(self) -> bool:
        return "memory" in self._groups

    def limit_cpu(self, cpus: float | None) -> None:
        """At most the time of so many CPUs of this machine, which may be a fraction, or any."""
        if (group := self._groups.get("cpu")) is not None:
            quota_us, period_us = (None, 100_000) if cpus is None else cfs_quota(cpus)
            group.limit_cpu(quota_us, period_us)

    def limit_memory(self, num_bytes: int | None) -> bool:
        """Version 1 refuses a limit under what is held and cannot be freed: False, none is set."""
        group = self._groups.get("memory")
        return group is None or group.limit_memory(num_bytes)

    def memory(self) -> CellMemory:
        """Nothing at all where memory is not ours to limit."""
        group = self._groups.get("memory")
        if group is None:
            return CellMemory(charged_bytes=0, anon_bytes=0, oom_kills=0)
        return group.memory()

    def charged_bytes(self) -> int:
        """Of `memory`: quicker to read by itself."""
        group = self._groups.get("memory")
        return 0 if group is None else group.charged_bytes()

    def oom_kills(self) -> int:
        """Of `memory`: quicker to read by itself."""
        group = self._groups.get("memory")
        return 0 if group is None else group.oom_kills()

    def cpu_s(self) -> float:
        """CPU time that its processes have used; 0 where it is not counted."""
        group = self._groups.get("cpuacct") or self._groups.get("cpu")
        counts = "cpuacct" in self._groups or isinstance(group, V2Group)
        return group.cpu_s() if group is not None and counts else 0.0

    def throttled_s(self) -> float:
        """How long its processes were kept from running, added up over the CPUs."""
        group = self._groups.get("cpu")
        return 0.0 if group is None else group.throttled_s()

    def pids(self) -> list[int]:
        return sorted({pid for group in self._distinct for pid in group.pids()})

    def kill(self) -> None:
        """Kill everything in it; returns when it is empty, or after some seconds."""
        with contextlib.suppress(OSError):
            self.limit_cpu(None)  # dying takes CPU time too
        for group in self._distinct:
            group.kill()

    def remove(self) -> None:
        """Kill everything in it and remove its groups; removing it again is no error."""
        with contextlib.suppress(OSError):
            self.limit_cpu(None)
        for group in self._distinct:
            group.remove()
        self._forget(self)


class Cgroups:
    """The control groups that this process may make; `close` removes all of them."""

    def __init__(
        self, parents: Mapping[str, Group], why_not: Mapping[str, str], undo: Sequence[_Undo] = ()
    ) -> None:
        self._parents = dict(parents)
        self._undo = list(undo)
        self._cells: list[Cell] = []
        self.cpu = "cpu" in parents
        self.memory = "memory" in parents
        self.versions = {
            controller: 2 if isinstance(parents[controller], V2Group) else 1
            for controller in ("cpu", "memory")
            if controller in parents
        }
        self.why_not = dict(why_not)
        """By "cpu" and "memory": why it cannot be limited."""
        self.folders = tuple({group.folder: None for group in parents.values()})

    def cell(self, name: str) -> Cell:
        """A new cell without limits. Raises `PlatformError` where the kernel refuses it."""
        _check_name(name)
        made: dict[str, Group] = {}
        groups: dict[str, Group] = {}
        try:
            for controller, parent in self._parents.items():
                folder = os.path.join(parent.folder, name)
                if folder not in made:
                    version = 2 if isinstance(parent, V2Group) else 1
                    made[folder] = make_group(version, folder)
                groups[controller] = made[folder]
        except OSError as error:
            for group in made.values():
                group.remove()
            raise PlatformError(f"no control group for {name}: {error}") from error
        cell = Cell(groups, self._drop)
        self._cells.append(cell)
        return cell

    def _drop(self, cell: Cell) -> None:
        if cell in self._cells:
            self._cells.remove(cell)

    def close(self) -> None:
        """Kill and remove every cell; closing twice is no error."""
        for cell in list(self._cells):
            cell.remove()
        for folder in self.folders:
            parent = next(one for one in self._parents.values() if one.folder == folder)
            parent.remove()
        while self._undo:
            self._undo.pop().undo()


class _Undo:
    """What was changed in our own version 2 group, to be changed back when nobody else needs it."""

    def __init__(self, own: str) -> None:
        self.own = V2Group(own)
        self.enabled: list[str] = []
        self.moved = False

    def undo(self) -> None:
        leaf = V2Group(os.path.join(self.own.folder, DRIVER_LEAF))
        with contextlib.suppress(OSError):
            below = {entry.name for entry in os.scandir(self.own.folder) if entry.is_dir()}
            if below - {DRIVER_LEAF}:
                return  # another driver's: its cells would lose their limits
            for controller in self.enabled:
                self.own.write("cgroup.subtree_control", f"-{controller}")
            if self.moved:
                for pid in leaf.pids():
                    self.own.write("cgroup.procs", str(pid))
                os.rmdir(leaf.folder)


def open_cgroups(
    name: str,
    *,
    announce: Callable[[str], None] = lambda _: None,
    mounts: str | None = None,
    own: str | None = None,
) -> Cgroups:
    """Make parent groups called `name` below this process's own group, wherever it may.

    `announce` hears of every folder before it is made, so that somebody else can remove it.

    `mounts` and `own` are what ``/proc/self/mountinfo`` and ``/proc/self/cgroup`` would say. In a
    version 2 hierarchy this process and those that it has started move into a group `DRIVER_LEAF`
    beside it, if they have to and nobody else is in theirs; `close` moves them back.
    """
    _check_name(name)
    hierarchies = find_hierarchies(
        Path("/proc/self/mountinfo").read_text() if mounts is None else mounts,
        Path("/proc/self/cgroup").read_text() if own is None else own,
    )
    parents: dict[str, Group] = {}
    why_not: dict[str, str] = {}
    undo: list[_Undo] = []
    for controller in ("cpu", "memory", "cpuacct"):
        try:
            where = _choose(controller, hierarchies)
            if where.version == 2:
                undo += _enable(controller, where)
            parents[controller] = _parent(controller, where, name, parents, announce)
        except (_Unusable, OSError) as error:
            why_not[controller] = str(error)
    if "cpu" not in parents and "cpuacct" in parents:
        _remove_unused(parents, "cpuacct")
    why_not.pop("cpuacct", None)
    return Cgroups(parents, why_not, undo)


class _Unusable(Exception):
    """Why a controller cannot be used here."""


def _choose(controller: str, hierarchies: Sequence[Hierarchy]) -> Hierarchy:
    """The hierarchy that has the controller and lets us make groups in it."""
    for one in hierarchies:
        if one.version == 1 and controller in one.controllers:
            break
        if one.version == 2 and one.own is not None:
            with contextlib.suppress(OSError):
                if controller in V2Group(_own_group(one.own)).read("cgroup.controllers").split():
                    break
    else:
        unified = next((one for one in hierarchies if one.version == 2), None)
        if unified is None or any(one.version == 1 for one in hierarchies):
            raise _Unusable(f"no cgroup hierarchy with the {controller} controller is mounted")
        raise _Unusable(f"this process's group has not been given the {controller} controller")
    if one.own is None:
        raise _Unusable(f"this process's own group is not visible below {one.mount}")
    if one.read_only:
        raise _Unusable(f"{one.mount} is mounted read-only")
    return one


def _own_group(own: str) -> str:
    """Our own group, or the one above it if a driver has moved out of that one."""
    return os.path.dirname(own) if os.path.basename(own) == DRIVER_LEAF else own


def _enable(controller: str, where: Hierarchy) -> list[_Undo]:
    """Hand the controller to the groups below our own version 2 group."""
    own = V2Group(_own_group(where.own or where.mount))
    if controller in own.read("cgroup.subtree_control").split():
        return []
    undo = _Undo(own.folder)
    try:
        own.write("cgroup.subtree_control", f"+{controller}")
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise _Unusable(_explain(error, own.folder)) from error
        _step_aside(own)
        undo.moved = True
        try:
            own.write("cgroup.subtree_control", f"+{controller}")
        except OSError as second:
            undo.undo()
            raise _Unusable(_explain(second, own.folder)) from second
    undo.enabled.append(controller)
    return [undo]


def _step_aside(own: V2Group) -> None:
    here = {int(pid) for pid in own.read("cgroup.procs").split()}
    ours = {os.getpid(), *descendants(os.getpid())} & here
    if others := here - ours:
        raise _Unusable(
            f"{len(others)} other processes are in this process's group {own.folder}, and the "
            "kernel gives no controllers to groups below one with processes: start it in a scope "
            "of its own"
        )
    leaf = os.path.join(own.folder, DRIVER_LEAF)
    os.makedirs(leaf, exist_ok=True)
    for pid in ours:
        with contextlib.suppress(ProcessLookupError):
            V2Group(leaf).write("cgroup.procs", str(pid))


def _parent(
    controller: str,
    where: Hierarchy,
    name: str,
    parents: Mapping[str, Group],
    announce: Callable[[str], None],
) -> Group:
    own = where.own or where.mount
    folder = os.path.join(_own_group(own) if where.version == 2 else own, name)
    group = next((one for one in parents.values() if one.folder == folder), None)
    made = group is None
    if group is None:
        announce(folder)
        try:
            group = make_group(where.version, folder)
        except OSError as error:
            raise _Unusable(_explain(error, os.path.dirname(folder))) from error
    missing = [file for file in _NEEDED[where.version, controller] if not group.has(file)]
    try:
        if missing:
            raise _Unusable(f"the kernel was built without {', '.join(missing)}")
        if where.version == 2:
            group.write("cgroup.subtree_control", f"+{controller}")
    except (OSError, _Unusable):
        if made:
            group.remove()
        raise
    return group


def _explain(error: OSError, folder: str) -> str:
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"this user may not make groups in {folder} ({error.strerror})"
    return f"{folder}: {error.strerror}"


def _remove_unused(parents: dict[str, Group], controller: str) -> None:
    group = parents.pop(controller)
    if group.folder not in {other.folder for other in parents.values()}:
        group.remove()


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,200}", name):
        raise ValueError(f"{name!r} is no name for a control group")
