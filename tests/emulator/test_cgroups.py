"""Control groups as this machine's kernel has them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import psutil
import pytest

from funcpipe.emulator.cgroups import Cell, Cgroups, open_cgroups

from .groups import end, go, line_of, real_cgroups, run_in
from .helpers import eventually

MB = 1 << 20
IDLE = "print('in', flush=True)\nsys.stdin.readline()\n"


@pytest.fixture
def cpu() -> Iterator[Cgroups]:
    yield from real_cgroups("cpu")


@pytest.fixture
def memory() -> Iterator[Cgroups]:
    yield from real_cgroups("memory")


@pytest.fixture
def either() -> Iterator[Cgroups]:
    yield from real_cgroups()


def need_any(cgroups: Cgroups) -> Cell:
    if not cgroups.folders:
        pytest.skip(f"no control groups here: {cgroups.why_not}")
    return cgroups.cell("one")


def test_a_process_that_joins_is_in_every_group(either: Cgroups) -> None:
    cell = need_any(either)

    process = run_in(cell, IDLE)

    assert line_of(process) == "in"
    assert cell.pids() == [process.pid]
    for path in cell.procs_files:
        with open(path, encoding="ascii") as file:
            assert file.read().split() == [str(process.pid)]
    end(process)


@pytest.mark.parametrize("cpus", [0.05, 0.5])
def test_a_share_of_the_cpu_holds_for_the_whole_tree(cpu: Cgroups, cpus: float) -> None:
    # Given: two processes that would each use a whole CPU.
    cell = cpu.cell("one")
    cell.limit_cpu(cpus)
    code = """
import os, time
main = os.fork()
time.sleep(0.2)
began, used = time.monotonic(), time.process_time()
while time.process_time() - used < 0.05:
    pass
os.write(1, b"%f\\n" % (time.monotonic() - began))
os.wait() if main else os._exit(0)
"""

    process = run_in(cell, code)
    first, second = float(line_of(process)), float(line_of(process))
    process.communicate()

    # Then: 0.1 s of CPU time took at least 0.1 / cpus, but for one quota and what was left of it.
    assert max(first, second) >= 0.6 * 0.1 / cpus
    assert cell.cpu_s() >= 0.1
    assert cell.throttled_s() > 0


def test_more_memory_than_the_limit_is_an_oom_kill_and_less_is_not(memory: Cgroups) -> None:
    cell = memory.cell("one")
    cell.limit_memory(64 * MB)
    code = "for mb in (40, 80):\n held = b'x' * (mb << 20)\n print('in', flush=True)\n"
    process = run_in(cell, code + " sys.stdin.readline()\n")

    assert line_of(process) == "in"
    held = cell.memory()
    assert 40 * MB <= held.anon_bytes <= held.charged_bytes <= 64 * MB
    assert held.oom_kills == 0

    go(process)

    assert process.wait(10) == -signal.SIGKILL
    assert eventually(lambda: cell.memory().oom_kills >= 1)
    end(process)


def test_kill_reaches_the_stubborn_and_their_children_in_a_throttled_cell(
    either: Cgroups,
) -> None:
    cell = need_any(either)
    code = (
        "import os, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.fork() == 0: os.setsid()\n"
    )
    process = run_in(cell, code + IDLE)
    assert (line_of(process), line_of(process)) == ("in", "in")
    family = [psutil.Process(pid) for pid in cell.pids()]
    assert len(family) == 2
    cell.limit_cpu(0.001)

    cell.kill()

    assert cell.pids() == []
    assert process.wait(10) == -signal.SIGKILL
    assert eventually(lambda: not any(one.is_running() for one in family if one.pid != process.pid))
    end(process)


def test_remove_takes_processes_and_groups_below_too(either: Cgroups) -> None:
    cell = need_any(either)
    process = run_in(cell, IDLE)
    line_of(process)
    for folder in cell.folders:
        os.mkdir(os.path.join(folder, "below"))

    cell.remove()

    assert not any(os.path.exists(folder) for folder in cell.folders)
    assert process.wait(10) == -signal.SIGKILL
    cell.remove()
    end(process)


def test_a_limit_can_be_raised_lowered_and_lifted(memory: Cgroups) -> None:
    cell = memory.cell("one")
    cell.limit_memory(20 * MB)
    process = run_in(cell, "held = b'x' * (60 << 20)\n" + IDLE)
    assert process.wait(10) == -signal.SIGKILL
    end(process)

    for limit in (500 * MB, 100 * MB, None):
        assert cell.limit_memory(limit)
        process = run_in(cell, "held = b'x' * (60 << 20)\n" + IDLE)
        assert line_of(process) == "in"
        end(process)


def test_two_at_once_do_not_touch_each_other(either: Cgroups) -> None:
    cell = need_any(either)
    process = run_in(cell, IDLE)
    line_of(process)

    other = open_cgroups(f"funcpipe-test-{os.getpid()}-b")
    other.cell("one")
    other.close()

    assert cell.pids() == [process.pid]
    end(process)
