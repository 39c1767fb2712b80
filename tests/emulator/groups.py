"""Real control groups for tests, and processes in them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from funcpipe.emulator.cgroups import Cell, Cgroups, open_cgroups


def real_cgroups(*controllers: str) -> Iterator[Cgroups]:
    """Skips where the machine gives us none, and says why. For use as a fixture's body."""
    cgroups = open_cgroups(f"funcpipe-test-{os.getpid()}")
    try:
        for controller in controllers:
            if not getattr(cgroups, controller):
                pytest.skip(f"no control groups here: {cgroups.why_not[controller]}")
        yield cgroups
    finally:
        cgroups.close()
    assert not [folder for folder in cgroups.folders if os.path.exists(folder)]


JOIN = """\
import sys
for path in sys.argv[1:]:
    with open(path, "w") as file:
        file.write("0")
"""


def run_in(cell: Cell | None, code: str) -> subprocess.Popen[str]:
    """A Python process that joins `cell`, then runs `code`; it waits where that reads stdin."""
    return subprocess.Popen(
        [sys.executable, "-c", JOIN + code, *(cell.procs_files if cell is not None else ())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()
