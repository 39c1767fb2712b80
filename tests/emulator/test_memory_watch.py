"""Real processes that hold too much, or nearly so."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from funcpipe.emulator.base_memory import BaseMemory
from funcpipe.emulator.cgroups import Cell, Cgroups
from funcpipe.emulator.memory_watch import (
    MemoryWatch,
    descendants,
    held_bytes,
    inherited_bytes,
    private_bytes,
    read_resident,
)

from .groups import end, go, line_of, real_cgroups, run_in
from .helpers import eventually

MB = 1 << 20
LIMIT = 200 * MB
# Once told to, holds `MORE` bytes above what it has.
HOLD = """
print('in', flush=True)
sys.stdin.readline()
held = b'x' * (MORE)
print('held', flush=True)
sys.stdin.readline()
"""
# The template of a test: holds 100 MB, forks a child that has them too, and keeps out of its way.
FORKED = """
import os
base = b'b' * (100 << 20)
text = open('/proc/self/status').read()
print(*(text.split(name)[1].split()[0] for name in ('RssAnon:', 'RssFile:')), flush=True)
sys.stdin.readline()
joins = sys.argv[1:]
child = os.fork()
if child:
    os.waitpid(child, 0)
    os._exit(0)
for path in joins:
    with open(path, 'w') as file:
        file.write('0')
