"""Functions as processes on this machine."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from funcpipe.driver.host import Exit, Reason
from funcpipe.emulator.credentials import Credentials
from funcpipe.emulator.guarded import Guarded, base_environment
from funcpipe.emulator.logs import BoundedLog
from funcpipe.errors import PlatformError

__all__ = ["LocalHost"]

_PAYLOAD_LIMIT_BYTES = 1_000_000
_LOG_LIMIT_BYTES = 1 << 20
_TAIL_BYTES = 4000
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


class LocalHost:
    """A `FunctionHost` whose functions are ``python -m ENTRY`` in sessions of their own.

    Each has an own working folder, which is also its home and its temporary folder, and an
    environment made of a few harmless variables (PATH, locale), `environment` and `credentials`:
    nothing else of the driver's is passed on. What it prints goes to ``ID.log`` in `log_folder`,
    bounded. A function ends with the driver, however that ends, and so do the folders; of the
    processes that a function has started, those that stay in its process group end with it.

    `memory_mb` is accepted and not enforced by this host. `threads` is what the numerical
    libraries may use in each function. `entry` is the module that reads the payload.
    """

    def __init__(
        self,
        *,
        log_folder: Path,
        credentials: Credentials | None = None,
        environment: Mapping[str, str] | None = None,
        threads: int = 1,
        work_folder: Path | None = None,
        entry: str = "funcpipe.functions.local",
    ) -> None:
        if threads < 1:
            raise PlatformError(f"threads of a function must be at least 1, not {threads}")
        self._log_folder = log_folder.resolve()
        self._log_folder.mkdir(parents=True, exist_ok=True)
        self._entry = entry
        self._guarded = Guarded(
            purpose="functions", parent=work_folder, environment=base_environment()
        )
        self.folder = self._guarded.folder
        try:
            library = self._library()
        except OSError as error:
            self._guarded.stop()
            raise PlatformError(f"cannot prepare {self.folder}: {error}") from error
        self._environment = {
            **base_environment(),
            **dict.fromkeys(_THREAD_VARIABLES, str(threads)),
            # A machine of a cloud would otherwise offer its own credentials, after a long wait.
            "AWS_EC2_METADATA_DISABLED": "true",
            "PYTHONHASHSEED": "0",  # all functions see a set in one order
            **(environment or {}),
            **(credentials.to_environment() if credentials else {}),
        }
        python_path = [library, self._environment.get("PYTHONPATH")]
        self._environment["PYTHONPATH"] = os.pathsep.join(path for path in python_path if path)
        self._lock = threading.RLock()
        self._functions: dict[str, _Function] = {}
        self._ended: list[Exit] = []
        self._pump = _Pump()
        # The kernel's parent-death signal fires when the *thread* that started a process ends, so
        # all functions are started by one thread that lives as long as the host.
        self._starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="funcpipe-start")
        self._closed = False

    def _library(self) -> str | None:
        """A folder from which this very funcpipe, and nothing beside it, can be imported."""
        package = Path(__file__).resolve().parents[1]
        if str(package.parent) in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
            return None
        library = self.folder / "library"
        library.mkdir()
        (library / package.name).symlink_to(package)
        return str(library)

    def start(self, payload: bytes, *, name: str, memory_mb: int | None = None) -> str:
        if len(payload) > _PAYLOAD_LIMIT_BYTES:
            raise PlatformError(
                f"the payload of function {name} has {len(payload)} bytes; at most "
                f"{_PAYLOAD_LIMIT_BYTES} are taken: put the rest in the store"
            )
        if memory_mb is not None and memory_mb < 1:
            raise PlatformError(f"memory of function {name} must be positive, not {memory_mb} MB")
        if self._closed:
            raise PlatformError("the function host is closed")
        readable = re.sub(r"[^A-Za-z0-9._-]", "-", name)[:80] or "function"
        function_id = f"{readable}.{secrets.token_hex(4)}"
        function = self._starter.submit(self._launch, function_id, name).result()
        function.send(payload)
        return function_id

    def _launch(self, function_id: str, name: str) -> _Function:
        folder = self.folder / function_id
        folder.mkdir(mode=0o700)
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", self._entry],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**self._environment, "HOME": str(folder), "TMPDIR": str(folder)},
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise PlatformError(f"function {name} could not be started: {error}") from error
        log = BoundedLog(self._log_folder / f"{function_id}.log", limit_bytes=_LOG_LIMIT_BYTES)
        function = _Function(id=function_id, name=name, process=process, folder=folder, log=log)
        # Here, on a thread that no signal breaks into.
        self._guarded.tell(f"watch {process.pid}")
        with self._lock:
            self._pump.add(function)
            self._functions[function_id] = function
        return function

    def exits(self) -> list[Exit]:
        with self._lock:
            for function in [one for one in self._functions.values() if one.has_ended()]:
                self._collect(function)
            ended, self._ended = self._ended, []
        return ended

    def _collect(self, function: _Function) -> None:
        del self._functions[function.id]
        self._pump.remove(function)
        self._ended.append(function.finish())
        self._guarded.tell(f"forget {function.process.pid}")

    def alive(self) -> int:
        with self._lock:
            return sum(not function.has_ended() for function in self._functions.values())

    def stop(self, ids: Iterable[str] | None = None, *, grace_s: float = 2.0) -> None:
        with self._lock:
            wanted = list(self._functions) if ids is None else list(ids)
            chosen = [self._functions[one] for one in wanted if one in self._functions]
            for function in chosen:
                function.ask_to_end()
            deadline = time.monotonic() + grace_s
            while not all(function.has_ended() for function in chosen):
                if time.monotonic() >= deadline:
                    break
                time.sleep(0.01)
            for function in chosen:
                function.kill()
            for function in chosen:
                self._collect(function)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._starter.shutdown()
        self.stop()
        self._pump.close()
        self._guarded.stop()

    def __enter__(self) -> LocalHost:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Function:
    def __init__(
        self, *, id: str, name: str, process: subprocess.Popen[bytes], folder: Path, log: BoundedLog
    ) -> None:
        if process.stdin is None or process.stdout is None:
            raise ValueError("a function is started with pipes")
        self.id = id
        self.name = name
        self.process = process
        self.folder = folder
        self.log = log
        self.stdin = process.stdin
        self.output = process.stdout.fileno()
        os.set_blocking(self.output, False)
        self._stopped = False
        self._lock = threading.Lock()

    def send(self, payload: bytes) -> None:
        frame = b'{"surroundings": {}, "payload": ' + payload + b"}"
        data = memoryview(b"%d\n" % len(frame) + frame)
        if len(data) > 1 << 16:
            with contextlib.suppress(OSError):  # only saves waiting for the reader
                fcntl.fcntl(self.stdin, fcntl.F_SETPIPE_SZ, len(data))
        try:
            while data:
                data = data[self.stdin.write(data) :]
        except (BrokenPipeError, ValueError):
            return  # it has ended, or been stopped, already: `exits` tells how

    def has_ended(self) -> bool:
        """Whether the process has ended; it is not reaped, so its group's number stays its own."""
        if self.process.returncode is not None:
            return True
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.process.pid, options) is not None

    def ask_to_end(self) -> None:
        if not self.has_ended():
            self._stopped = True
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def drain(self) -> bool:
        """Move what was printed to the log; False when no more will come."""
        with self._lock:
            while self.process.stdout is not None and not self.process.stdout.closed:
                try:
                    data = os.read(self.output, 1 << 16)
                except BlockingIOError:
                    return True
                if not data:
                    return False
                with contextlib.suppress(OSError):  # a full disk: the function must not block
                    self.log.write(data)
            return False

    def finish(self) -> Exit:
        """After its end: what is left of its group, its folder and its pipes go."""
        self._signal(signal.SIGKILL)
        code = self.process.wait()
        self.drain()
        with self._lock:
            if self.process.stdout is not None:
                self.process.stdout.close()
            with contextlib.suppress(BrokenPipeError):
                self.stdin.close()
            self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        return Exit(
            id=self.id,
            name=self.name,
            code=code,
            reason=_reason(code, stopped=self._stopped),
            log_tail=self.log.tail(_TAIL_BYTES),
        )


def _reason(code: int, *, stopped: bool) -> Reason:
    if stopped:
        return "stopped"
    if code == 0:
        return "done"
    if code == 1:
        return "failed"
    return "killed" if code == -signal.SIGKILL else "crashed"


class _Pump:
    """One thread that moves what all functions print into their logs."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._wake_read, self._wake_write = os.pipe()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="funcpipe-logs", daemon=True)
        self._thread.start()

    def add(self, function: _Function) -> None:
        with self._lock:
            self._selector.register(function.output, selectors.EVENT_READ, function)
        os.write(self._wake_write, b"+")

    def remove(self, function: _Function) -> None:
        with self._lock:
            key = self._selector.get_map().get(function.output)
            if key is not None and key.data is function:  # the number may be another's by now
                self._selector.unregister(function.output)

    def _run(self) -> None:
        while not self._closing:
            for key, _ in self._selector.select():
                if key.data is None:
                    os.read(self._wake_read, 64)
                elif not key.data.drain():
                    self.remove(key.data)

    def close(self) -> None:
        self._closing = True
        os.write(self._wake_write, b"!")
        self._thread.join()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
