"""The guard: a small process that lets nothing outlive the process which started it.

It is run as a script by `funcpipe.emulator.guarded` and reads one JSON line on standard input::

    folder   str          made by the guard (mode 700), removed with all that is in it at the end
    files    {path: text} written below the folder first (mode 600)
    setup    [[argv]]     commands that run one after the other before the server
    server   [argv]|null  the child to keep: its own session, killed by the kernel with the guard
    grace_s  float        between TERM and KILL when the server is stopped; 0 sends KILL at once
    sockets  [path]       Unix sockets outside the folder that the server leaves when it is killed
    upkeep   {argv, stdin, files, grown_bytes, every_s}|null
                          a command to run when the files below the folder that end in `files` have
                          grown by so many bytes, at most that often; `stdin` is one of `files`

Then lines with commands: ``stop``, ``upkeep`` (now), ``watch GROUP`` and ``forget GROUP`` (process
groups to kill at the end), ``cgroup PATH`` and ``uncgroup PATH`` (control groups of which nothing,
processes and groups below them included, is left at the end). It answers with JSON lines:
``{"event": "started"}``, ``"failed"`` (setup), ``"ended"`` (the server, by itself), ``"upkeep"``.
It ends, and everything with it, on ``stop``, when the pipe ends, when its parent is another one
than at the start (a forked child of the dead driver may still hold the pipe), and on SIGTERM.

Only the standard library, and little of it: the guard starts in some 20 ms and stays small.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import re
import select
import signal
import sys
import time

TYPE_CHECKING = False  # importing typing would cost more than the rest of this file
if TYPE_CHECKING:
    from typing import Any, NoReturn

MARKER = "funcpipe-guard.json"
LOG = "log"
LOG_LIMIT_BYTES = 4 << 20
TICK_S = 0.2
_REMOVABLE_SOCKET = re.compile(r"/tmp/seaweedfs-[a-z0-9-]+\.sock")  # noqa: S108
_PR_SET_PDEATHSIG = 1


class Driverless(Exception):
    """The driver has gone, or wants everything to end."""


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends, or end if that has happened."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(125)


def spawn(argv: list[str], *, folder: str, stdin: str = os.devnull) -> int:
    """Start `argv` in a session of its own, its output appended to the log; returns its id."""
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        die_with_parent(parent)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        source = os.open(os.path.join(folder, stdin), os.O_RDONLY)
        target = os.open(os.path.join(folder, LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(source, 0)
        os.dup2(target, 1)
        os.dup2(target, 2)
        os.chdir(folder)
        os.execv(argv[0], argv)  # noqa: S606
    except OSError as error:
        os.write(2, f"{argv[0]}: {error}\n".encode())
    finally:
        os._exit(127)


def signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def reap(child: int, *, within_s: float) -> int | None:
    """The exit code (minus the signal's number) of a child of ours, or None if it still runs."""
    deadline = time.monotonic() + within_s
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.005)


def end_group(child: int, *, grace_s: float) -> None:
    """Stop a child that leads its own group, and the whole group."""
    if grace_s > 0:
        os.kill(child, signal.SIGTERM)
        signal_group(child, signal.SIGTERM)
        if reap(child, within_s=grace_s) is not None:
            signal_group(child, signal.SIGKILL)
            return
    os.kill(child, signal.SIGKILL)  # a child that is just starting may not have its group yet
    signal_group(child, signal.SIGKILL)
    reap(child, within_s=10.0)


def claim(folder: str, sockets: list[str]) -> int:
    """Make the folder and mark it as ours; the lock is held while the guard lives."""
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    os.mkdir(folder, 0o700)
    draft = os.path.join(folder, MARKER + ".new")
    lock = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    remember(lock, sockets, [])
    os.rename(draft, os.path.join(folder, MARKER))
    return lock


def remember(lock: int, sockets: list[str], cgroups: list[str]) -> None:
    """Note in the marker what lies outside the folder, for whoever sweeps after a killed guard."""
    data = json.dumps({"sockets": sockets, "cgroups": cgroups}).encode()
    # One write that never makes the file shorter: whenever we are killed, it can be read.
    os.pwrite(lock, data.ljust(os.fstat(lock).st_size), 0)


def mounts() -> list[tuple[str, str]]:
    """Mount points that this process sees, each with its kind."""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
            return [(line.split(" ")[1], line.split(" ")[2]) for line in file]
    except OSError:
        return []


