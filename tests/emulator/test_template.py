"""Functions forked from a template process: real processes, with and without walls."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from funcpipe.emulator import forks
from funcpipe.emulator.forks import ForkRequest, Isolation, Template
from funcpipe.emulator.messages import receive
from funcpipe.errors import PlatformError

from .forking import PYTHON_PATH, Forked, make_template
from .helpers import eventually, processes_with

IS_ROOT = os.geteuid() == 0
PLAIN = Isolation()
NAMESPACES = Isolation(pid_ns=True, user_ns=not IS_ROOT)


def has_ended(pid: int) -> bool:
    """Whether a process that is nobody's child here has ended, even if nobody has reaped it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture(scope="module", params=[PLAIN, NAMESPACES], ids=["plain", "namespaces"])
def template(request: pytest.FixtureRequest) -> Iterator[Template]:
    made = make_template(request.param)
    yield made
    made.close()


def test_a_function_is_a_process_like_one_started_afresh(
    template: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given: a driver with a secret; two functions.
    monkeypatch.setenv("FOO_SECRET", "of the shell")
    folders = [tmp_path / "one", tmp_path / "two"]

    # When
    functions = [
        Forked(template, folder, [{"do": "show"}], environment={"MINE": folder.name})
        for folder in folders
    ]
    seen = [function.end(0)[0] for function in functions]

    # Then
    for folder, one in zip(folders, seen, strict=True):
        own = {"MINE": folder.name, "HOME": str(folder), "FUNCPIPE_STATUS": "3"}
        own["PYTHONPATH"] = PYTHON_PATH
        assert one["environment"] == own
        assert (one["folder"], one["listing"]) == (str(folder), [])
        assert one["descriptors"] == [0, 1, 2, 3]
        assert (one["session"], one["torch"], one["name"]) == (True, True, "__main__")
        assert one["argv"] == [str(Path(__file__).with_name("forked.py"))]
        assert one["user"] == os.getuid()
    assert {*seen[0]["chance"]}.isdisjoint(seen[1]["chance"])


def test_it_has_the_path_that_its_own_environment_asks_for(
    template: Template, tmp_path: Path
) -> None:
    asked = os.pathsep.join([str(tmp_path / "mine"), str(Path(__file__).parent)])

    function = Forked(
        template, tmp_path / "one", [{"do": "show"}], environment={"PYTHONPATH": asked}
    )

    path = function.end(0)[0]["path"]
    assert path[:2] == asked.split(os.pathsep)
    assert len(path) == len(set(path))


@pytest.mark.parametrize(
    ("task", "code", "printed"),
    [
        ({"do": "leave", "code": 0}, 0, ""),
        ({"do": "leave", "code": 7}, 7, ""),
        ({"do": "leave", "code": None}, 0, ""),
        ({"do": "leave", "code": "the reason"}, 1, "the reason"),
        ({"do": "fail"}, 1, "RuntimeError: as planned"),
        ({"do": "die", "number": int(signal.SIGKILL)}, -signal.SIGKILL, ""),
        ({"do": "die", "number": int(signal.SIGTERM)}, -signal.SIGTERM, ""),
        ({"do": "die", "number": int(signal.SIGABRT)}, -signal.SIGABRT, ""),
        ({"do": "crash"}, -signal.SIGSEGV, ""),
    ],
)
def test_an_end_is_told_as_subprocess_would(
    template: Template, tmp_path: Path, task: dict[str, Any], code: int, printed: str
) -> None:
    function = Forked(template, tmp_path / "one", [task])

    function.end(code)

    assert printed in function.output()
    assert template.exits() == []


def test_the_environments_descriptors_are_its_own(template: Template, tmp_path: Path) -> None:
    counters = os.memfd_create("meter")

    function = Forked(template, tmp_path / "one", [{"do": "meter"}], meter=counters)

    assert function.end(0) == [{"variable": "4"}]
    assert os.pread(counters, 100, 0) == b"counted"
    os.close(counters)


def test_two_threads_of_torch_compute_in_a_fork(template: Template, tmp_path: Path) -> None:
    functions = [Forked(template, tmp_path / str(k), [{"do": "compute"}]) for k in range(2)]

    found = [function.end(0)[0] for function in functions]

    assert [(one["set"], one["sum"]) for one in found] == [(2, 600.0**3)] * 2
    assert all(one["threads"] >= 2 for one in found)


def test_a_signal_reaches_a_function_and_its_children(template: Template, tmp_path: Path) -> None:
    task = {"do": "family", "same_group": True, "then": "sleep"}
    function = Forked(template, tmp_path / "one", [task])
    function.wait_for_output()

    template.signal(function.pid, signal.SIGTERM)

    function.end(-signal.SIGTERM)


def test_what_a_function_started_ends_with_it_in_a_namespace(tmp_path: Path) -> None:
    template = make_template(NAMESPACES)
    function = Forked(template, tmp_path / "one", [{"do": "family", "then": "sleep"}])
    function.wait_for_output()
    # The first process shares the template's environment; function and three children do not.
    assert len(processes_with(str(tmp_path))) == 4

    os.kill(function.pid, signal.SIGKILL)

    function.end(-signal.SIGKILL)
    assert eventually(lambda: processes_with(str(tmp_path)) == [])
    template.close()


def test_closing_ends_all_functions_and_leaves_no_descriptor(
    template: Template, tmp_path: Path
) -> None:
    open_before = len(os.listdir("/proc/self/fd"))
    isolation = NAMESPACES if template._tree_ends else PLAIN
    made = make_template(isolation)
    functions = [Forked(made, tmp_path / str(k), [{"do": "sleep"}]) for k in range(3)]
    assert all(psutil.pid_exists(one.pid) for one in functions)

    made.close()
    made.close()

    assert [one for one in functions if not has_ended(one.pid)] == []
    for one in functions:
        one.close()
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_a_template_that_was_killed_is_told(template: Template, tmp_path: Path) -> None:
    isolation = NAMESPACES if template._tree_ends else PLAIN
    made = make_template(isolation)
    function = Forked(made, tmp_path / "one", [{"do": "sleep"}])

    os.kill(made.pid, signal.SIGKILL)

    function.end(-signal.SIGKILL)
    assert eventually(lambda: has_ended(function.pid))
    with pytest.raises(PlatformError, match="the template process has ended"):
        Forked(made, tmp_path / "two", [])
    made.close()


DRIVER = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.emulator.forking import Forked, make_template
from funcpipe.emulator.forks import Isolation
template = make_template(Isolation(pid_ns=sys.argv[3] == "True", user_ns=sys.argv[4] == "True"))
task = [{"do": "family", "then": "sleep"}]
functions = [Forked(template, Path(sys.argv[2]) / str(k), task) for k in range(2)]
for one in functions:
    one.wait_for_output()
print(template.pid, *(one.pid for one in functions), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("isolation", [PLAIN, NAMESPACES], ids=["plain", "namespaces"])
def test_nothing_is_left_of_a_killed_driver(tmp_path: Path, isolation: Isolation) -> None:
    root = str(Path(__file__).resolve().parents[2])
    walls = [str(isolation.pid_ns), str(isolation.user_ns)]
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, root, str(tmp_path), *walls],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert driver.stdout is not None
    pids = [int(one) for one in driver.stdout.readline().split()]
    assert len(pids) == 3

    driver.kill()
    driver.communicate()

    assert eventually(lambda: all(map(has_ended, pids)))
    if isolation.pid_ns:  # without it the guard ends the rest of the groups
        assert eventually(lambda: processes_with(str(tmp_path)) == [])
    for process in processes_with(str(tmp_path)):
        process.kill()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"imports": ["no_such_module"]}, "(?s)has ended.*no_such_module"),
        ({"imports": ["threaded_import"]}, "the template has 2 threads"),
    ],
)
def test_what_cannot_be_forked_from_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    (tmp_path / "threaded_import.py").write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )

    def act() -> None:
        template = make_template(PLAIN, python_path=tmp_path, **changes)
        with contextlib.closing(template):
            Forked(template, tmp_path / "one", [])

    with pytest.raises(PlatformError, match=message):
        act()


