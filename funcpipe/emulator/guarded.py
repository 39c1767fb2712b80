"""The driver's end of a guard: start it, hear from it, end it and all that it looks after."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from funcpipe.emulator import guard
from funcpipe.errors import ServerError

__all__ = ["FOLDER_PREFIX", "Guarded", "Upkeep", "base_environment"]

FOLDER_PREFIX = "funcpipe-"
_PASSED_ON = ("LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PATH", "TZ")


def base_environment() -> dict[str, str]:
    """The few of the driver's variables that its children may see; no secret can be among them."""
    return {name: os.environ[name] for name in _PASSED_ON if name in os.environ}


@dataclass(frozen=True, kw_only=True)
class Upkeep:
    """A command that the guard runs when files ending in `suffix` grew by `grown_bytes`."""

    argv: Sequence[str]
    stdin: str
    suffix: str
    grown_bytes: int
    every_s: float


class Guarded:
    """A folder, and perhaps a server in it, that end when this process does, however it does.

    The folder is a new one in `parent` (default: the temporary folder). Raises `ServerError` when
    the guard cannot start, or when one of the `setup` commands fails.
    """

    def __init__(
        self,
        *,
        purpose: str,
        parent: Path | None = None,
        environment: Mapping[str, str],
        files: Mapping[str, str] | None = None,
        setup: Sequence[Sequence[str]] = (),
        server: Sequence[str] | None = None,
        sockets: Sequence[str] = (),
        upkeep: Upkeep | None = None,
        grace_s: float = 0.0,
        timeout_s: float = 20.0,
    ) -> None:
        home = (parent or Path(tempfile.gettempdir())).resolve()
        prefix = f"{FOLDER_PREFIX}{purpose}-"
        guard.sweep(str(home), prefix)
        self.folder = home / f"{prefix}{secrets.token_hex(6)}"
        self._grace_s = grace_s
        self._sockets = list(sockets)
        self._rest = b""
        self._folder: int | None = None
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**environment, "HOME": str(self.folder), "TMPDIR": str(self.folder)},
            cwd="/",
            start_new_session=True,  # Ctrl-C in the terminal must not reach it
            bufsize=0,
        )
        spec = {
            "folder": str(self.folder),
            "files": dict(files or {}),
            "setup": [list(argv) for argv in setup],
            "server": None if server is None else list(server),
            "sockets": list(sockets),
            "grace_s": grace_s,
            "upkeep": upkeep
            and {
                "argv": list(upkeep.argv),
                "stdin": upkeep.stdin,
                "files": upkeep.suffix,
                "grown_bytes": upkeep.grown_bytes,
                "every_s": upkeep.every_s,
            },
        }
        try:
            self.tell(json.dumps(spec))
            self._expect_start(timeout_s)
            # For `sweep`: as long as this process lives, the folder is in use.
            self._folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(self._folder, fcntl.LOCK_EX)
        except BaseException:
            self.stop()
            raise

    def _expect_start(self, timeout_s: float) -> None:
        event = self.event(timeout_s=timeout_s)
        if event is None:
            raise ServerError(f"the guard of {self.folder} did not start within {timeout_s:g} s")
        if event["event"] != "started":
            raise ServerError(
                f"could not prepare {self.folder}: {event.get('command')} failed with code "
                f"{event.get('code')}\n{self.log_tail()}".rstrip()
            )

    @property
    def guard_pid(self) -> int:
        return self._process.pid

    def tell(self, line: str) -> None:
        """Send one command; a guard that has gone is no error here (`alive` says it)."""
        data = memoryview(line.encode() + b"\n")
        stdin = self._process.stdin
        try:
            while data and stdin is not None and not stdin.closed:
                data = data[stdin.write(data) :]
        except BrokenPipeError:
            return

    def event(self, *, timeout_s: float) -> dict[str, Any] | None:
        """The guard's next message, or None when none came in time or the guard has gone."""
        deadline = time.monotonic() + timeout_s
        stdout = self._process.stdout
        while b"\n" not in self._rest:
            left_s = max(0.0, deadline - time.monotonic())
            if stdout is None or stdout.closed or not select.select([stdout], [], [], left_s)[0]:
                return None
            data = stdout.read(1 << 16)
            if not data:
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        event: dict[str, Any] = json.loads(line)
        return event

    def alive(self) -> bool:
        return self._process.poll() is None

    def log_tail(self, num_bytes: int = 2000) -> str:
        """The end of what the server and the setup commands printed."""
        try:
            with open(self.folder / guard.LOG, "rb") as log:
                log.seek(0, os.SEEK_END)
                log.seek(max(0, log.tell() - num_bytes))
                return log.read().decode("utf-8", "replace").strip()
        except OSError:
            return ""

    def stop(self) -> None:
        """End the server, the watched groups and the folder; they are gone on return."""
        self.tell("stop")
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=self._grace_s + 15.0)
        except subprocess.TimeoutExpired:
            self._process.kill()  # the kernel kills the server with it
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        guard.remove(str(self.folder), self._sockets)
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None
