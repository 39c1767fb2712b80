"""What a forked function puts between itself and the machine before it runs anything."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal

from funcpipe.emulator import linux

__all__ = ["ForkRequest", "Isolation", "TmpKind"]

TmpKind = Literal["loop", "tmpfs"]
_TMP = "/tmp"  # noqa: S108


@dataclass(frozen=True, kw_only=True)
class Isolation:
    """Which walls a function gets; the default is none, which works everywhere.

    `pid_ns`: it sees and signals only its own processes, and they all end with it. `mount_ns`: own
    mounts, a private /tmp and own IPC objects; `read_only`, `tmp` and `shared_memory_mb` need it.
    `user_ns`: the template enters a user namespace first, which makes the others possible without
    root. `tmp`: "loop" mounts the request's `tmp_image` (root), "tmpfs" makes one of `tmp_mb`,
    None leaves the size of the folder unbounded. `shared_memory_mb`: None leaves /dev/shm alone,
    0 leaves nothing to write to.
    """

    pid_ns: bool = False
    mount_ns: bool = False
    user_ns: bool = False
    tmp: TmpKind | None = None
    read_only: bool = False
    shared_memory_mb: int | None = None

    def __post_init__(self) -> None:
        if self.tmp not in (None, "loop", "tmpfs"):
            raise ValueError(f"tmp must be 'loop', 'tmpfs' or None, found {self.tmp!r}")
        if self.tmp == "loop" and self.user_ns:
            raise ValueError("in a user namespace no image can be mounted: use tmp='tmpfs'")
        needs = [self.tmp is not None, self.read_only, self.shared_memory_mb is not None]
        if any(needs) and not self.mount_ns:
            raise ValueError("tmp, read_only and shared_memory_mb need mount_ns")
        if self.shared_memory_mb is not None and self.shared_memory_mb < 0:
            raise ValueError(f"shared_memory_mb cannot be {self.shared_memory_mb}")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Isolation:
        return Isolation(**data)


@dataclass(frozen=True, kw_only=True)
class ForkRequest:
    """One function to be forked.

    `tmp_mb` is the size of a tmpfs, and `tmp_image` a file system that nothing else has mounted.

    `environment` replaces all variables. `folder` exists; it becomes the working folder, and the
    caller names it in HOME and TMPDIR. `procs_files` are the control groups to join. With own
    mounts, `writable` and `visible` are existing paths that stay what they are outside, also below
    /tmp; what Python itself needs stays visible anyway.
    """

    id: str
    environment: Mapping[str, str]
    folder: str
    procs_files: tuple[str, ...] = ()
    tmp_image: str | None = None
    tmp_mb: int | None = None
    visible: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"environment": dict(self.environment)}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> ForkRequest:
        lists = {name: tuple(data[name]) for name in ("procs_files", "visible", "writable")}
        return ForkRequest(**(dict(data) | lists))


def isolate(isolation: Isolation, request: ForkRequest) -> None:
    """Raise the walls, in a forked child; raises `OSError` where one cannot be."""
    for path in request.procs_files:
        with open(path, "w", encoding="ascii") as file:
            file.write("0")
    if not isolation.mount_ns:
        return
    with _tmp_device(isolation, request) as device:
        linux.unshare(linux.NEW_MOUNTS | linux.NEW_IPC)
        linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
        _mount_tmp(isolation, request, device)
    _arrange_folders(request)
    if isolation.read_only:
        _make_read_only(request)
    if isolation.pid_ns:
        _mount_proc()
    elif isolation.read_only:
        linux.set_read_only("/proc", read_only=False)
    if isolation.shared_memory_mb is not None:
        _mount_shared_memory(isolation.shared_memory_mb)
    # Last: what has been raised stays.
    linux.drop_rights(linux.CAPABILITIES_OVER_THE_MACHINE)


@contextmanager
def _tmp_device(isolation: Isolation, request: ForkRequest) -> Iterator[int | None]:
    """The loop device of an image, opened where the old mounts hold.

    A mount with a file that is open for writing could not be made read-only any more.
    """
    if isolation.tmp != "loop":
        yield None
        return
    if request.tmp_image is None:
        raise ValueError("tmp='loop' needs a tmp_image")
    device = linux.open_loop_device(request.tmp_image)
    try:
        yield device
    finally:
        os.close(device)


def _mount_tmp(isolation: Isolation, request: ForkRequest, device: int | None) -> None:
    if device is not None:
        linux.mount_device(device, request.folder)
    elif isolation.tmp == "tmpfs":
        if request.tmp_mb is None:
            raise ValueError("tmp='tmpfs' needs tmp_mb")
        flags = linux.MS_NOSUID | linux.MS_NODEV
        linux.mount("tmpfs", request.folder, "tmpfs", flags, f"size={request.tmp_mb}m,mode=700")


def _arrange_folders(request: ForkRequest) -> None:
    """The folder's `home` becomes the folder, its `tmp` becomes /tmp; both share its space."""
    home, tmp = os.path.join(request.folder, "home"), os.path.join(request.folder, "tmp")
    os.makedirs(home, mode=0o700, exist_ok=True)
    os.makedirs(tmp, exist_ok=True)
    os.chmod(tmp, 0o1777)  # noqa: S103 - as /tmp is everywhere
    moved = {path: path for path in _needed_below_tmp(request)} | {request.folder: home}
    # Opened first, for then they are hidden.
    sources = {path: os.open(source, os.O_PATH) for path, source in moved.items()}
    linux.mount(tmp, _TMP, flags=linux.MS_BIND)
    try:
        for path in sorted(sources, key=lambda path: path.count("/")):
            _make_mount_point(path, is_folder=stat.S_ISDIR(os.fstat(sources[path]).st_mode))
            flags = linux.MS_BIND | linux.MS_REC
            linux.mount(f"/proc/self/fd/{sources[path]}", path, flags=flags)
    finally:
        for descriptor in sources.values():
            os.close(descriptor)


