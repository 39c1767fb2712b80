"""Tries, in a process of its own, what isolating a function takes: with the calls that do it.

Standard input: one JSON line ``{"folder": an empty folder, "image": an ext4 image or null,
"user_namespace": bool}``. Standard output: one JSON line, step -> null if it works, else why not.
Everything happens in namespaces that end with the process: nothing is left, not even after kill -9.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable

from funcpipe.emulator import linux

_SIZE_BYTES = 1 << 20
_PLAIN = linux.MS_NOSUID | linux.MS_NODEV
STEPS = ("user namespace", "pid namespace", "mount namespace", "ipc namespace", "own proc",
         "tmpfs", "loop", "read only")  # fmt: skip


class _Unlike(OSError):
    """The kernel agreed, and then did not do it."""


def pid_namespace() -> None:
    def be_first() -> None:
        if os.getpid() != 1:
            raise _Unlike("the child was not process 1")

    _in_child(be_first)


def mount_namespace() -> None:
    linux.unshare(linux.NEW_MOUNTS)
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)


def own_proc(folder: str) -> None:
    """In a child that is process 1 of its namespace."""

    def mount_it() -> None:
        linux.mount("proc", folder, "proc", _PLAIN)
        if os.readlink(os.path.join(folder, "self")) != "1":
            raise _Unlike("/proc is of another namespace")
        linux.unmount(folder)

    _in_child(mount_it)


def _in_child(act: Callable[[], None]) -> None:
    """Do it in the first process of a new process namespace."""
    reading, writing = os.pipe()
    child = linux.fork_first_of_namespace()
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
    linux.mount("tmpfs", folder, "tmpfs", _PLAIN, f"size={_SIZE_BYTES},mode=700")
    _must_be_full(folder)
    linux.unmount(folder)


def loop(folder: str, image: str) -> None:
    device = linux.open_loop_device(image)
    try:
        linux.mount_device(device, folder)
    finally:
        os.close(device)
    _must_be_full(folder)
    linux.unmount(folder)


def read_only(folder: str) -> None:
    """Everything, but for one folder that is mounted on its own."""
    linux.mount("tmpfs", folder, "tmpfs", _PLAIN, f"size={_SIZE_BYTES},mode=700")
    kept = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    linux.set_read_only("/", read_only=True, below=True)
    linux.set_read_only(folder, read_only=False)
    os.close(os.open("may", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=kept))
    os.close(kept)
    try:
        os.mkdir(os.path.join(os.path.dirname(folder), "may-not"))
    except OSError as error:
        if error.errno == errno.EROFS:
            return
        raise
    raise _Unlike("a read-only mount was written to")


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
        attempt("user namespace", linux.enter_user_namespace)
        need = "user namespace"
    else:
        need = None
    attempt("pid namespace", pid_namespace, after=need)
    attempt("mount namespace", mount_namespace, after=need)
    attempt("ipc namespace", lambda: linux.unshare(linux.NEW_IPC), after=need)
    attempt("tmpfs", lambda: tmpfs(folder), after="mount namespace")
    if image is not None:
        attempt("loop", lambda: loop(folder, str(image)), after="mount namespace")
    attempt("own proc", lambda: own_proc(folder), after="mount namespace")
    attempt("read only", lambda: read_only(folder), after="mount namespace")
    return found


def main() -> int:
    parent = os.getppid()
    linux.die_with_parent()
    if os.getppid() != parent:
        return 125
    print(json.dumps(probe(json.loads(sys.stdin.readline()))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
