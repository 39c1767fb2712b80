"""What these tests share: drivers, and a look at what a run leaves behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]
HANG_S = 60.0
WITHIN_S = 10.0
"""The promise under test: seconds from a fault to the end of its run."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How one run ended, and when."""

    outcome: Mapping[str, Any]
    events: list[dict[str, Any]]

    @property
    def error(self) -> dict[str, Any]:
        assert "error" in self.outcome, f"expected a FuncpipeError, found {self.outcome}"
        found: dict[str, Any] = self.outcome["error"]
        return found

    @property
    def text(self) -> str:
        return str(self.outcome["text"])


class Driver:
    """A process that trains one job after the other, and stays (see driver.py)."""

    def __init__(self) -> None:
        self.broken = False
        """Whether a test has given up on a run that still goes on."""
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("driver.py"))],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._next() == {"ready": True}

    def train(
        self,
        folder: Path,
        job: Path | str,
        *,
        seen: Callable[[dict[str, Any]], None] | None = None,
        **options: Any,
    ) -> Ended:
        """Train `job` with its temporary folder, run folder and store in `folder`.

        `seen` is called with each event, while the run goes on.
        """
        request = request_for(folder, job, **options)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        self.broken = True
        events = []
        while True:
            line = self._next()
            if "outcome" in line:
                self.broken = False
                return Ended(outcome=line["outcome"], events=events)
            events.append(line["event"])
            if seen is not None:
                seen(line["event"])

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _next(self) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=HANG_S)
        except Empty:
            raise AssertionError(f"the run hangs; there are:\n{processes(self.pid)}") from None
        assert line is not None, "the driver has ended"
        assert line.startswith("{"), f"the driver printed {line!r}"
        told: dict[str, Any] = json.loads(line)
        return told

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self.broken:
            self._process.kill()
        self._process.wait(timeout=HANG_S)
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Command:
    """``funcpipe train`` in a session of its own, as in the foreground of a terminal."""

    def __init__(self, folder: Path, job: Path, *options: str) -> None:
        temporary, home = folder / "tmp", folder / "home"
        temporary.mkdir(exist_ok=True)
        self._events = folder / "run/events.jsonl"
        command = [sys.executable, "-m", "funcpipe", "train", str(job), "--run-dir", "../run"]
        self._process = subprocess.Popen(
            [*command, *options],
            env={**environment(), "TMPDIR": str(temporary)},
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def await_event(self, kind: str, **fields: Any) -> None:
        """Return as soon as the run has told of such an event."""

        def has_come() -> bool:
            assert self._process.poll() is None, self._process.communicate()
            lines = self._events.read_text().splitlines() if self._events.exists() else []
            told = [json.loads(line) for line in lines]
            wanted = {"kind": kind, **fields}
            return any(wanted.items() <= event.items() for event in told)

        assert eventually(has_come, within_s=HANG_S), f"no event {kind}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def interrupt(self, number: int) -> None:
        """As a terminal does it: to the whole foreground."""
        os.killpg(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> tuple[int, str, str]:
        """Exit code, standard output and standard error; its end is waited for, but not long."""
        out, err = self._process.communicate(timeout=HANG_S)
        return self._process.returncode, out, err


def processes(pid: int) -> str:
    return "\n".join(f"{one}: {' '.join(arguments_of(one))}" for one in [pid, *children_of(pid)])


def environment() -> dict[str, str]:
    """What a driver gets: no keys but those that a test gives it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def request_for(
    folder: Path,
    job: Path | str,
    *,
    environment: Mapping[str, str] | None = None,
    **options: Any,
) -> dict[str, Any]:
    home, temporary = folder / "home", folder / "tmp"
    home.mkdir(exist_ok=True)
    temporary.mkdir(exist_ok=True)
    chosen = {"store": str(folder / "store"), "run_dir": str(folder / "run"), **options}
    return {
        "job": str(job),
        "cwd": str(home),
        "tmp": str(temporary),
        "environment": dict(environment or {}),
        "options": chosen,
    }


# What is left.


def processes_of(folder: Path) -> list[int]:
    """Every process that carries the folder in its environment, command line or working folder."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            place = Path("/proc", entry)
            texts = (place / "environ").read_bytes() + (place / "cmdline").read_bytes()
            texts += os.readlink(place / "cwd").encode()
            state = (place / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z" and os.fsencode(folder) in texts:
            found.append(int(entry))
    return found


def arguments_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []


def children_of(pid: int) -> list[int]:
    children = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        children += [int(child) for child in task.read_text().split()]
    return children + [one for child in children for one in children_of(child)]


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def eventually(condition: Callable[[], bool], *, within_s: float = WITHIN_S) -> bool:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def assert_nothing_left(folder: Path) -> None:
    """No process, no temporary file, no object."""
    left = {pid: arguments_of(pid) for pid in processes_of(folder)}
    assert left == {}
    temporary = [path.name for path in (folder / "tmp").iterdir()]
    # torch makes that one by itself, once it makes an optimiser.
    assert [name for name in temporary if not name.startswith("torchinductor_")] == []
    assert files_in(folder / "store") == []


def assert_clear(ended: Ended) -> None:
    """One message for people: no traceback, none of our own files, nothing kept."""
    assert not re.search(r"Traceback|File \"|funcpipe/[\w/]*\.py|unexpected", ended.text)
    assert ended.outcome["kept"] == []


def assert_recorded(folder: Path, status: str) -> dict[str, Any]:
    """The run folder tells how the run ended; returns the summary."""
    events = [json.loads(line) for line in (folder / "run/events.jsonl").read_text().splitlines()]
    assert events[0]["kind"] == "run_started"
    assert events[-1]["kind"] == "run_ended"
    assert events[-1]["status"] == status
    summary: dict[str, Any] = json.loads((folder / "run/summary.json").read_text())
    assert summary["status"] == status
    assert not (folder / "run/model.safetensors").exists() or status == "done"
    assert not list((folder / "run").glob(".partial-*"))
    return summary


def seconds_since_fault(folder: Path, ended: Ended) -> float:
    return float(ended.outcome["at"]) - float((folder / "fault").read_text())


@contextmanager
def small_disk(folder: Path, *, mebibytes: int) -> Iterator[Path]:
    """A disk of so many MiB; skips the test where none can be mounted."""
    import pytest

    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk, and not everywhere")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