def _needed_below_tmp(request: ForkRequest) -> set[str]:
    """What must still be found below /tmp when another folder is mounted there."""
    python = [sys.prefix, sys.base_prefix, os.path.dirname(sys.executable), *sys.path]
    python += request.environment.get("PYTHONPATH", "").split(os.pathsep)
    python.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    asked = [*request.visible, *request.writable]
    for path in asked:
        os.stat(path)  # raises where it is missing
    found = {path for path in [*asked, *python] if os.path.isabs(path) and os.path.exists(path)}
    found |= {os.path.realpath(path) for path in found}
    return {path for path in map(os.path.normpath, found) if path.startswith(_TMP + "/")}


def _make_mount_point(path: str, *, is_folder: bool) -> None:
    if os.path.exists(path):
        return
    os.makedirs(path if is_folder else os.path.dirname(path), exist_ok=True)
    if not is_folder:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))


def _make_read_only(request: ForkRequest) -> None:
    """All that is mounted, but for the function's own folders and what it may write to."""
    for path in map(os.path.normpath, request.writable):
        if not path.startswith(_TMP + "/"):  # those are mounts of their own already
            linux.mount(path, path, flags=linux.MS_BIND | linux.MS_REC)
    linux.set_read_only("/", read_only=True, below=True)
    for path in (request.folder, _TMP):
        linux.set_read_only(path, read_only=False)
    for path in request.writable:
        linux.set_read_only(os.path.normpath(path), read_only=False, below=True)


def _mount_proc() -> None:
    flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    linux.mount("proc", "/proc", "proc", flags)
    for path in ("/proc/sys", "/proc/sysrq-trigger"):  # the machine's, not the function's
        if os.path.exists(path):
            linux.mount(path, path, flags=linux.MS_BIND)
            linux.set_read_only(path, read_only=True)


def _mount_shared_memory(size_mb: int) -> None:
    path = os.path.realpath("/dev/shm")  # noqa: S108
    if not os.path.isdir(path):
        return
    flags = linux.MS_NOSUID | linux.MS_NODEV
    if size_mb == 0:
        linux.mount("tmpfs", path, "tmpfs", flags | linux.MS_RDONLY, "size=4k,mode=555")
    else:
        linux.mount("tmpfs", path, "tmpfs", flags, f"size={size_mb}m,mode=1777")
