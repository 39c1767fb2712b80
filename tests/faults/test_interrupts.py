"""Ctrl-C, a polite kill, and a kill: whatever the driver is at, it takes everything with it."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from funcpipe.emulator.capability import find
from funcpipe.emulator.ports import all_free

from .harness import (
    HANG_S,
    WITHIN_S,
    Command,
    arguments_of,
    assert_nothing_left,
    assert_recorded,
    eventually,
    files_in,
    processes_of,
)
from .jobs import write_job

FORTY_MEGABYTES = "nn.Linear(4, 1000), *[nn.Linear(1000, 1000) for _ in range(10)],"
LARGE = f"{FORTY_MEGABYTES} nn.Linear(1000, 3),"
ONE = ("--stages", "1", "--micro-batch-size", "2")
TWO = ("--stages", "2", "--micro-batch-size", "2")


def server_starts(command: Command, folder: Path) -> None:
    command.await_event("plan")
    assert eventually(lambda: len(processes_of(folder / "tmp")) > 1, within_s=HANG_S)


def uploads(command: Command, folder: Path) -> None:
    command.await_event("store_ready")
    assert eventually(lambda: len(files_in(folder / "store")) > 2, within_s=HANG_S)


def functions_start(command: Command, folder: Path) -> None:
    command.await_event("function_started", stage=1)


def trains(command: Command, folder: Path) -> None:
    command.await_event("step", step=2)


def exports(command: Command, folder: Path) -> None:
    command.await_event("function_ended")


@dataclass(frozen=True, kw_only=True)
class Interrupt:
    moment: Callable[[Command, Path], None]
    signals: tuple[signal.Signals, ...] = (signal.SIGINT,)
    options: tuple[str, ...] = (*TWO, "--store", "../store")
    large: bool = False


INTERRUPTS = {
    "while the server starts": Interrupt(moment=server_starts, options=ONE),
    "while the model is uploaded": Interrupt(moment=uploads, large=True),
    "while functions start": Interrupt(moment=functions_start, signals=(signal.SIGTERM,)),
    "while it trains": Interrupt(
        moment=trains, signals=(signal.SIGTERM,), options=(*ONE, "--store", "../store")
    ),
    "twice while it trains": Interrupt(
        moment=trains, signals=(signal.SIGINT, signal.SIGINT), options=(*ONE, "--store", "juicefs")
    ),
    "while the model is exported": Interrupt(
        moment=exports, options=(*ONE, "--store", "../store", "--steps", "1"), large=True
    ),
}


@pytest.mark.server
@pytest.mark.parametrize("interrupt", INTERRUPTS.values(), ids=INTERRUPTS.keys())
def test_interrupted(interrupt: Interrupt, tmp_path: Path) -> None:
    layers = {"layers": LARGE} if interrupt.large else {}
    job = write_job(tmp_path, epochs=1000, **layers)
    with Command(tmp_path, job, *interrupt.options) as command:
        interrupt.moment(command, tmp_path)

        began = time.time()
        for number in interrupt.signals:
            command.interrupt(number)
            time.sleep(0.05)
        code, out, err = command.end()

    assert time.time() - began < WITHIN_S
    assert code == 130, err
    assert out == ""
    assert re.search(r"^.*interrupted", err, re.MULTILINE), err
    assert "Traceback" not in err
    assert_nothing_left(tmp_path)
    assert assert_recorded(tmp_path, "stopped")["error"] is None


@pytest.mark.server
def test_killed_while_it_trains(tmp_path: Path) -> None:
    # Given: a run over a server of its own, whose keys nobody can read anywhere.
    job = write_job(tmp_path, epochs=1000)
    with Command(tmp_path, job, *TWO, "--store", "seaweedfs") as command:
        command.await_event("step", step=2)
        running = {pid: arguments_of(pid) for pid in processes_of(tmp_path)}
        (server,) = [pid for pid, arguments in running.items() if "mini" in arguments]
        ports = [
            int(port)
            for port in re.findall(r"port(?:\.grpc)?=([1-9]\d+)", " ".join(running[server]))
        ]
        assert len(ports) == 10
        # the driver, two guards, the server, the template, two functions, and in process namespaces
        # of their own a waiter for each
        waiters = 2 * find(tmp_path).works("pid namespace")
        assert len(running) == 7 + waiters, running
        assert_secret_is_nowhere(tmp_path, server, running)

        # When
        command.kill()
        code, _, _ = command.end()

    # Then
    assert code == -signal.SIGKILL
    assert eventually(lambda: processes_of(tmp_path) == [])
    assert eventually(lambda: all_free(ports))
    assert eventually(lambda: files_in(tmp_path / "tmp") == [])
    assert not [path for path in (tmp_path / "tmp").iterdir() if path.name.startswith("funcpipe")]
    assert not [
        path
        for path in Path("/tmp").glob("seaweedfs-*.sock")  # noqa: S108
        if any(f"-{port}." in path.name for port in ports)
    ]
    events = (tmp_path / "run/events.jsonl").read_text().splitlines()
    assert {json.loads(line)["kind"] for line in events} > {"step", "function_started"}


def assert_secret_is_nowhere(folder: Path, server: int, running: dict[int, list[str]]) -> None:
    """Not on a command line, in a log, in an event, in a payload or in any file that lies about."""
    variables = Path(f"/proc/{server}/environ").read_bytes().split(b"\0")
    (secret,) = [v[22:] for v in variables if v.startswith(b"AWS_SECRET_ACCESS_KEY=")]
    assert len(secret) > 20
    files_with = []
    for name in files_in(folder):
        path = folder / name
        if path.is_file() and not path.is_symlink():
            try:
                files_with += [name] * (secret in path.read_bytes())
            except FileNotFoundError:
                continue  # the run goes on
    assert files_with == []
    assert [argv for argv in running.values() if os.fsdecode(secret) in " ".join(argv)] == []
