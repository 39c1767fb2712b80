"""The driver's end of a template process: fork functions from it, hear of their ends."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from funcpipe.emulator.base_memory import BaseMemory
from funcpipe.emulator.isolate import ForkRequest, Isolation, TmpKind
from funcpipe.emulator.messages import MESSAGE_BYTES, receive, send
from funcpipe.errors import PlatformError

__all__ = ["ForkRequest", "Isolation", "Template", "TmpKind"]

_START_S = 120.0


class Template:
    """A process that has imported `imports`, and whose forks run the module `entry`.

    `environment` is the template's own; PYTHONHASHSEED and the numbers of threads are decided by
    it, for all forks. Make it on a thread that lives as long as it does: the kernel ends it with
    that thread. Everything else may be called from any thread. Raises `PlatformError` when it
    cannot start, refuses to fork or has gone.
    """

    def __init__(
        self,
        *,
        environment: Mapping[str, str],
        isolation: Isolation,
        entry: str,
        imports: Sequence[str] = ("torch", "torch._dynamo"),
    ) -> None:
        self._lock = threading.RLock()
        self._alive: dict[int, int] = {}  # with a descriptor that tells of the process's end
        self._kept: set[int] = set()
        # In a namespace a whole tree has ended, and its numbers are free, once the function has.
        self._tree_ends = isolation.pid_ns
        self._gone = False
        kind = socket.SOCK_SEQPACKET
        self._control, control = socket.socketpair(socket.AF_UNIX, kind)
        self._events, events = socket.socketpair(socket.AF_UNIX, kind)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        numbers = (control.fileno(), events.fileno())
        with control, events:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "funcpipe.emulator.template", *map(str, numbers)],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=dict(environment),
                cwd="/",
                pass_fds=numbers,
                start_new_session=True,  # Ctrl-C in the terminal must not reach it
            )
        spec = {"driver": os.getpid(), "entry": entry, "imports": list(imports)}
        try:
            answer, _ = self._ask({**spec, "isolation": isolation.to_dict()}, timeout_s=_START_S)
            self.base = BaseMemory(**answer["ready"])
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def fork(
        self, request: ForkRequest, *, frames: int, output: int, status: int, meter: int | None
    ) -> int:
        """Start a function with these descriptors as its 0, 1 and 2, 3, and 4; its process.

        The number is that of this process's namespace. When a wall cannot be raised the function
        writes ``{"failed": ...}`` to `status` and exits with code 70.
        """
        descriptors = [frames, output, status] + ([] if meter is None else [meter])
        with self._lock:
            answer, handles = self._ask({"fork": request.to_dict()}, descriptors)
            pid = int(answer["pid"])
            if not handles:
                raise PlatformError(
                    f"function {request.id} cannot be watched: this process has no descriptor left "
                    "for it. Raise its limit of open files (ulimit -n)"
                )
            (self._alive[pid],) = handles
            return pid

    def _ask(
        self, message: dict[str, Any], descriptors: Sequence[int] = (), timeout_s: float = 60.0
    ) -> tuple[dict[str, Any], list[int]]:
        """The answer, with descriptors that came with it."""
        self._send(message, descriptors)
        ready = select.select([self._control], [], [], timeout_s)[0]
        answer, handles = None, list[int]()
        if ready:
            with contextlib.suppress(ConnectionResetError):
                answer, handles = receive(self._control)
        if answer is not None and "refused" in answer:
            raise PlatformError(f"no function can be forked: {answer['refused']}")
        if answer is None:
            what = "has ended" if ready else f"did not answer within {timeout_s:g} s"
            raise PlatformError(f"the template process {what}\n{self._log_tail()}".rstrip())
        return answer, handles

    def _send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        data = json.dumps(message).encode()
        if len(data) > MESSAGE_BYTES:
            raise PlatformError(
                f"what a function is started with has {len(data)} bytes; at most {MESSAGE_BYTES} "
                "are taken: has it a very long environment variable?"
            )
        try:
            send(self._control, data, descriptors)
        except (BrokenPipeError, ConnectionResetError):
            return  # the answer's absence tells
        except OSError as error:
            raise PlatformError(f"the template process cannot be reached: {error}") from error

    def exits(self) -> list[tuple[int, int]]:
        """Functions that ended since the last call: process and code (minus a signal's number)."""
        found = []
        with self._lock:
            while not self._gone and select.select([self._events], [], [], 0)[0]:
                try:
                    data = self._events.recv(MESSAGE_BYTES)
                except ConnectionResetError:
                    data = b""
                if not data:
                    self._gone = True
                    break
                event = json.loads(data)
                found.append((event["pid"], event["code"]))
                self._kept.add(event["pid"])
            if self._gone:  # the kernel kills them with the template
                ended = {pid for pid, _ in found}
                found += [(pid, -signal.SIGKILL) for pid in self._alive if pid not in ended]
                self._kept.clear()
            for pid, _ in found:
                os.close(self._alive.pop(pid))
        return found

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to a function's process group, as long as that is certainly its own."""
        with self._lock, contextlib.suppress(ProcessLookupError, PermissionError):
            if pid in self._alive:
                if self._tree_ends and select.select([self._alive[pid]], [], [], 0)[0]:
                    return
                try:
                    os.killpg(pid, number)
                except ProcessLookupError:  # it has no group yet
                    os.kill(pid, number)
            elif pid in self._kept and not self._tree_ends:
                os.killpg(pid, number)

    def reap(self, pid: int) -> None:
        """After its exit was told: give its number back."""
        with self._lock:
            if pid in self._kept:
                self._kept.discard(pid)
                self._send({"reap": pid})

    def fileno(self) -> int:
        """Readable when `exits` may have something to tell."""
        return self._events.fileno()

    def alive(self) -> bool:
        # Its sockets close a moment before its end can be seen.
        return not self._gone and self._process.poll() is None

    def _log_tail(self, num_bytes: int = 2000) -> str:
        self._log.seek(0)
        return self._log.read()[-num_bytes:].decode("utf-8", "replace").strip()

    def close(self) -> None:
        """End the template and all of its functions; they are gone on return."""
        with self._lock:
            if self._log.closed:
                return
            for pid in [*self._alive, *self._kept]:
                self.signal(pid, signal.SIGKILL)
            self._process.kill()
            self._process.wait()
            for watch in self._alive.values():
                select.select([watch], [], [], 10.0)
                os.close(watch)
            self._alive.clear()
            self._kept.clear()
            self._gone = True
            self._control.close()
            self._events.close()
            self._log.close()