print(os.getpid(), flush=True)
"""


class Told:
    def __init__(self) -> None:
        self.texts: list[tuple[str, str]] = []
        self.watch = MemoryWatch(every_s=0.02, on_excess=lambda *told: self.texts.append(told))

    def quiet(self, seconds: float = 0.3) -> bool:
        """Nothing is told for many looks."""
        time.sleep(seconds)
        return self.texts == []


@pytest.fixture
def told() -> Iterator[Told]:
    one = Told()
    yield one
    one.watch.close()


@pytest.fixture
def cgroups() -> Iterator[Cgroups]:
    yield from real_cgroups("memory")


def started(more_bytes: int, cell: Cell | None = None) -> subprocess.Popen[str]:
    process = run_in(cell, HOLD.replace("MORE", str(more_bytes)))
    assert line_of(process) == "in"
    return process


def own_bytes(process: subprocess.Popen[str]) -> int:
    found = read_resident(process.pid)
    assert found is not None
    return held_bytes(found, BaseMemory())


def own_base() -> int:
    """What a process of this kind holds before it is told to hold more."""
    process = started(0)
    base = own_bytes(process)
    end(process)
    return base


# -- without a cell --------------------------------------------------------------------------


def test_under_by_five_percent_is_left_alone_and_over_is_told_once(told: Told) -> None:
    base = own_base()
    under, over = started(LIMIT * 95 // 100 - base), started(LIMIT * 105 // 100 - base)
    for name, process in (("under", under), ("over", over)):
        told.watch.add(name, pid=process.pid, limit_bytes=LIMIT, cell=None, base=BaseMemory())
    assert told.quiet()

    go(under)
    assert line_of(under) == "held"
    assert told.quiet()

    go(over)
    assert eventually(lambda: told.texts != [])
    time.sleep(0.2)
    [(name, text)] = told.texts
    assert name == "over"
    assert text.startswith("held 2")
    assert text.endswith(" MB of 200 MB")
    end(under)
    end(over)


def test_mapped_files_are_nobody_s_memory(told: Told, tmp_path: Path) -> None:
    # Given: a process that has read all of a large file through a mapping.
    path = tmp_path / "data"
    path.write_bytes(bytes(300 << 20))
    code = f"import mmap\nfile = open({str(path)!r}, 'rb')\n"
    code += "held = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n"
    code += "held.find(b'x')\nprint('in', flush=True)\nsys.stdin.readline()\n"
    process = run_in(None, code)
    assert line_of(process) == "in"
    found = read_resident(process.pid)
    assert found is not None
    assert found.file_bytes > 290 * MB

    base = BaseMemory(anon_bytes=1, file_bytes=20 * MB)
    told.watch.add("one", pid=process.pid, limit_bytes=LIMIT, cell=None, base=base)

    assert told.quiet()
    end(process)


def test_what_a_child_shares_counts_once_and_what_it_makes_counts_too(told: Told) -> None:
    # Given: a process that holds 120 MB and has a child with the same pages.
    code = "import os\nheld = b'x' * (120 << 20)\nmain = os.fork()\n"
    process = run_in(
        None, code + "if main: os.wait(); os._exit(0)\n" + HOLD.replace("MORE", "120 << 20")
    )
    assert line_of(process) == "in"
    [child] = descendants(process.pid)
    assert private_bytes(child) < 60 * MB

    told.watch.add("one", pid=process.pid, limit_bytes=LIMIT, cell=None, base=BaseMemory())

    assert told.quiet()
    go(process)
    assert eventually(lambda: told.texts != [])
    os.kill(child, 9)
    end(process)


def test_an_end_is_no_excess_and_a_removed_one_is_not_watched(told: Told) -> None:
    gone, left = started(0), started(2 * LIMIT)
    told.watch.add("gone", pid=gone.pid, limit_bytes=LIMIT, cell=None, base=BaseMemory())
    told.watch.add("left", pid=left.pid, limit_bytes=LIMIT, cell=None, base=BaseMemory())
    end(gone)
    told.watch.remove("left")
    told.watch.remove("left")
    go(left)
    assert line_of(left) == "held"

    assert told.quiet()
    end(left)


# -- with a cell -----------------------------------------------------------------------------


def test_in_a_cell_the_kernel_holds_it_to_the_limit(told: Told, cgroups: Cgroups) -> None:
    cells = {name: cgroups.cell(name) for name in ("under", "over")}
    charge = LIMIT * 95 // 100 - 15 * MB  # the interpreter's own
    processes = {
        "under": started(charge, cells["under"]),
        "over": started(LIMIT * 105 // 100, cells["over"]),
    }
    for name, process in processes.items():
        told.watch.add(
            name, pid=process.pid, limit_bytes=LIMIT, cell=cells[name], base=BaseMemory()
        )
        go(process)

    assert line_of(processes["under"]) == "held"
    assert processes["over"].wait(10) == -9
    assert eventually(lambda: told.texts != [])
    assert told.texts == [("over", "needed more than its 200 MB")]
    for process in processes.values():
        end(process)


def test_an_oom_kill_is_told_on_removal_at_the_latest(cgroups: Cgroups) -> None:
    told = Told.__new__(Told)
    told.texts = []
    watch = MemoryWatch(every_s=3600, on_excess=lambda *one: told.texts.append(one))
    cell = cgroups.cell("one")
    process = started(LIMIT, cell)
    watch.add("one", pid=process.pid, limit_bytes=LIMIT, cell=cell, base=BaseMemory())
    go(process)
    assert process.wait(10) == -9

    watch.remove("one")

    assert told.texts == [("one", "needed more than its 200 MB")]
    watch.close()
    end(process)


def test_a_child_of_the_function_that_is_killed_is_told_too(told: Told, cgroups: Cgroups) -> None:
    cell = cgroups.cell("one")
    code = (
        "import os\nif os.fork():\n os.wait()\n print('alive', flush=True)\n sys.stdin.readline()\n"
    )
    process = run_in(cell, code + HOLD.replace("MORE", "300 << 20"))
    assert line_of(process) == "in"
    told.watch.add("one", pid=process.pid, limit_bytes=LIMIT, cell=cell, base=BaseMemory())

    go(process)

    assert eventually(lambda: told.texts == [("one", "needed more than its 200 MB")])
    end(process)


@pytest.mark.parametrize(("percent", "fits"), [(95, True), (105, False)])
@pytest.mark.parametrize("with_cell", [True, False])
def test_a_forked_child_is_held_to_what_a_fresh_process_would_hold(
    told: Told, request: pytest.FixtureRequest, with_cell: bool, percent: int, fits: bool
) -> None:
    # Given: a template with 100 MB, and a child that shares them, in a cell of its own or not.
    cell = request.getfixturevalue("cgroups").cell("one") if with_cell else None
    code = FORKED + HOLD.replace("MORE", "int(sys.stdin.readline())")
    joins = list(cell.procs_files) if cell is not None else []
    process = run_in(None, f"sys.argv[1:] = {joins!r}\n" + code)
    anon, file = (int(text) * 1024 for text in line_of(process).split())
    base = BaseMemory(anon_bytes=anon, file_bytes=file)
    go(process)
    child = int(line_of(process))
    assert line_of(process) == "in"
    if cell is not None:
        assert cell.pids() == [child]
        assert cell.memory().anon_bytes < 20 * MB
    told.watch.add("one", pid=child, limit_bytes=LIMIT, cell=cell, base=base)
    assert told.quiet()

    # When: it takes so much more that it would be at `percent` of the limit.
    more = LIMIT * percent // 100 - base.anon_bytes - base.file_bytes
    assert process.stdin is not None
    process.stdin.write(f"go\n{more}\n")
    process.stdin.flush()

    if fits:
        assert line_of(process) == "held"
        assert told.quiet()
    else:
        assert eventually(lambda: told.texts != [])
        assert told.texts[0][0] == "one"
    end(process)
    if os.path.exists(f"/proc/{child}"):
        os.kill(child, 9)


def test_the_inherited_share_of_a_real_child_is_what_it_is_not_charged_for(
    cgroups: Cgroups,
) -> None:
    cell = cgroups.cell("one")
    code = f"sys.argv[1:] = {list(cell.procs_files)!r}\n" + FORKED
    process = run_in(None, code + HOLD.replace("MORE", "50 << 20"))
    line_of(process)
    go(process)
    child = int(line_of(process))
    assert line_of(process) == "in"
    before = read_resident(child)
    assert before is not None
    inherited = inherited_bytes(before.anon_bytes, cell.memory().anon_bytes, BaseMemory())
    assert inherited >= 95 * MB

    go(process)
    assert line_of(process) == "held"

    after = read_resident(child)
    assert after is not None
    assert after.anon_bytes >= before.anon_bytes + 50 * MB
    same = inherited_bytes(after.anon_bytes, cell.memory().anon_bytes, BaseMemory())
    assert abs(same - inherited) < 5 * MB
    cell.remove()
    end(process)
