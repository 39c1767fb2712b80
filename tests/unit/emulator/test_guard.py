"""The guard with plain shell commands in the place of servers."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from funcpipe.emulator import guard
from funcpipe.emulator.guarded import Guarded, Upkeep
from funcpipe.errors import ServerError

PATH = {"PATH": os.environ["PATH"]}
STUBBORN = "trap '' TERM INT HUP; sleep 600 & echo $! > child; mv child children; wait; wait"


def shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


def make(tmp_path: Path, **options: object) -> Guarded:
    return Guarded(purpose="test", parent=tmp_path, environment=PATH, **options)  # type: ignore[arg-type]


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def family(guarded: Guarded) -> list[psutil.Process]:
    """The server and its child, once both are there."""
    root = psutil.Process(guarded.guard_pid)
    assert eventually((guarded.folder / "children").exists)
    assert eventually(lambda: len(root.children(recursive=True)) == 2)
    return root.children(recursive=True)


def all_gone(processes: list[psutil.Process]) -> bool:
    def dead(process: psutil.Process) -> bool:
        try:
            return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return eventually(lambda: all(dead(process) for process in processes))


def test_stop_ends_a_stubborn_server_its_children_and_the_folder(tmp_path: Path) -> None:
    guarded = make(tmp_path, server=shell(STUBBORN), files={"sub/file": "text"}, grace_s=0.2)
    processes = family(guarded)
    assert (guarded.folder / "sub/file").read_text() == "text"
    assert guarded.folder.stat().st_mode & 0o077 == 0

    guarded.stop()

    assert all_gone(processes)
    assert list(tmp_path.iterdir()) == []
    assert not guarded.alive()
    guarded.stop()


def test_a_polite_server_is_asked_first(tmp_path: Path) -> None:
    said = tmp_path / "said"
    script = f"trap 'echo asked > {said}; exit 0' TERM; touch ready; while :; do sleep 0.05; done"
    guarded = make(tmp_path / "work", server=shell(script), grace_s=10.0)
    assert eventually((guarded.folder / "ready").exists)

    guarded.stop()

    assert said.read_text() == "asked\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_guard_that_is_ended_takes_its_server_along(tmp_path: Path, number: int) -> None:
    guarded = make(tmp_path, server=["/bin/sleep", "600"])
    processes = psutil.Process(guarded.guard_pid).children()
    assert len(processes) == 1

    os.kill(guarded.guard_pid, number)

    assert all_gone(processes)
    guarded.stop()
    assert list(tmp_path.iterdir()) == []


FORKING_DRIVER = """
import os, sys, time
from pathlib import Path
from funcpipe.emulator.guarded import Guarded
sleep = ["/bin/sleep", "600"]
guarded = Guarded(purpose="test", parent=Path(sys.argv[1]), environment={}, server=sleep)
holder = os.fork()
if holder == 0:
    time.sleep(600)