def remove_cgroup(path: str, *, within_s: float = 5.0) -> None:
    """Kill what is in a control group and below, and remove it; a path elsewhere is left alone."""
    path = os.path.realpath(path)
    homes = [point + "/" for point, kind in mounts() if kind in ("cgroup", "cgroup2")]
    if not path.startswith(tuple(homes)):
        return
    deadline = time.monotonic() + within_s
    while os.path.isdir(path) and time.monotonic() < deadline:
        for group, _, _ in os.walk(path, topdown=False):
            with contextlib.suppress(OSError):
                kill_members(group)
                os.rmdir(group)
        time.sleep(0.005)


def kill_members(group: str) -> None:
    for name, unlimited in (("cpu.cfs_quota_us", b"-1"), ("cpu.max", b"max")):
        with contextlib.suppress(OSError):  # dying takes CPU time too
            limit = os.open(os.path.join(group, name), os.O_WRONLY)
            try:
                os.write(limit, unlimited)
            finally:
                os.close(limit)
    with open(os.path.join(group, "cgroup.procs"), encoding="ascii") as file:
        members = [int(line) for line in file]
    for member in members:
        if member > 1 and member != os.getpid():  # 0: one that this namespace has no number for
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(member, signal.SIGKILL)


def remove(folder: str, sockets: list[str]) -> None:
    """Remove a folder that carries our mark, and what its owner has left elsewhere."""
    import shutil

    marker = os.path.join(folder, MARKER)
    if not os.path.isfile(marker):
        return
    with contextlib.suppress(OSError, ValueError), open(marker, "rb") as file:
        for path in json.loads(file.read()).get("cgroups", []):
            remove_cgroup(path)
    for path in sockets:
        if _REMOVABLE_SOCKET.fullmatch(path):
            with contextlib.suppress(OSError):
                os.unlink(path)
    whole = os.path.realpath(folder)
    if any(point == whole or point.startswith(whole + "/") for point, _ in mounts()):
        return  # what is mounted here is somebody's, and not in our care
    for _ in range(3):  # a killed process may still be finishing a write
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            return
        time.sleep(0.05)