def test_a_missing_entry_is_told_by_its_exit(tmp_path: Path) -> None:
    template = make_template(PLAIN, entry="no_such_module", imports=())

    function = Forked(template, tmp_path / "one", [])

    function.end(1)
    assert "no_such_module" in function.output()
    template.close()


def test_a_group_that_cannot_be_joined_is_told_and_nothing_runs(
    template: Template, tmp_path: Path
) -> None:
    missing = str(tmp_path / "missing" / "cgroup.procs")

    function = Forked(template, tmp_path / "one", [{"do": "show"}], procs_files=(missing,))

    function.end(70)
    assert missing in json.loads(function.said_status)["failed"]
    assert missing in function.output()


def test_a_function_may_have_ended_when_its_number_arrives(
    template: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given: a driver that is slow to read the answer, and a function that ends at once
    def read_late(source: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
        answer, handles = receive(source)
        assert answer is not None
        assert eventually(lambda: has_ended(answer["pid"]))
        return answer, handles

    monkeypatch.setattr(forks, "receive", read_late)

    # When
    function = Forked(
        template, tmp_path / "one", None, procs_files=(str(tmp_path / "missing" / "cgroup.procs"),)
    )

    # Then its end is told as any other
    template.signal(function.pid, signal.SIGTERM)
    function.end(70)


def test_requests_and_walls_survive_as_json() -> None:
    walls = Isolation(pid_ns=True, mount_ns=True, tmp="loop", read_only=True, shared_memory_mb=0)
    request = ForkRequest(id="a", environment={"A": "b"}, folder="/f", writable=("/w",))

    assert Isolation.from_dict(json.loads(json.dumps(walls.to_dict()))) == walls
    assert ForkRequest.from_dict(json.loads(json.dumps(request.to_dict()))) == request


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tmp": "disk", "mount_ns": True}, "tmp must be"),
        ({"tmp": "loop", "mount_ns": True, "user_ns": True}, "use tmp='tmpfs'"),
        ({"read_only": True}, "need mount_ns"),
        ({"shared_memory_mb": -1, "mount_ns": True}, "cannot be -1"),
    ],
)
def test_walls_that_cannot_stand_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Isolation(**fields)


def test_the_base_is_what_a_fresh_process_holds(template: Template) -> None:
    assert template.base.anon_bytes > 50 << 20
    assert template.base.file_bytes > 20 << 20