print(holder, flush=True)
time.sleep(600)
"""


def test_a_forked_child_that_holds_the_pipe_does_not_keep_it_alive(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[3]
    driver = subprocess.Popen(
        [sys.executable, "-c", FORKING_DRIVER, str(tmp_path)],
        env={**PATH, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    holder = int(driver.stdout.readline())
    children = [one for one in psutil.Process(driver.pid).children(True) if one.pid != holder]
    assert len(children) == 2

    driver.kill()

    assert all_gone(children)
    assert psutil.pid_exists(holder)
    assert eventually(lambda: list(tmp_path.iterdir()) == [])
    os.kill(holder, signal.SIGKILL)
    driver.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_signals_of_a_terminal_do_not_end_it(tmp_path: Path, number: int) -> None:
    guarded = make(tmp_path, server=["/bin/sleep", "600"])

    os.kill(guarded.guard_pid, number)
    guarded.tell("upkeep")

    assert guarded.event(timeout_s=10) == {"event": "upkeep", "code": None}
    assert os.getsid(guarded.guard_pid) != os.getsid(0)
    guarded.stop()


def test_a_server_that_ends_is_told_with_its_code(tmp_path: Path) -> None:
    guarded = make(tmp_path, server=shell("echo the reason; exit 5"))

    assert guarded.event(timeout_s=10) == {"event": "ended", "code": 5}
    assert guarded.log_tail() == "the reason"
    assert guarded.alive()
    guarded.stop()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (shell("echo what went wrong; exit 4"), r"(?s)sh failed with code 4.*what went wrong"),
        (["/no/such/program"], r"(?s)program failed with code 127.*No such file"),
    ],
)
def test_a_setup_that_fails_is_an_error_and_leaves_nothing(
    tmp_path: Path, command: list[str], message: str
) -> None:
    with pytest.raises(ServerError, match=message):
        make(tmp_path, setup=[shell("touch one"), command, shell("touch two")])

    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(ServerError, match=r"File exists|Not a directory"):
        make(tmp_path / "file")

    assert (tmp_path / "file").read_text() == "in the way"


def test_watched_groups_end_with_the_guard_and_forgotten_ones_do_not(tmp_path: Path) -> None:
    guarded = make(tmp_path)
    watched, forgotten = (
        psutil.Popen(["/bin/sleep", "600"], start_new_session=True) for _ in range(2)
    )
    for one in (watched, forgotten):
        guarded.tell(f"watch {one.pid}")
    guarded.tell(f"forget {forgotten.pid}")

    guarded.stop()

    assert watched.wait(timeout=10) == -signal.SIGKILL
    assert forgotten.poll() is None
    forgotten.kill()
    assert forgotten.wait(timeout=10) == -signal.SIGKILL


def test_upkeep_runs_when_asked_and_when_enough_has_grown(tmp_path: Path) -> None:
    upkeep = Upkeep(
        argv=shell("read word; echo $word >> seen"),
        stdin="script",
        suffix=".dat",
        grown_bytes=1000,
        every_s=0.0,
    )
    guarded = make(
        tmp_path,
        server=["/bin/sleep", "600"],
        files={"script": "work\n", "one.dat": "x" * 999, "one.txt": "x" * 5000},
        upkeep=upkeep,
    )
    # Given: not enough to start by itself
    assert guarded.event(timeout_s=0.6) is None
    # When asked, then
    guarded.tell("upkeep")
    assert guarded.event(timeout_s=10) == {"event": "upkeep", "code": 0}
    # When it has grown by enough since then, then
    (guarded.folder / "two.dat").write_text("x" * 1000)
    assert guarded.event(timeout_s=10) == {"event": "upkeep", "code": 0}
    assert guarded.event(timeout_s=0.6) is None
    assert (guarded.folder / "seen").read_text() == "work\nwork\n"
    guarded.stop()


def test_the_servers_log_is_cut_when_it_grows(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    guarded = make(
        folder,
        server=shell("head -c 5000000 /dev/zero; touch done; sleep 600"),
        upkeep=Upkeep(argv=["/bin/true"], stdin="log", suffix=".x", grown_bytes=1, every_s=0.0),
    )

    assert eventually((guarded.folder / "done").exists)
    assert eventually(lambda: (guarded.folder / guard.LOG).stat().st_size == 0)
    guarded.stop()


def let_go(guarded: Guarded) -> None:
    """What the kernel does when the driver ends."""
    assert guarded._folder is not None
    os.close(guarded._folder)
    guarded._folder = None


def test_sweeping_takes_only_marked_folders_without_a_living_guard(tmp_path: Path) -> None:
    # Given: a folder whose guard lives, one whose guard was killed, and others' folders.
    living = make(tmp_path)
    killed = make(tmp_path, sockets=[str(tmp_path / "not-ours.sock")])
    (tmp_path / "not-ours.sock").touch()
    os.kill(killed.guard_pid, signal.SIGKILL)
    assert eventually(lambda: not killed.alive())
    # Its driver, which is this process, goes on without it.
    assert guard.sweep(str(tmp_path), "funcpipe-test-") == []
    let_go(killed)
    unmarked, named = tmp_path / "funcpipe-test-unmarked", tmp_path / "something-else"
    for folder in (unmarked, named):
        folder.mkdir()
        (folder / "data").write_text("precious")
    (named / guard.MARKER).write_text("{}")

    swept = guard.sweep(str(tmp_path), "funcpipe-test-")

    assert swept == [str(killed.folder)]
    assert not killed.folder.exists()
    assert living.folder.exists()
    assert (unmarked / "data").exists()
    assert (named / "data").exists()
    assert (tmp_path / "not-ours.sock").exists()
    living.stop()
    killed.stop()


def test_a_folder_is_locked_while_its_guard_lives(tmp_path: Path) -> None:
    guarded = make(tmp_path)
    marker = os.open(guarded.folder / guard.MARKER, os.O_RDWR)

    with pytest.raises(BlockingIOError):
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)

    os.close(marker)
    guarded.stop()


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A real control group with one below it, a process in each."""
    for home in (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")):
        group = home / f"funcpipe-test-{os.getpid()}"
        try:
            (group / "below").mkdir(parents=True)
        except OSError:
            continue
        if (group / "cgroup.procs").exists():
            break
    else:
        pytest.skip("control groups cannot be made here")
    yield group
    guard.remove_cgroup(str(group))


def populate(*groups: Path) -> list[subprocess.Popen[bytes]]:
    members = []
    for group in groups:
        members.append(subprocess.Popen(["/bin/sleep", "600"], start_new_session=True))
        try:
            (group / "cgroup.procs").write_text(str(members[-1].pid))
        except OSError as error:
            members[-1].kill()
            pytest.skip(f"processes cannot be moved here: {error}")
    return members


@pytest.mark.parametrize("number", [None, signal.SIGTERM, signal.SIGKILL])
def test_control_groups_end_with_the_guard_whatever_is_in_them(
    tmp_path: Path, cgroup: Path, number: int | None
) -> None:
    # Given
    guarded = make(tmp_path)
    members = populate(cgroup / "below")
    guarded.tell(f"cgroup {cgroup}")
    guarded.tell("upkeep")
    assert guarded.event(timeout_s=10) == {"event": "upkeep", "code": None}

    # When: it is told to stop, or is itself ended.
    if number is not None:
        os.kill(guarded.guard_pid, number)
    guarded.stop()

    # Then
    assert [one.wait(timeout=10) for one in members] == [-signal.SIGKILL]
    assert not cgroup.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_removes_the_control_groups_of_a_killed_guard(tmp_path: Path, cgroup: Path) -> None:
    # Given: two groups noted, one of them forgotten again; then driver and guard are killed.
    other = cgroup.with_name(cgroup.name + "-other")
    other.mkdir()
    guarded = make(tmp_path)
    members = populate(cgroup / "below")
    for line in (f"cgroup {cgroup}", f"cgroup {other}", f"uncgroup {other}", "upkeep"):
        guarded.tell(line)
    assert guarded.event(timeout_s=10) == {"event": "upkeep", "code": None}
    os.kill(guarded.guard_pid, signal.SIGKILL)
    assert eventually(lambda: not guarded.alive())
    let_go(guarded)
    assert cgroup.exists()

    # When
    swept = guard.sweep(str(tmp_path), "funcpipe-test-")

    # Then
    assert swept == [str(guarded.folder)]
    assert [one.wait(timeout=10) for one in members] == [-signal.SIGKILL]
    assert not cgroup.exists()
    assert other.exists()
    other.rmdir()
    guarded.stop()


def test_only_control_groups_are_removed_as_such(tmp_path: Path) -> None:
    sleeper = subprocess.Popen(["/bin/sleep", "600"])
    (tmp_path / "cgroup.procs").write_text(f"{sleeper.pid}\n")
    empty = tmp_path / "empty"
    empty.mkdir()

    for path in (tmp_path, empty, Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/cpu")):
        guard.remove_cgroup(str(path))

    assert sleeper.poll() is None
    assert empty.exists()
    sleeper.kill()
    sleeper.wait()


MOUNTING = """
import sys
from pathlib import Path
from funcpipe.emulator import guard, linux
folder = Path(sys.argv[1])
linux.unshare(linux.NEW_MOUNTS)
linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
linux.mount(sys.argv[2], str(folder / "mounted"), flags=linux.MS_BIND)
guard.remove(str(folder), [])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_folder_in_which_something_is_mounted_is_left_alone(tmp_path: Path) -> None:
    # Given: a marked folder; in another view of the file system a precious one is mounted in it.
    folder, precious = tmp_path / "folder", tmp_path / "precious"
    os.close(guard.claim(str(folder), []))
    (folder / "mounted").mkdir()
    precious.mkdir()
    (precious / "file").write_text("text")

    # When
    root = Path(__file__).resolve().parents[3]
    script = [sys.executable, "-c", MOUNTING, str(folder), str(precious)]
    done = subprocess.run(script, env={**PATH, "PYTHONPATH": str(root)}, check=False)

    # Then
    assert done.returncode == 0
    assert (precious / "file").read_text() == "text"
    guard.remove(str(folder), [])
    assert not folder.exists()


def test_notes_in_the_marker_can_always_be_read(tmp_path: Path) -> None:
    lock = guard.claim(str(tmp_path / "folder"), [])

    for cgroups in (["/a" * 50, "/b"], ["/b"], []):
        guard.remember(lock, ["/s"], cgroups)
        noted = json.loads((tmp_path / "folder" / guard.MARKER).read_text())
        assert noted == {"sockets": ["/s"], "cgroups": cgroups}
    os.close(lock)