def sweep(parent: str, prefix: str) -> list[str]:
    """Remove the marked folders in `parent` whose guard was itself killed; returns their paths.

    Not those whose driver goes on without its guard: it holds a lock on the folder.
    """
    swept = []
    for entry in os.scandir(parent) if os.path.isdir(parent) else ():
        marker = os.path.join(entry.path, MARKER)
        if not entry.name.startswith(prefix) or entry.is_symlink():
            continue
        try:
            lock = os.open(marker, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue
        folder = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if os.fstat(lock).st_uid != os.getuid():
                continue
            for one in (lock, folder):
                fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
            noted = os.read(lock, os.fstat(lock).st_size)
            sockets = json.loads(noted or b"{}").get("sockets", [])
            remove(entry.path, sockets)
            swept.append(entry.path)
        except (OSError, ValueError):
            continue
        finally:
            os.close(lock)
            os.close(folder)
    return swept


def folder_bytes(folder: str, suffix: str) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            if name.endswith(suffix):
                with contextlib.suppress(OSError):
                    total += os.stat(os.path.join(place, name)).st_size
    return total


class Pipe:
    """Lines from the driver; raises `Driverless` when it has gone."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._rest = b""

    def lines(self, wait_s: float) -> list[str]:
        if select.select([0], [], [], wait_s)[0]:
            data = os.read(0, 1 << 16)
            if not data:
                raise Driverless
            self._rest += data
        if os.getppid() != self._parent:
            raise Driverless
        *lines, self._rest = self._rest.split(b"\n")
        return [line.decode() for line in lines]

    def first(self) -> tuple[str, list[str]]:
        while True:
            lines = self.lines(TICK_S)
            if lines:
                return lines[0], lines[1:]


def tell(event: str, **facts: object) -> None:
    with contextlib.suppress(OSError):
        os.write(1, json.dumps({"event": event, **facts}).encode() + b"\n")


class Guard:
    """What the guard looks after; `run` raises when all of it shall end."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.folder: str = spec["folder"]
        self.spec = spec
        self.lock: int | None = None
        self.server: int | None = None
        self.helper: int | None = None
        self.groups: set[int] = set()
        self.cgroups: list[str] = []
        self.base_bytes = 0
        self.next_look_s = 0.0

    def prepare(self, pipe: Pipe) -> None:
        for path, text in self.spec["files"].items():
            full = os.path.join(self.folder, path)
            os.makedirs(os.path.dirname(full), mode=0o700, exist_ok=True)
            with open(full, "w", encoding="utf-8") as file:
                file.write(text)
        for argv in self.spec["setup"]:
            self.helper = spawn(argv, folder=self.folder)
            while (code := reap(self.helper, within_s=0.02)) is None:
                self.obey(pipe.lines(0.0))
            self.helper = None
            if code != 0:
                tell("failed", code=code, command=os.path.basename(argv[0]))
                return
        if self.spec["server"] is not None:
            self.server = spawn(self.spec["server"], folder=self.folder)
        tell("started", pid=self.server)

    def obey(self, lines: list[str]) -> None:
        for line in lines:
            verb, _, argument = line.partition(" ")
            if verb == "stop":
                raise Driverless
            if verb == "upkeep":
                self.start_upkeep()
            elif verb == "watch":
                self.groups.add(int(argument))
            elif verb == "forget":
                self.groups.discard(int(argument))
            elif verb in ("cgroup", "uncgroup"):
                self.cgroups = [path for path in self.cgroups if path != argument]
                self.cgroups += [argument] if verb == "cgroup" else []
                if self.lock is not None:
                    remember(self.lock, self.spec["sockets"], self.cgroups)

    def start_upkeep(self) -> None:
        upkeep = self.spec["upkeep"]
        if upkeep is None or self.server is None:
            tell("upkeep", code=None)
        elif self.helper is None:
            self.helper = spawn(upkeep["argv"], folder=self.folder, stdin=upkeep["stdin"])

    def look(self) -> None:
        """One tick: the server, the running upkeep, the growth of the folder, the log's size."""
        if self.server is not None and (code := reap(self.server, within_s=0.0)) is not None:
            signal_group(self.server, signal.SIGKILL)
            self.server = None
            tell("ended", code=code)
        upkeep = self.spec["upkeep"]
        if self.helper is not None and (code := reap(self.helper, within_s=0.0)) is not None:
            self.helper = None
            self.base_bytes = folder_bytes(self.folder, upkeep["files"])
            tell("upkeep", code=code)
        if time.monotonic() < self.next_look_s:
            return
        self.next_look_s = time.monotonic() + (upkeep["every_s"] if upkeep else 5.0)
        log = os.path.join(self.folder, LOG)
        if os.path.exists(log) and os.path.getsize(log) > LOG_LIMIT_BYTES:
            os.truncate(log, 0)
        if upkeep and self.helper is None and self.server is not None:
            grown = folder_bytes(self.folder, upkeep["files"]) - self.base_bytes
            if grown >= upkeep["grown_bytes"]:
                self.start_upkeep()

    def run(self, pipe: Pipe, lines: list[str]) -> NoReturn:
        self.prepare(pipe)
        while True:
            self.obey(lines)
            self.look()
            lines = pipe.lines(TICK_S)

    def end(self) -> None:
        if self.lock is None:
            return
        for group in self.groups:
            signal_group(group, signal.SIGKILL)
        for path in self.cgroups:
            remove_cgroup(path)
        for child, grace_s in ((self.helper, 0.0), (self.server, float(self.spec["grace_s"]))):
            if child is not None:
                end_group(child, grace_s=grace_s)
        remove(self.folder, self.spec["sockets"])
        os.close(self.lock)


def _on_term(_number: int, _frame: object) -> NoReturn:
    raise Driverless


def main() -> int:
    os.umask(0o077)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # an inherited SIG_IGN would hide exit codes
    signal.signal(signal.SIGTERM, _on_term)
    pipe = Pipe()
    try:
        first, rest = pipe.first()
    except Driverless:
        return 0
    guard = Guard(json.loads(first))
    try:
        guard.lock = claim(guard.folder, guard.spec["sockets"])
        guard.run(pipe, rest)
    except Driverless:
        return 0
    except OSError as error:
        tell("failed", code=error.errno, command=str(error))
        return 1
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        guard.end()


if __name__ == "__main__":
    sys.exit(main())
