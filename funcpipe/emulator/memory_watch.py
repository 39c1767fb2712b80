"""Functions' memory: what they hold by a fresh process's measure, and who holds too much.

What decides is pure; `MemoryWatch` looks at the processes and their cells again and again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from funcpipe.emulator.base_memory import BaseMemory
from funcpipe.emulator.cgroups import Cell
from funcpipe.emulator.processes import descendants

__all__ = [
    "MemoryWatch",
    "Resident",
    "excess",
    "held_bytes",
    "inherited_bytes",
    "read_resident",
]

_MB = 1 << 20
_STEP_BYTES = 1 * _MB  # a cell's limit is not set anew for less than that
_SETTLED_BYTES = 4 * _MB
_FAR = 0.5  # below this share of its limit a cell needs no newer one: a look costs CPU time


@dataclass(frozen=True, kw_only=True)
class Resident:
    """What a process tree has in memory. All but `others_bytes` and `shared_bytes`: its root.

    `others_bytes` is what its descendants have for themselves, `shared_bytes` the largest shared
    memory of any of them.
    """

    anon_bytes: int
    file_bytes: int
    shared_bytes: int = 0
    others_bytes: int = 0


def held_bytes(resident: Resident, base: BaseMemory) -> int:
    """What the tree would hold had its root been started afresh, and not forked.

    Of mapped files a fresh process has what the template has mapped, which does not show in a
    child that has not touched it; what is mapped beyond that can be dropped and read again, so
    that it is nobody's memory.
    """
    files = base.file_bytes or resident.file_bytes
    return resident.anon_bytes + resident.others_bytes + resident.shared_bytes + files


def inherited_bytes(anon_bytes: int, charged_anon_bytes: int, base: BaseMemory) -> int:
    """What a forked process holds and its cell is not charged for.

    `anon_bytes`: RssAnon of the only process in the cell. Pages of the template that it has changed
    since are its own and charged.
    """
    return max(0, anon_bytes - charged_anon_bytes) + base.file_bytes


def excess(num_bytes: int, limit_bytes: int) -> str | None:
    """How much was held, if that is too much; whole megabytes, such that the first is larger."""
    if num_bytes <= limit_bytes:
        return None
    limit_mb = limit_bytes // _MB
    return f"held {max(-(-num_bytes // _MB), limit_mb + 1):,} MB of {limit_mb:,} MB"


def _refused(limit_bytes: int) -> str:
    return f"needed more than its {limit_bytes // _MB:,} MB"


# -- reading ---------------------------------------------------------------------------------


def read_resident(pid: int) -> Resident | None:
    """The process alone, without its descendants; None if it has ended."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    if "RssAnon" not in fields:
        return None  # a zombie has no memory

    def size(name: str) -> int:
        return int(fields[name].split()[0]) * 1024

    return Resident(
        anon_bytes=size("RssAnon"),
        file_bytes=size("RssFile"),
        shared_bytes=size("RssShmem"),
    )


