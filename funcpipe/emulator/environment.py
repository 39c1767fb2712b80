"""One execution environment: a process forked for a function, its limits, folder, pipes and log."""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import shutil
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from funcpipe.driver.host import Reason
from funcpipe.emulator.cgroups import Cell
from funcpipe.emulator.forks import ForkRequest, Template
from funcpipe.emulator.logs import BoundedLog
from funcpipe.emulator.tmp_image import make_tmp_image
from funcpipe.store.tally import Tally
from funcpipe.store.usage import Usage

__all__ = ["Environment", "Sizes"]

_LOG_LIMIT_BYTES = 1 << 20
_TAIL_BYTES = 4000
_PIPE_BYTES = 1 << 16
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What an environment may have: machine CPUs while it runs, memory, /tmp. None: no limit."""

    cpus: float | None
    memory_bytes: int | None
    tmp_mb: int | None


class Environment:
    """A process of ours that keeps a function. Its methods are called under the host's lock."""

    def __init__(
        self,
        *,
        id: str,
        name: str,
        folder: Path,
        log: Path,
        sizes: Sizes,
        cell: Cell | None,
        loop_image: bool,
        template: Template,
    ) -> None:
        self.id = id
        self.name = name
        self.folder = folder
        self.sizes = sizes
        self.cell = cell
        self.pid = 0
        self._template = template
        self.excess = ""
        self.status_closed = False
        self._image = folder.with_name(f"{folder.name}.img") if loop_image else None
        self._frames, self._output, self._status = os.pipe(), os.pipe(), os.pipe()
        self._meter = os.memfd_create(f"funcpipe-{id}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._meter, Tally.SIZE)
        # We read it while the function holds it: its size must stay.
        fcntl.fcntl(self._meter, fcntl.F_ADD_SEALS, _SEALS)
        self._page = mmap.mmap(self._meter, Tally.SIZE)
        self._tally = Tally(self._page)
        self._before = Usage()
        self._status_rest = b""
        self._log = BoundedLog(log, limit_bytes=_LOG_LIMIT_BYTES)
        self._theirs: tuple[int, ...] = (self._frames[0], self._output[1], self._status[1])
        for descriptor in (self._output[0], self._status[0]):
            os.set_blocking(descriptor, False)

    @property
    def output_fd(self) -> int:
        return self._output[0]

    @property
    def status_fd(self) -> int:
        return self._status[0]

    def launch(
        self,
        *,
        environment: Mapping[str, str],
        writable: tuple[str, ...],
        visible: tuple[str, ...],
    ) -> None:
        """Fork the process; it initialises itself with all the machine's speed."""
        self.folder.mkdir(mode=0o700)
        if self._image is not None and self.sizes.tmp_mb is not None:
            make_tmp_image(self._image, size_mb=self.sizes.tmp_mb)
        request = ForkRequest(
            id=self.id,
            environment={**environment, "HOME": str(self.folder), "TMPDIR": str(self.folder)},
            folder=str(self.folder),
            procs_files=() if self.cell is None else self.cell.procs_files,
            tmp_image=None if self._image is None else str(self._image),
            tmp_mb=self.sizes.tmp_mb,
            writable=writable,
            visible=visible,
        )
        self.pid = self._template.fork(
            request,
            frames=self._frames[0],
            output=self._output[1],
            status=self._status[1],
            meter=self._meter,
        )
        self._close_theirs()

    def _close_theirs(self) -> None:
        for descriptor in self._theirs:
            os.close(descriptor)
        self._theirs = ()

    def run(self, payload: bytes, surroundings: Mapping[str, Any]) -> None:
        """Hand over an invocation; from here on it has the speed of its tier."""
        self._before = self._tally.usage()
        if self.cell is not None:
            self.cell.limit_cpu(self.sizes.cpus)
        self._signal(signal.SIGCONT)
        head = json.dumps(dict(surroundings)).encode()
        body = b'{"surroundings": %b, "payload": %b}' % (head, payload)
        data = b"%d\n" % len(body) + body
        if len(data) <= _PIPE_BYTES:
            self._send(data)
        else:  # more than the pipe holds: a process that does not read must not hold us up
            threading.Thread(target=self._send, args=(data,), daemon=True).start()

    def _send(self, data: bytes) -> None:
        rest = memoryview(data)
        with contextlib.suppress(OSError):  # it has ended already: its exit tells how
            while rest:
                rest = rest[os.write(self._frames[1], rest) :]

    def freeze(self) -> None:
        """Between two invocations nothing in it runs."""
        self._signal(signal.SIGSTOP)

    def usage(self) -> Usage:
        """What the present invocation has asked of the store up to now."""
        return self._tally.usage() - self._before

    def messages(self) -> list[dict[str, Any]]:
        """What its process has said about itself since the last call.

        `ValueError` for what no process of ours says: the function has got at its status pipe.
        """
        while True:
            try:
                data = os.read(self._status[0], 1 << 12)
            except BlockingIOError:
                break
            if not data:
                self.status_closed = True
                break
            self._status_rest += data
        *lines, self._status_rest = self._status_rest.split(b"\n")
        told = [json.loads(line) for line in lines if line]
        if len(self._status_rest) > _PIPE_BYTES or not all(isinstance(one, dict) for one in told):
            raise ValueError("junk on the status pipe")
        return told

    def drain(self) -> bool:
        """Move what was printed to the log; False when no more will come."""
        while True:
            try:
                data = os.read(self._output[0], 1 << 16)
            except BlockingIOError:
                return True
            if not data:
                return False
            with contextlib.suppress(OSError):  # a full disk: the function must not block
                self._log.write(data)

    def say(self, text: str) -> None:
        """A line of ours in its log."""
        with contextlib.suppress(OSError):
            self._log.write(f"{text}\n".encode())

    def log_tail(self) -> str:
        self.drain()
        return self._log.tail(_TAIL_BYTES)

    def ask_to_end(self) -> None:
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        if self.cell is not None:
            with contextlib.suppress(OSError):
                self.cell.limit_cpu(None)  # dying takes CPU time too
        self._signal(signal.SIGKILL)

    def reason(self, code: int) -> Reason:
        """What the end of its process means, if nobody here has ended it."""
        if self.excess or self._was_refused_memory():
            return "out-of-memory"
        if code == 0:
            return "done"
        if code == 1:
            return "failed"
        return "killed" if code == -signal.SIGKILL else "crashed"

    def _was_refused_memory(self) -> bool:
        if self.cell is None:
            return False
        try:
            return self.cell.memory().oom_kills > 0
        except OSError:  # the guard was told to end, and has removed it
            return False

    def finish(self) -> None:
        """After its end: what is left of its tree, its folder, its group and its pipes go."""
        self.kill()
        if self.cell is not None:
            self.cell.remove()
        self._template.reap(self.pid)
        self.close()

    def close(self) -> None:
        """Release everything but the process."""
        self._close_theirs()
        self.drain()
        for descriptor in (self._frames[1], self._output[0], self._status[0], self._meter):
            os.close(descriptor)
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._image is not None:
            self._image.unlink(missing_ok=True)

    def _signal(self, number: int) -> None:
        self._template.signal(self.pid, number)
