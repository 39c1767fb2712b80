"""Functions as processes here: how they are started, what they see, how they end."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import funcpipe
from funcpipe.driver.host import Exit, FunctionHost
from funcpipe.emulator.credentials import Credentials
from funcpipe.emulator.environment import Environment
from funcpipe.emulator.host import LocalHost
from funcpipe.errors import PayloadTooLarge, PlanError, PlatformError, Stopped
from funcpipe.partitioner.platform import load_platform

from .helpers import eventually, processes_with

QUICK = {"time.cold_start_s": "0", "time.warm_start_s": "0"}
CREDENTIALS = Credentials(access_key="THEKEY", secret_key="the-secret-key")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHost]:
    """One host for the tests that neither look at it as a whole nor harm it."""
    folder = tmp_path_factory.mktemp("host")
    with make_host(folder) as made:
        yield made
    assert_nothing_left(folder)


@pytest.fixture
def host(shared: LocalHost) -> Iterator[LocalHost]:
    """The shared host, without a function of a test before."""
    files = set(shared.folder.iterdir())
    yield shared
    shared.stop(grace_s=0.0)
    with shared._lock:
        for one in shared._environments:  # they wait for another invocation
            shared._do(shared._life.end(one, "stopped"))
    assert eventually(lambda: not shared._environments)
    shared.exits()
    assert set(shared.folder.iterdir()) == files


@pytest.fixture
def own_host(tmp_path: Path) -> Iterator[LocalHost]:
    with make_host(tmp_path) as made:
        yield made
    assert_nothing_left(tmp_path)


def assert_nothing_left(folder: Path) -> None:
    assert processes_with(str(folder)) == []
    assert list((folder / "work").iterdir()) == []


def make_host(tmp_path: Path, **changes: Any) -> LocalHost:
    options: dict[str, Any] = {
        "platform": load_platform("none"),
        "log_folder": tmp_path / "logs",
        "work_folder": tmp_path / "work",
        "credentials": CREDENTIALS,
        "environment": {"PYTHONPATH": str(Path(__file__).parent), "MINE": "yes"},
        "entry": "fake_function",
    }
    return LocalHost(**(options | changes))


def start(host: FunctionHost, name: str = "stage-0", **task: Any) -> str:
    return host.start(json.dumps(task).encode(), name=name, memory_mb=None)


def wait_for_exit(host: FunctionHost) -> Exit:
    found: list[Exit] = []
    assert eventually(lambda: found.extend(host.exits()) or bool(found), within_s=20)
    assert len(found) == 1
    return found[0]


def test_a_function_whose_start_is_broken_off_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a signal that comes while a function is being forked
    def broken_off(*_: object, **__: object) -> None:
        raise Stopped("interrupted")

    with make_host(tmp_path) as host:
        monkeypatch.setattr(Environment, "launch", broken_off)
        with pytest.raises(Stopped):
            start(host)
        monkeypatch.undo()
        # Then nothing of it is left, and others can start and end
        assert [one.reason for one in host.exits()] == ["stopped"]
        assert host.alive() == 0
        start(host, "another", do="exit", code=0)
        ended = wait_for_exit(host)
        assert (ended.reason, ended.log_tail) == ("done", "")
    assert_nothing_left(tmp_path)


@pytest.mark.parametrize(
    ("task", "code", "reason", "printed"),
    [
        ({"do": "exit", "code": 0, "text": "well done"}, 0, "done", "well done"),
        ({"do": "exit", "code": 1, "text": "my own error"}, 1, "failed", "my own error"),
        ({"do": "exit", "code": 7}, 7, "crashed", ""),
        ({"do": "raise", "text": "odd"}, 1, "failed", "RuntimeError: odd"),
        ({"do": "signal", "number": int(signal.SIGKILL)}, -9, "killed", ""),
        ({"do": "signal", "number": int(signal.SIGSEGV)}, -11, "crashed", "Segmentation fault"),
    ],
)
def test_an_exit_says_how_it_ended(
    host: LocalHost, task: dict[str, Any], code: int, reason: str, printed: str
) -> None:
    function_id = start(host, name="stage 1/replica 0", **task)
    assert host.alive() <= 1

    ended = wait_for_exit(host)

    assert (ended.id, ended.name, ended.code, ended.reason) == (
        function_id,
        "stage 1/replica 0",
        code,
        reason,
    )
    assert printed in ended.log_tail
    assert host.exits() == []
    assert host.alive() == 0


def test_a_function_sees_its_own_place_and_nothing_of_the_drivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOO_SECRET", "a-secret-of-the-shell")
    monkeypatch.setenv("AWS_PROFILE", "production")
    monkeypatch.setenv("HTTPS_PROXY", "http://user:password@proxy")
    target = tmp_path / "seen"

    with make_host(tmp_path, threads=3) as host:
        start(host, do="show", to=str(target))
        ended = wait_for_exit(host)

    assert ended.reason == "done", ended.log_tail
    seen = json.loads(target.read_text())
    environment = seen["environment"]
    folder = environment["HOME"]
    assert seen["temporary"] == folder
    assert Path(folder).parent == host.folder
    own = {"HOME": folder, "TMPDIR": folder, "MINE": "yes", "OMP_NUM_THREADS": "3"}
    own |= {"AWS_ACCESS_KEY_ID": "THEKEY", "AWS_SECRET_ACCESS_KEY": "the-secret-key"}
    assert environment.items() >= own.items()
    harmless = {"PATH", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "TZ", "PYTHONPATH"}
    harmless |= {
        "OMP_WAIT_POLICY",
        "FUNCPIPE_FUNCTION",
        "AWS_EC2_METADATA_DISABLED",
        "PYTHONHASHSEED",
    }
    harmless |= {"MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"}
    assert set(environment) - set(own) <= harmless
    # It runs this funcpipe, and cannot import what lies beside it or in the driver's folder.
    assert seen["funcpipe"] == os.path.realpath(str(funcpipe.__file__))
    beside = Path(str(funcpipe.__file__)).resolve().parents[1]
    assert str(beside) not in seen["path"]
    assert (seen["folder"], seen["stdin"], seen["session"]) == (folder, "", True)


def test_credentials_and_payload_are_on_no_command_line(
    own_host: LocalHost, tmp_path: Path
) -> None:
    start(own_host, do="spawn", mark=str(tmp_path / "mark"), secret="in-the-payload")
    assert eventually((tmp_path / "mark").exists)

    shown = [one for process in processes_with(str(tmp_path)) for one in process.cmdline()]

    assert len(shown) > 4
    assert not [one for one in shown for word in ("THEKEY", "secret", "payload") if word in one]


def test_a_large_payload_arrives_and_a_larger_one_is_refused(host: LocalHost) -> None:
    start(host, do="exit", code=0, text="x" * 900_000)
    ended = wait_for_exit(host)
    with pytest.raises(PayloadTooLarge, match="takes at most 1,048,576"):
        host.start(b"x" * ((1 << 20) + 1), name="stage-0", memory_mb=None)

    assert ended.reason == "done"
    assert ended.log_tail == "x" * 3999


def test_a_log_keeps_the_newest_of_much_output(own_host: LocalHost, tmp_path: Path) -> None:
    start(own_host, do="print", num_lines=300_000)

    ended = wait_for_exit(own_host)

    sizes = [path.stat().st_size for path in (tmp_path / "logs").iterdir()]
    assert ended.reason == "done"
    assert ended.log_tail.endswith("line 000299999")
    assert 1 << 19 < sum(sizes) <= 1 << 20


def test_stop_asks_first_and_then_kills_with_all_children(host: LocalHost, tmp_path: Path) -> None:
    marks = {name: tmp_path / name for name in ("polite", "deaf", "other")}
    ids = {
        name: start(host, name=name, do="spawn", mark=str(mark), deaf=name == "deaf")
        for name, mark in marks.items()
    }
    assert eventually(lambda: all(mark.exists() for mark in marks.values()))
    children = {name: int(mark.read_text()) for name, mark in marks.items()}

    host.stop([ids["polite"], ids["deaf"], "unknown"], grace_s=0.3)

    ended = {one.name: one for one in host.exits()}
    assert set(ended) == {"polite", "deaf"}
    assert (ended["polite"].reason, ended["polite"].code) == ("stopped", 143)
    assert (ended["deaf"].reason, ended["deaf"].code) == ("stopped", -signal.SIGKILL)
    assert gone(children["polite"])
    assert gone(children["deaf"])
    assert host.alive() == 1
    host.stop(grace_s=0.3)
    assert [one.name for one in host.exits()] == ["other"]
    assert gone(children["other"])


def gone(pid: int) -> bool:
    def check() -> bool:
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return eventually(check, within_s=3)


def test_a_child_is_frozen_with_its_function_and_ends_with_the_host(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with make_host(tmp_path) as host:
        start(host, do="spawn", mark=str(mark), seconds=0)

        ended = wait_for_exit(host)

        assert ended.reason == "done"
        child = int(mark.read_text())
        assert eventually(lambda: psutil.Process(child).status() == psutil.STATUS_STOPPED)
    assert gone(child)


def test_what_had_ended_before_the_stop_is_told_as_it_was(host: LocalHost) -> None:
    start(host, do="exit", code=1)
    assert eventually(lambda: host.alive() == 0)

    host.stop()

    assert [one.reason for one in host.exits()] == ["failed"]


def test_a_closed_pipe_ends_a_function_at_once(host: LocalHost, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    start(host, do="spawn", mark=str(mark), deaf=True)
    assert eventually(mark.exists)

    # When: the driver's end of the pipe goes, as it does when the driver dies.
    (environment,) = host._environments.values()
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), environment._frames[1])

    assert wait_for_exit(host).code == -signal.SIGKILL
    assert gone(int(mark.read_text()))


def test_functions_outlive_the_thread_that_asked_for_them(host: LocalHost, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    thread = threading.Thread(target=lambda: start(host, do="spawn", mark=str(mark)))
    thread.start()
    thread.join()
    assert eventually(mark.exists)

    assert host.exits() == []
    assert host.alive() == 1


def test_a_missing_entry_is_told_by_its_exit(tmp_path: Path) -> None:
    with make_host(tmp_path, entry="no_such_module") as host:
        start(host, do="exit", code=0)

        ended = wait_for_exit(host)

    assert ended.reason == "failed"
    assert "no_such_module" in ended.log_tail


def test_what_is_no_memory_size_is_refused(host: LocalHost) -> None:
    with pytest.raises(PlanError, match="function s: 0 MB is no memory size"):
        host.start(b"{}", name="s", memory_mb=0)
    assert host.alive() == 0


def test_a_closed_host_starts_nothing(own_host: LocalHost) -> None:
    own_host.close()

    with pytest.raises(PlatformError, match="closed"):
        own_host.start(b"{}", name="s")
    assert own_host.alive() == 0


def test_closing_twice_is_no_error(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    start(host, do="spawn", mark=str(tmp_path / "mark"))

    host.close()
    host.close()

    assert [one.reason for one in host.exits()] == ["stopped"]
    assert processes_with(str(tmp_path)) == []


@pytest.mark.parametrize("text", ["garbage\n", "5\n", "[]\n", '{"ready": 1}\n{\n'])
def test_junk_on_the_status_pipe_ends_the_function_alone(host: LocalHost, text: str) -> None:
    start(host, "junk", do="junk", text=text)
    start(host, "other", do="exit", code=0)

    found: dict[str, Exit] = {}
    assert eventually(
        lambda: found.update({one.name: one for one in host.exits()}) or len(found) == 2,
        within_s=20,
    )

    assert (found["junk"].reason, found["other"].reason) == ("crashed", "done")
    assert "descriptor of its status" in found["junk"].log_tail


@pytest.mark.parametrize("victim", ["guard", "template"])
def test_without_the_emulator_s_own_processes_functions_end_and_nothing_hangs(
    tmp_path: Path, victim: str
) -> None:
    host = make_host(tmp_path, platform=load_platform("aws-lambda", changes=QUICK))
    start(host, do="sleep")
    assert eventually(lambda: host.uses()[0].run_ms > 0)
    pid = host._guarded.guard_pid if victim == "guard" else host._template.pid

    os.kill(pid, signal.SIGTERM)
    ended = wait_for_exit(host)
    host.close()

    assert ended.reason in ("killed", "crashed", "failed")
    if victim == "template":
        assert "functions are forked from" in ended.detail
    assert processes_with(str(tmp_path)) == []


def test_a_loop_that_fails_ends_the_host_and_does_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = make_host(tmp_path)
    start(host, do="sleep")
    assert eventually(lambda: host.uses()[0].run_ms > 0)

    def fail() -> float:
        raise KeyError("a defect")

    monkeypatch.setattr(host, "tick", fail)
    host._loop.wake()

    assert eventually(lambda: host._loop.failure is not None)
    with pytest.raises(PlatformError, match="own loop has failed"):
        host.exits()
    host.close()
    assert processes_with(str(tmp_path)) == []
