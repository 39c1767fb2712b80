"""A folder that behaves like the kernel's cgroup hierarchies, as far as we use them."""

from __future__ import annotations

import errno
import os
from functools import partialmethod
from pathlib import Path

import pytest

from funcpipe.emulator.cgroup_files import Group

V1_FILES = {
    "cpu": {
        "cpu.cfs_quota_us": "-1",
        "cpu.cfs_period_us": "100000",
        "cpu.stat": "nr_periods 9\nnr_throttled 3\nthrottled_time 2500000000\n",
    },
    "cpuacct": {"cpuacct.usage": "1500000000"},
    "memory": {
        "memory.limit_in_bytes": "9223372036854771712",
        "memory.memsw.limit_in_bytes": "9223372036854771712",
        "memory.usage_in_bytes": "8192",
        "memory.stat": "cache 4096\nrss 1\ntotal_rss 4096\n",
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        "memory.swappiness": "60",
    },
}
V2_FILES = {
    "cpu": {"cpu.max": "max 100000", "cpu.stat": "usage_usec 1500000\nthrottled_usec 2500000\n"},
    "memory": {
        "memory.max": "max",
        "memory.swap.max": "max",
        "memory.current": "8192",
        "memory.stat": "anon 4096\nfile 4096\n",
        "memory.events": "low 0\noom 3\noom_kill 2\n",
        "memory.oom.group": "0",
    },
}


def _write(group: Group, kernel: FakeKernel, name: str, text: str) -> None:
    kernel.write(group, name, text)


class FakeKernel:
    """Groups are folders below `root`; processes are the numbers in their ``cgroup.procs``."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.controllers: dict[Path, tuple[int, tuple[str, ...]]] = {}
        self.refuse: dict[str, int] = {}
        """Writes to files of that name fail with that error."""
        self.missing: set[str] = set()
        """Files of that name are not made."""
        self._mkdir, self._rmdir = os.mkdir, os.rmdir
        monkeypatch.setattr(os, "mkdir", self.mkdir)
        monkeypatch.setattr(os, "rmdir", self.rmdir)
        monkeypatch.setattr(Group, "write", partialmethod(_write, self))

    def hierarchy(
        self, place: str, version: int, *controllers: str, processes: tuple[int, ...] = ()
    ) -> Path:
        folder = self.root / place
        self.controllers[folder] = (version, controllers)
        folder.mkdir(parents=True)
        (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in processes))
        return folder

    def _offered(self, folder: Path) -> tuple[int, tuple[str, ...]]:
        """The version and the controllers of a group."""
        if folder in self.controllers:
            return self.controllers[folder]
        version, controllers = self._offered(folder.parent)
        if version == 2:
            controllers = tuple((folder.parent / "cgroup.subtree_control").read_text().split())
        return version, controllers

    def mkdir(self, path: str | Path, mode: int = 0o777, **options: int) -> None:
        self._mkdir(path, mode, **options)
        folder = Path(path)
        if not any(one == folder or one in folder.parents for one in self.controllers):
            return
        version, controllers = self._offered(folder)
        files = {"cgroup.procs": ""}
        if version == 2:
            files |= {"cgroup.controllers": " ".join(controllers), "cgroup.subtree_control": ""}
        for controller in controllers:
            files |= (V1_FILES if version == 1 else V2_FILES).get(controller, {})
        for name, text in files.items():
            if name not in self.missing:
                (folder / name).write_text(text)

    def rmdir(self, path: str | Path, **options: int) -> None:
        folder = Path(path)
        if (folder / "cgroup.procs").exists():
            if any(entry.is_dir() for entry in folder.iterdir()) or self.pids(folder):
                raise OSError(errno.EBUSY, "Device or resource busy")
            for entry in folder.iterdir():
                entry.unlink()
        self._rmdir(path, **options)

    def pids(self, folder: Path) -> list[str]:
        return (folder / "cgroup.procs").read_text().split()

    def write(self, group: Group, name: str, text: str) -> None:
        path = Path(group.folder) / name
        if name in self.refuse:
            raise OSError(self.refuse[name], os.strerror(self.refuse[name]), str(path))
        if not path.exists():
            raise FileNotFoundError(errno.ENOENT, "No such file", str(path))
        if name == "cgroup.procs":
            self._move(str(os.getpid()) if text == "0" else text, path)
        elif name == "cgroup.subtree_control":
            self._hand_down(path, text)
        else:
            path.write_text(text)

    def _move(self, pid: str, path: Path) -> None:
        for other in self.root.rglob("cgroup.procs"):
            rest = [one for one in other.read_text().split() if one != pid]
            other.write_text("".join(f"{one}\n" for one in rest))
        path.write_text(path.read_text() + f"{pid}\n")

    def _hand_down(self, path: Path, text: str) -> None:
        if text[0] == "+" and self.pids(path.parent):
            raise OSError(errno.EBUSY, "Device or resource busy")
        if text[0] == "+" and text[1:] not in (path.parent / "cgroup.controllers").read_text():
            raise FileNotFoundError(errno.ENOENT, "No such controller")
        enabled = {*path.read_text().split()} - {text[1:]}
        if text[0] == "+":
            enabled.add(text[1:])
        path.write_text(" ".join(sorted(enabled)))
        for group in (entry for entry in path.parent.iterdir() if entry.is_dir()):
            (group / "cgroup.controllers").write_text(path.read_text())
            for name, content in V2_FILES.get(text[1:], {}).items() if text[0] == "+" else ():
                (group / name).write_text(content)


def mount_line(folder: Path, kind: str, *, root: str = "/", options: str = "rw") -> str:
    """A line of mountinfo; `kind` is "cgroup2" or the controllers of a v1 hierarchy."""
    name, also = ("cgroup2", "rw") if kind == "cgroup2" else ("cgroup", f"rw,{kind}")
    place = str(folder).replace(" ", "\\040")
    return f"32 31 0:29 {root} {place} {options},relatime shared:9 - {name} {name} {also}\n"