def private_bytes(pid: int) -> int:
    """What only this process has changed; forked children share the rest with their parent."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Private_Dirty:"):
                return int(line.split()[1]) * 1024
    return 0


def with_others(resident: Resident, pids: list[int], *, limit_bytes: int) -> Resident:
    """Add descendants. Their exact size takes long to read: only where it can matter."""
    seen = [one for pid in pids if (one := read_resident(pid)) is not None]
    shared = max([resident.shared_bytes, *(one.shared_bytes for one in seen)])
    bound = sum(one.anon_bytes for one in seen)
    known = resident.anon_bytes + resident.file_bytes + shared
    if known + bound > limit_bytes:
        bound = sum(private_bytes(pid) for pid in pids)
    return replace(resident, others_bytes=bound, shared_bytes=shared)


# -- watching --------------------------------------------------------------------------------


class _Watched:
    """One environment. `look` says what is wrong with it, once."""

    def __init__(self, pid: int, limit_bytes: int, cell: Cell | None, base: BaseMemory) -> None:
        self.pid = pid
        self.limit_bytes = limit_bytes
        self.cell = cell if cell is not None and cell.holds_memory else None
        self.base = base
        self.told = False
        self.lock = threading.Lock()
        self._tree = cell if cell is not None and cell.folders else None
        self._set_bytes: int | None = None

    def begin(self) -> None:
        if self.cell is not None:
            self._limit(self.base.anon_bytes + self.base.file_bytes)

    def look(self) -> str | None:
        with self.lock:
            if self.told:
                return None
            try:
                found = self._look() if self.cell is None else self._look_at(self.cell)
            except (OSError, ValueError):
                return None  # it went away while we looked
            self.told = found is not None
            return found

    def _look(self) -> str | None:
        """Nobody else holds it to its limit."""
        resident = read_resident(self.pid)
        if resident is None:
            return None
        if pids := self._others():
            room = self.limit_bytes - max(0, self.base.file_bytes - resident.file_bytes)
            resident = with_others(resident, pids, limit_bytes=room)
        return excess(held_bytes(resident, self.base), self.limit_bytes)

    def _others(self) -> list[int]:
        pids = self._tree.pids() if self._tree is not None else descendants(self.pid)
        return [pid for pid in pids if pid != self.pid]

    def _look_at(self, cell: Cell) -> str | None:
        """The kernel holds the cell to what is left of the limit beside the inherited pages."""
        if cell.oom_kills():
            return _refused(self.limit_bytes)
        if self._set_bytes is not None and cell.charged_bytes() < self._set_bytes * _FAR:
            return None
        before = cell.memory()
        resident = read_resident(self.pid)
        if resident is None or self._others():
            return None
        after = cell.memory()
        if abs(after.anon_bytes - before.anon_bytes) > _SETTLED_BYTES:
            return None  # too quick to be compared; the limit that is set is the stricter one
        charged = (before.anon_bytes + after.anon_bytes) // 2
        return self._limit(inherited_bytes(resident.anon_bytes, charged, self.base))

    def _limit(self, inherited: int) -> str | None:
        if self.cell is None:
            return None
        wanted = self.limit_bytes - inherited
        if wanted < _STEP_BYTES:
            return excess(inherited + max(_STEP_BYTES, wanted), self.limit_bytes)
        if self._set_bytes is not None and abs(wanted - self._set_bytes) < _STEP_BYTES:
            return None
        if self.cell.limit_memory(wanted):
            self._set_bytes = wanted
            return None
        # Page cache that is just being written keeps the kernel from it for a while, and is no
        # excess: the next look tries again.
        return excess(self.cell.memory().anon_bytes + inherited, self.limit_bytes)


class MemoryWatch:
    """Looks at all environments every `every_s` seconds of real time, on one thread.

    `on_excess(id, text)` is called once for an environment that exceeds its memory, on that thread
    or in `remove`; `text` is such as "held 1,830 MB of 1,769 MB". It must not raise.

    An environment's cell is held to its memory by the kernel; one without, only by these looks.
    """

    def __init__(self, *, every_s: float = 0.05, on_excess: Callable[[str, str], None]) -> None:
        self._every_s = every_s
        self._on_excess = on_excess
        self._watched: dict[str, _Watched] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="funcpipe-memory", daemon=True)
        self._thread.start()

    def add(
        self, id: str, *, pid: int, limit_bytes: int, cell: Cell | None, base: BaseMemory
    ) -> None:
        """Watch the tree of `pid`, in `cell` if that is given; sets the cell's first limit."""
        watched = _Watched(pid, limit_bytes, cell, base)
        with contextlib.suppress(OSError):
            watched.begin()
        with self._lock:
            self._watched[id] = watched

    def remove(self, id: str) -> None:
        """Watch it no more. It is looked at a last time, so that nothing goes unnoticed."""
        with self._lock:
            watched = self._watched.pop(id, None)
        if watched is not None:
            self._tell(id, watched)

    def close(self) -> None:
        self._closing.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _tell(self, id: str, watched: _Watched) -> None:
        if (text := watched.look()) is not None:
            self._on_excess(id, text)

    def _run(self) -> None:
        while not self._closing.wait(self._every_s):
            with self._lock:
                watched = list(self._watched.items())
            for id, one in watched:
                self._tell(id, one)
