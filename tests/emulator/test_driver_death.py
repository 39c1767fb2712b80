"""However a driver ends, nothing that it started outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from funcpipe.emulator.ports import all_free

from .helpers import eventually, processes_with

pytestmark = pytest.mark.server

ROOT = Path(__file__).resolve().parents[2]


def terminal_interrupt(driver: subprocess.Popen[str]) -> None:
    os.killpg(driver.pid, signal.SIGINT)


@pytest.mark.parametrize(
    ("kind", "then", "end"),
    [
        ("seaweedfs", "wait", subprocess.Popen.kill),
        ("juicefs", "wait", subprocess.Popen.kill),
        ("juicefs", "wait", terminal_interrupt),
        ("juicefs", "wait", subprocess.Popen.terminate),
        ("juicefs", "leave", lambda _: None),
        ("juicefs", "raise", lambda _: None),
    ],
    ids=["kill-seaweedfs", "kill-juicefs", "interrupt", "terminate", "leave", "raise"],
)
def test_nothing_is_left_of_a_run(
    kind: str, then: str, end: Callable[[subprocess.Popen[str]], None], tmp_path: Path
) -> None:
    # Given: a driver in the foreground of its own terminal session, with all of its children up.
    script = Path(__file__).with_name("driver_script.py")
    driver = subprocess.Popen(
        [sys.executable, str(script), kind, str(tmp_path), then],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert driver.stdout is not None
    line = driver.stdout.readline()
    if then == "wait":
        # driver, two guards, template, server, three functions and a child of each of them
        assert len(processes_with(str(tmp_path))) == 11

    # When
    end(driver)
    _, errors = driver.communicate(timeout=30)

    # Then
    ports = json.loads(line)
    assert eventually(lambda: processes_with(str(tmp_path)) == []), errors
    assert eventually(lambda: all_free(list(ports.values())))
    assert list((tmp_path / "store").iterdir()) == []
    assert list((tmp_path / "work").iterdir()) == []
    assert not [
        path
        for path in Path("/tmp").glob("seaweedfs-*.sock")  # noqa: S108
        if any(f"-{port}." in path.name for port in ports.values())
    ]
    assert sorted(path.name.split(".")[0] for path in (tmp_path / "logs").iterdir()) == [
        "stage-0",
        "stage-1",
        "stage-2",
    ]
