"""Calls of the Linux kernel that Python 3.11 does not offer. Each raises `OSError`."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
import struct
import sys
from collections.abc import Iterable
from platform import machine

__all__ = [
    "CAPABILITIES_OVER_THE_MACHINE",
    "MS_BIND",
    "MS_NODEV",
    "MS_NOEXEC",
    "MS_NOSUID",
    "MS_PRIVATE",
    "MS_RDONLY",
    "MS_REC",
    "NEW_IPC",
    "NEW_MOUNTS",
    "NEW_USER",
    "die_with_parent",
    "drop_rights",
    "enter_user_namespace",
    "fork_first_of_namespace",
    "mount",
    "mount_device",
    "open_loop_device",
    "set_read_only",
    "unmount",
    "unshare",
]

NEW_MOUNTS = 0x00020000
NEW_IPC = 0x08000000
NEW_USER = 0x10000000
_NEW_PIDS = 0x20000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
_MS_NOATIME = 1024
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18

_PR_SET_PDEATHSIG = 1
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
_CAPABILITY_VERSION_3 = 0x20080522
_CAPABILITY_DATA = struct.Struct("=6I")
# What undoes walls or changes the machine (the kernel's numbers): modules, raw IO, tracing, mounts
# and namespaces, reboot, priorities, limits, clock, terminals, device files, audit, MAC, log.
CAPABILITIES_OVER_THE_MACHINE: tuple[int, ...] = (
    *(11, 12, 13, 16, 17, *range(19, 28), 29, 30, *range(32, 41)),
)
_MOUNT_ATTR_RDONLY = 1
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_SYS_MOUNT_SETATTR = 442  # the same on x86-64 and arm64
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}

_LOOP_CONFIGURE = 0x4C0A
_LOOP_CTL_GET_FREE = 0x4C82
_LO_FLAGS_AUTOCLEAR = 4
# struct loop_config: fd, block size, loop_info64 (the flags stand behind 52 bytes), 64 reserved.
_LOOP_CONFIG = struct.Struct("=II52xI176x64x")

_libc = ctypes.CDLL(None, use_errno=True)
# This one keeps the interpreter's lock, which a forked child must hold.
_locked_libc = ctypes.PyDLL(None, use_errno=True)
_locked_libc.syscall.restype = ctypes.c_long


def _check(result: int, what: str) -> None:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def die_with_parent() -> None:
    """Be killed when the thread that started this process ends; a change of user undoes it."""
    if sys.platform == "linux":
        _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def unshare(namespaces: int) -> None:
    _check(_libc.unshare(namespaces), "unshare")


def enter_user_namespace() -> None:
    """Go on with all rights in a user namespace in which only this user and group exist.

    This process must be one thread.
    """
    user, group = os.geteuid(), os.getegid()
    unshare(NEW_USER)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def drop_rights(capabilities: Iterable[int]) -> None:
    """Give up capabilities for good, for this process and all that it starts."""
    lost = 0
    for number in capabilities:
        lost |= 1 << number
        if _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) == -1:
            unknown = ctypes.get_errno() == errno.EINVAL  # of a newer kernel than this one
            _check(0 if unknown else -1, "prctl")
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    words = ctypes.create_string_buffer(_CAPABILITY_DATA.size)
    _check(_libc.capget(header, words), "capget")
    low, high = (0xFFFFFFFF ^ lost) & 0xFFFFFFFF, 0xFFFFFFFF ^ (lost >> 32)
    masks = (low, low, low, high, high, high)  # effective, permitted, inheritable, twice
    kept = [word & mask for word, mask in zip(_CAPABILITY_DATA.unpack(words), masks, strict=True)]
    _check(_libc.capset(header, _CAPABILITY_DATA.pack(*kept)), "capset")
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")


def fork_first_of_namespace() -> int:
    """Fork a child that is process 1 of a new process namespace; this process must be one thread.

    Unlike unshare and fork it leaves the caller where it is, which one without root rights could
    not undo. The C library does not hear of it: the child should only fork again, and wait.
    """
    number = _SYS_CLONE.get(machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"process namespaces are not used on {machine()}")
    api = ctypes.pythonapi
    zeros = [ctypes.c_long(0)] * 4
    api.PyOS_BeforeFork()
    flags = ctypes.c_long(_NEW_PIDS | signal.SIGCHLD)
    pid = int(_locked_libc.syscall(ctypes.c_long(number), flags, *zeros))
    if pid == 0:
        api.PyOS_AfterFork_Child()
        return 0
    failure = ctypes.get_errno()
    api.PyOS_AfterFork_Parent()
    ctypes.set_errno(failure)
    _check(pid, "clone with a new process namespace")
    return pid


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    names = [os.fsencode(text) or None for text in (source, target, kind)]
    result = _libc.mount(*names, ctypes.c_ulong(flags), os.fsencode(data) or None)
    _check(result, f"mount {source} on {target}")


def unmount(target: str) -> None:
    _check(_libc.umount2(os.fsencode(target), 0), f"unmount {target}")


def set_read_only(path: str, *, read_only: bool, below: bool = False) -> None:
    """Make the mount at `path` read-only, or writable; with `below` all mounts in it too."""
    on, off = (_MOUNT_ATTR_RDONLY, 0) if read_only else (0, _MOUNT_ATTR_RDONLY)
    attributes = struct.pack("=QQQQ", on, off, 0, 0)
    flags = _AT_RECURSIVE if below else 0
    arguments = (_AT_FDCWD, ctypes.c_char_p(os.fsencode(path)), flags)
    size = ctypes.c_size_t(len(attributes))
    result = _libc.syscall(ctypes.c_long(_SYS_MOUNT_SETATTR), *arguments, attributes, size)
    _check(result, f"mount_setattr of {path}")


def open_loop_device(image: str) -> int:
    """A descriptor of a loop device over the file; the device is free again when unused."""
    backing = os.open(image, os.O_RDWR | os.O_CLOEXEC)
    try:
        return _loop_device(backing)
    finally:
        os.close(backing)


def mount_device(device: int, target: str, kind: str = "ext4") -> None:
    """Mount the file system on an open device; what is deleted in it is given back."""
    flags = MS_NOSUID | MS_NODEV | _MS_NOATIME
    mount(os.readlink(f"/proc/self/fd/{device}"), target, kind, flags, "discard")


def _loop_device(backing: int) -> int:
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(64):  # another process may take the free one first
            number = fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
            device = os.open(f"/dev/loop{number}", os.O_RDWR | os.O_CLOEXEC)
            try:
                config = _LOOP_CONFIG.pack(backing, 0, _LO_FLAGS_AUTOCLEAR)
                fcntl.ioctl(device, _LOOP_CONFIGURE, config)
                return device
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:
                    raise
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "no loop device stayed free")
