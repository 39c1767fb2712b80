"""Tries, in a process of its own, what isolating a function takes; run as a script.

Standard input: one JSON line ``{"folder": an empty folder, "image": an ext4 image or null,
"user_namespace": bool}``. Standard output: one JSON line, step -> null if it works, else why not.
Everything happens in namespaces that end with the process: nothing is left, not even after kill -9.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import subprocess
import sys

TYPE_CHECKING = False  # importing typing would take half of the whole time
if TYPE_CHECKING:
    from collections.abc import Callable

NEWNS, NEWIPC, NEWUSER, NEWPID = 0x00020000, 0x08000000, 0x10000000, 0x20000000
_NOSUID, _NODEV, _REC, _PRIVATE = 0x2, 0x4, 0x4000, 0x40000
_SYS_MOUNT_SETATTR = 442  # the same on x86-64 and arm64
_AT_FDCWD, _AT_RECURSIVE, _ATTR_RDONLY = -100, 0x8000, 0x1
_PR_SET_PDEATHSIG = 1
_SIZE_BYTES = 1 << 20
STEPS = ("user namespace", "pid namespace", "mount namespace", "ipc namespace", "own proc",
         "tmpfs", "loop", "read only")  # fmt: skip
_libc = ctypes.CDLL(None, use_errno=True)


class _Unlike(OSError):
    """The kernel agreed, and then did not do it."""


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    result = _libc.mount(*(text.encode() for text in (source, target, kind)),
                         ctypes.c_ulong(flags), options.encode())  # fmt: skip
    _check(result, f"mount {kind or target}")


def user_namespace() -> None:
    """Go on as root in a user namespace in which only we exist, in a child.

    And in a pid namespace that belongs to it: nobody may go back into one of the outer user's.
    """
    uid, gid = os.getuid(), os.getgid()
    _unshare(NEWUSER)
    for name, text in (
        ("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")
    ):  # fmt: skip
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)
    _unshare(NEWPID)
    child = os.fork()
    if child:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def pid_namespace() -> None:
    """As a template does for every child: unshare, fork, and back to its own."""
    own = os.open("/proc/self/ns/pid", os.O_RDONLY)
    _unshare(NEWPID)
    child = os.fork()
    if child == 0:
        os._exit(0 if os.getpid() == 1 else 1)
    _, status = os.waitpid(child, 0)
    _check(_libc.setns(own, NEWPID), "setns")
    os.close(own)
    if status != 0:
        raise _Unlike("the child was not process 1")


def mount_namespace() -> None:
    _unshare(NEWNS)
    _mount("none", "/", "", _REC | _PRIVATE)


def own_proc(folder: str) -> None:
    """In a child that is process 1 of its namespace."""

    def mount_it() -> None:
        _mount("proc", folder, "proc", _NOSUID | _NODEV)
        if os.readlink(os.path.join(folder, "self")) != "1":
            raise _Unlike("/proc is of another namespace")
        _umount(folder)

    _unshare(NEWPID)
    _in_child(mount_it)


def _in_child(act: Callable[[], None]) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            act()
            os._exit(0)
        except OSError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(1)
    os.close(writing)
    told = os.read(reading, 4096).decode()
    os.close(reading)
    _, status = os.waitpid(child, 0)
    if status != 0:
        raise _Unlike(told or f"status {status}")


def _umount(folder: str) -> None:
    _check(_libc.umount2(folder.encode(), 0), "umount")


def _must_be_full(folder: str) -> None:
    """Writing more than it holds must fail, and for that reason."""
    try:
        with open(os.path.join(folder, "file"), "wb", buffering=0) as file:
            for _ in range(16):
                file.write(bytes(_SIZE_BYTES))
    except OSError as error:
        if error.errno == errno.ENOSPC:
            return
        raise
    raise _Unlike("it took more than its size")


def tmpfs(folder: str) -> None:
    _mount("tmpfs", folder, "tmpfs", _NOSUID | _NODEV, f"size={_SIZE_BYTES},mode=700")
    _must_be_full(folder)
    _umount(folder)


def loop(folder: str, image: str) -> None:
    done = subprocess.run(
        ["mount", "-o", "loop,nosuid,nodev", image, folder],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise _Unlike(done.stderr.strip() or "mount failed")
    _must_be_full(folder)
    _umount(folder)


def read_only(folder: str) -> None:
    """Everything, but for one folder that is mounted on its own."""
    _mount("tmpfs", folder, "tmpfs", _NOSUID | _NODEV, f"size={_SIZE_BYTES},mode=700")
    kept = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    _set_read_only("/", on=True)
    _set_read_only(folder, on=False)
    os.close(os.open("may", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=kept))
    os.close(kept)
    try:
        os.mkdir(os.path.join(os.path.dirname(folder), "may-not"))
    except OSError as error:
        if error.errno == errno.EROFS:
            return
        raise
    raise _Unlike("a read-only mount was written to")


def _set_read_only(path: str, *, on: bool) -> None:
    change = _MountAttr(set=_ATTR_RDONLY if on else 0, clear=0 if on else _ATTR_RDONLY)
    result = _libc.syscall(
        _SYS_MOUNT_SETATTR, _AT_FDCWD, path.encode(), _AT_RECURSIVE if on else 0,
        ctypes.byref(change), ctypes.c_size_t(ctypes.sizeof(change)),
    )  # fmt: skip
    _check(result, "mount_setattr")


def probe(spec: dict[str, object]) -> dict[str, str | None]:
    folder, image = str(spec["folder"]), spec["image"]
    found: dict[str, str | None] = {}

    def attempt(step: str, act: Callable[[], None], *, after: str | None = None) -> None:
        if after is not None and found.get(after) is not None:
            found[step] = f"needs a {after}"
            return
        try:
            act()
            found[step] = None
        except OSError as error:
            found[step] = error.strerror or str(error)

    if spec["user_namespace"]:
        attempt("user namespace", user_namespace)
        need = "user namespace"
    else:
        need = None
    attempt("pid namespace", pid_namespace, after=need)
    attempt("mount namespace", mount_namespace, after=need)
    attempt("ipc namespace", lambda: _unshare(NEWIPC), after=need)
    attempt("tmpfs", lambda: tmpfs(folder), after="mount namespace")
    if image is not None:
        attempt("loop", lambda: loop(folder, str(image)), after="mount namespace")
    attempt("own proc", lambda: own_proc(folder), after="mount namespace")
    attempt("read only", lambda: read_only(folder), after="mount namespace")
    return found


def main() -> int:
    parent = os.getppid()
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return 125
    print(json.dumps(probe(json.loads(sys.stdin.readline()))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
