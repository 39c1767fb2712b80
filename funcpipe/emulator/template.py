"""The template process: it has imported torch and nothing more, and every function is its fork.

Started by `funcpipe.emulator.forks` with two sockets. On the first come JSON messages: what to
import, then one per fork with the child's descriptors; each is answered. On the second it tells how
children ended. It ends with its driver, and the children with it.

With a process namespace a function has two processes: a first one (number 1 there), which only
waits and reaps, and the function proper, for which signals mean what they always mean.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from funcpipe.emulator import linux
from funcpipe.emulator.isolate import ForkRequest, Isolation, isolate
from funcpipe.emulator.messages import receive, send

__all__ = ["FAILED_TO_ISOLATE", "main"]

FAILED_TO_ISOLATE = 70
_FRAMES, _OUTPUT, _ERRORS, _STATUS, _METER = range(5)
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


class Refused(Exception):
    """Why a function cannot be forked."""


@dataclass(frozen=True, kw_only=True)
class Child:
    pid: int  # the function proper
    handle: int  # a descriptor of that process, for the driver
    waited: int  # whom the template waits for: the same, or the first of its namespace
    line: socket.socket | None  # on which that first one says how the function ended


class Template:
    def __init__(self, control: socket.socket, events: socket.socket, spec: dict[str, Any]) -> None:
        self._control = control
        self._events = events
        self._isolation = Isolation.from_dict(spec["isolation"])
        self._entry: str = spec["entry"]
        self._running: dict[int, Child] = {}  # by the descriptor that tells of its end
        self._ended: dict[int, Child] = {}  # by the function's number
        self._poll = select.poll()

    def serve(self) -> None:
        """Fork as asked, until the driver goes."""
        self._poll.register(self._control, select.POLLIN)
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._control.fileno():
                    if not self._obey():
                        return
                else:
                    self._tell_end(descriptor)

    def _obey(self) -> bool:
        message, descriptors = receive(self._control)
        if message is None:
            return False
        if "reap" in message:
            child = self._ended.pop(message["reap"], None)
            if child is not None:
                os.waitpid(child.waited, 0)
            return True
        try:
            child = self._fork(ForkRequest.from_dict(message["fork"]), descriptors)
        except (OSError, Refused) as error:
            _send(self._control, {"refused": str(error)})
            return True
        finally:
            for one in descriptors:
                os.close(one)
        watch = os.pidfd_open(child.waited)
        self._running[watch] = child
        self._poll.register(watch, select.POLLIN)
        _send(self._control, {"pid": child.pid}, [child.handle])
        os.close(child.handle)
        return True

    def _tell_end(self, descriptor: int) -> None:
        child = self._running.pop(descriptor)
        self._poll.unregister(descriptor)
        os.close(descriptor)
        ended = os.waitid(os.P_PID, child.waited, os.WEXITED | os.WNOWAIT)
        code = _code(ended)
        if child.line is not None:
            with child.line as line:
                code = int(line.recv(16) or code)
        self._ended[child.pid] = child
        _send(self._events, {"pid": child.pid, "code": code})

    def _fork(self, request: ForkRequest, descriptors: list[int]) -> Child:
        names = os.listdir("/proc/self/task")
        if len(names) != 1:
            raise Refused(
                f"the template has {len(names)} threads; a forked child would hang: what is "
                "imported there must start none (are the *_NUM_THREADS variables 1?)"
            )
        sys.stdout.flush()
        sys.stderr.flush()
        if not self._isolation.pid_ns:
            parent = os.getpid()
            pid = os.fork()
            if pid == 0:
                self._become(request, descriptors, parent)
            return Child(pid=pid, handle=os.pidfd_open(pid), waited=pid, line=None)
        return self._fork_in_namespace(request, descriptors)

    def _fork_in_namespace(self, request: ForkRequest, descriptors: list[int]) -> Child:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # With each message the kernel says who sent it, in numbers that hold here.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        with theirs:
            first = linux.fork_first_of_namespace()
            if first == 0:
                ours.close()
                self._be_first(request, descriptors, theirs)
        hello, ancillary, _, _ = ours.recvmsg(1, socket.CMSG_SPACE(_CREDENTIALS.size))
        if not hello:
            ours.close()
            os.waitpid(first, 0)
            raise Refused("the first process of a namespace ended at once: out of processes?")
        pid = _CREDENTIALS.unpack(ancillary[0][2])[0]
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            ours.close()
            os.waitpid(first, 0)
            raise
        ours.shutdown(socket.SHUT_WR)
        return Child(pid=pid, handle=handle, waited=first, line=ours)

    def _be_first(
        self, request: ForkRequest, descriptors: list[int], line: socket.socket
    ) -> NoReturn:
        """Process 1 of a namespace: start the function, wait for it, say how it ended."""
        try:
            linux.die_with_parent()
            _end_without(line)
            function = os.fork()
            if function == 0:
                line.send(b"h")
                # Nobody keeps the number of one that ends: the handle must be there before.
                line.recv(1)
                self._become(request, descriptors, 1)
            kept = line.fileno()
            os.closerange(0, kept)
            os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
            while True:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
                if ended is not None and ended.si_pid == function:
                    line.send(b"%d" % _code(ended))
                    os._exit(0)
                os.waitpid(-1, os.WNOHANG)
        finally:
            os._exit(FAILED_TO_ISOLATE)

    def _become(self, request: ForkRequest, descriptors: list[int], parent: int) -> NoReturn:
        """In the child: become the function. Nothing of it runs where a wall is missing."""
        try:
            try:
                os.setsid()
                linux.die_with_parent()
                if os.getppid() != parent:
                    os._exit(1)
                _be_killable()
                _arrange(descriptors)
                isolate(self._isolation, request)
                os.chdir(request.folder)
            except (OSError, ValueError) as error:
                print(f"function {request.id} could not be isolated: {error}", file=sys.stderr)
                sys.stderr.flush()
                os.write(_STATUS, json.dumps({"failed": str(error)}).encode() + b"\n")
                os._exit(FAILED_TO_ISOLATE)
            has_meter = len(descriptors) > 3
            _take_environment(request.environment, has_meter=has_meter)
            _make_unlike_its_siblings()
            code = _run(self._entry)
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
        finally:
            os._exit(FAILED_TO_ISOLATE)


def _code(ended: os.waitid_result | None) -> int:
    """An exit code as subprocess has it: minus the number of the signal that ended it."""
    if ended is None:
        return -signal.SIGKILL
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def _be_killable() -> None:
    """A driver that the kernel must spare has functions that it may kill for their memory."""
    with open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:
        if int(file.read()) < 0:
            file.seek(0)
            file.write("0")


def _end_without(line: socket.socket) -> None:
    """End when the template had gone before the parent-death signal was asked for."""
    look = select.poll()
    look.register(line, 0)
    if look.poll(0):
        os._exit(1)


def _arrange(descriptors: list[int]) -> None:
    """Frames, output, status and perhaps a meter become 0 to 4; all others are closed."""
    lifted = [fcntl.fcntl(one, fcntl.F_DUPFD, 64) for one in descriptors]  # clear of all targets
    frames, output, status, *meter = lifted
    for source, target in ((frames, _FRAMES), (output, _OUTPUT), (output, _ERRORS)):
        os.dup2(source, target)
    os.dup2(status, _STATUS, inheritable=False)
    for one in meter:
        os.dup2(one, _METER, inheritable=False)
    os.closerange(_METER + 1 if meter else _METER, os.sysconf("SC_OPEN_MAX"))


def _take_environment(environment: Mapping[str, str], *, has_meter: bool) -> None:
    was = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(environment)
    os.environ["FUNCPIPE_STATUS"] = str(_STATUS)
    if has_meter:
        os.environ["FUNCPIPE_METER"] = str(_METER)
    now = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    tempfile.tempdir = None  # an import may have looked at TMPDIR, which was another one then
    sys.path[:] = now + [path for path in sys.path if path not in {*was, *now}]


def _make_unlike_its_siblings() -> None:
    """What a fresh process seeds by chance must not be the same in every fork."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _run(entry: str) -> int:
    """Run a module as the interpreter would run ``-m entry``; its exit code."""
    sys.argv = [entry]
    try:
        runpy.run_module(entry, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        return 1
    return 0


def _send(target: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # `serve` sees that it went
        send(target, json.dumps(message).encode(), descriptors)


def _resident_bytes() -> dict[str, int]:
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        lines = dict(line.split(":", 1) for line in file if ":" in line)
    names = {"anon_bytes": "RssAnon", "file_bytes": "RssFile"}
    return {name: int(lines[line].split()[0]) << 10 for name, line in names.items()}


def main(control_number: int, events_number: int) -> int:
    linux.die_with_parent()
    control, events = socket.socket(fileno=control_number), socket.socket(fileno=events_number)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    spec, _ = receive(control)
    if spec is None:
        return 0
    if os.getppid() != spec["driver"]:
        return 1
    try:
        if spec["isolation"]["user_ns"]:
            linux.enter_user_namespace()
            linux.die_with_parent()
    except OSError as error:
        _send(control, {"refused": f"no user namespace: {error}"})
        return 1
    for module in spec["imports"]:
        importlib.import_module(module)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.collect()
    gc.freeze()
    _send(control, {"ready": _resident_bytes()})
    Template(control, events, spec).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
