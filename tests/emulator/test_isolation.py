"""The walls of a forked function: what it can reach, write and fill."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from funcpipe.emulator.forks import Isolation, Template
from funcpipe.emulator.tmp_image import make_tmp_image
from funcpipe.errors import PlatformError

from .forking import ROOT, Forked, make_template
from .helpers import eventually, processes_with

IS_ROOT = os.geteuid() == 0
TMP_MB = 24

LOOP = Isolation(pid_ns=True, mount_ns=True, tmp="loop", read_only=True, shared_memory_mb=0)
TMPFS = Isolation(
    pid_ns=True, mount_ns=True, user_ns=True, tmp="tmpfs", read_only=True, shared_memory_mb=0
)


def can(isolation: Isolation) -> bool:
    """Whether this machine lets us raise these walls at all."""
    names = {"--mount": isolation.mount_ns, "--pid": isolation.pid_ns, "--user": isolation.user_ns}
    flags = [name for name, wanted in names.items() if wanted]
    command = ["unshare", "--fork", *flags, "true"]
    if shutil.which("unshare") is None or (isolation.tmp == "loop" and not IS_ROOT):
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module", params=[LOOP, TMPFS], ids=["loop", "tmpfs"])
def walls(request: pytest.FixtureRequest) -> Isolation:
    isolation: Isolation = request.param
    if not can(isolation):
        pytest.skip(f"this machine does not allow {isolation}")
    return isolation


@pytest.fixture(scope="module")
def template(walls: Isolation) -> Iterator[Template]:
    made = make_template(walls)
    yield made
    made.close()


def start(template: Template, folder: Path, tasks: list[dict[str, Any]], **request: Any) -> Forked:
    folder.mkdir(parents=True, exist_ok=True)
    image = folder.with_suffix(".img")
    if shutil.which("mkfs.ext4", path=f"{os.environ['PATH']}:/usr/sbin:/sbin"):
        make_tmp_image(image, size_mb=TMP_MB)
    asked = {"tmp_image": str(image), "tmp_mb": TMP_MB} | request
    return Forked(template, folder, tasks, **asked)


def test_it_sees_only_its_own_processes(template: Template, tmp_path: Path) -> None:
    seen = start(template, tmp_path / "one", [{"do": "show"}]).end(0)[0]

    assert (seen["pid"], sorted(seen["processes"])) == (2, [1, 2])
    assert (seen["user"], seen["folder"], seen["listing"]) == (
        os.getuid(),
        str(tmp_path / "one"),
        [],
    )


def test_its_folder_is_full_when_its_size_is_reached(template: Template, tmp_path: Path) -> None:
    folder = tmp_path / "one"
    paths = [str(folder / "big"), "/tmp/big"]  # noqa: S108
    tasks = [{"do": "fill", "path": path, "most_mb": 2 * TMP_MB} for path in paths]

    results = start(template, folder, tasks).end(0)

    assert [one["error"] for one in results] == ["ENOSPC", "ENOSPC"]
    assert all(TMP_MB - 1 <= one["mb"] <= TMP_MB + 1 for one in results)
    # Outside nothing was written, but for the image, which gave back what was deleted.
    assert sorted(path.name for path in folder.iterdir()) in ([], ["home", "tmp"])
    image = folder.with_suffix(".img")
    assert not image.exists() or image.stat().st_blocks * 512 < (TMP_MB << 20) // 2


def test_it_writes_only_to_its_own_folders_and_to_what_it_was_given(
    template: Template, tmp_path: Path
) -> None:
    # Given
    folder, store, other = tmp_path / "one", tmp_path / "store", tmp_path / "other"
    outside = Path.home() / f".funcpipe-test-{os.getpid()}"
    for path in (store, other):
        path.mkdir()
    paths = {
        str(folder / "mine"): "ok",
        "/tmp/mine": "ok",  # noqa: S108
        "/dev/null": "ok",
        str(store / "object"): "ok",
        str(other / "object"): "EROFS",
        str(outside): "EROFS",
        str(ROOT / "funcpipe" / "mine"): "EROFS",
        "/dev/shm/mine": "EROFS",  # noqa: S108
        "/proc/sys/kernel/hostname": "EROFS",
    }
    if not IS_ROOT:
        del paths[str(outside)], paths["/proc/sys/kernel/hostname"]
    tasks = [{"do": "write", "paths": list(paths)}]

    # When
    visible, writable = (str(other),), (str(store),)
    found = start(template, folder, tasks, visible=visible, writable=writable).end(0)[0]

    # Then
    assert found == paths
    assert (store / "object").read_bytes() == b"text"
    assert list(other.iterdir()) == []
    assert not outside.exists()
    assert not Path("/tmp/mine").exists()  # noqa: S108


def test_what_lies_below_tmp_is_hidden_but_for_what_it_was_given(
    template: Template, tmp_path: Path
) -> None:
    # Given: everything of this test lies below /tmp.
    assert str(tmp_path).startswith("/tmp/")  # noqa: S108
    shared, hidden, single = tmp_path / "shared", tmp_path / "hidden", tmp_path / "single"
    for path in (shared / "deep", hidden):
        path.mkdir(parents=True)
    (shared / "deep" / "text").write_text("hello")
    single.write_text("alone")
    link = tmp_path / "link"
    link.symlink_to(shared)
    read = {
        str(shared / "deep/text"): "hello",
        str(single): "alone",
        str(link / "deep/text"): "hello",
    }

    # When
    tasks = [{"do": "look", "paths": [str(tmp_path)]}, {"do": "read", "paths": list(read)}]
    visible = (str(shared), str(single), str(link))
    seen = start(template, tmp_path / "one", tasks, visible=visible).end(0)

    # Then
    assert seen == [{str(tmp_path): ["link", "one", "shared", "single"]}, read]


def test_functions_do_not_see_each_others_files_and_keep_their_own(
    template: Template, tmp_path: Path
) -> None:
    write = {"do": "write", "paths": ["/tmp/note", "note"]}  # noqa: S108
    look = {"do": "look", "paths": ["/tmp", "."]}  # noqa: S108
    first = start(template, tmp_path / "one", [write, look | {"then": "sleep"}])
    first.wait_for_output()

    second = start(template, tmp_path / "two", [look])

    seen = second.end(0)[0]
    assert ("note" in seen["/tmp"], seen["."]) == (False, [])  # noqa: S108
    template.signal(first.pid, 15)
    mine = first.end(-15)[1]
    assert ("note" in mine["/tmp"], mine["."]) == (True, ["note"])  # noqa: S108


def test_it_computes_with_two_threads_and_talks_over_loopback(
    template: Template, tmp_path: Path
) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        tasks = [{"do": "compute"}, {"do": "connect", "port": server.getsockname()[1]}]
        function = start(template, tmp_path / "one", tasks)
        server.settimeout(60)
        link, _ = server.accept()
        with link:
            link.sendall(b"welcome")
        computed, said = function.end(0)

    assert (computed["set"], computed["sum"], said) == (2, 600.0**3, {"said": "welcome"})


def test_shared_memory_has_the_size_that_the_platform_gives(
    walls: Isolation, tmp_path: Path
) -> None:
    import dataclasses

    made = make_template(dataclasses.replace(walls, shared_memory_mb=8))
    tasks = [{"do": "fill", "path": "/dev/shm/big", "most_mb": 16}]  # noqa: S108

    found = start(made, tmp_path / "one", tasks).end(0)[0]

    assert found == {"error": "ENOSPC", "mb": 8}
    made.close()


@pytest.mark.parametrize("wrong", [{"visible": ("/no/such/path",)}, {"tmp_mb": None}])
def test_a_wall_that_cannot_be_raised_is_told_and_nothing_runs(
    template: Template, walls: Isolation, tmp_path: Path, wrong: dict[str, Any]
) -> None:
    if "tmp_mb" in wrong and walls.tmp == "loop":
        wrong = {"tmp_image": str(tmp_path / "missing.img")}

    function = start(template, tmp_path / "one", [{"do": "show"}], **wrong)

    assert function.end(70) == []
    told = json.loads(function.said_status)["failed"]
    assert any(word in told for word in ("/no/such/path", "missing.img", "tmp_mb"))


def test_no_mount_no_loop_device_and_no_process_is_left(template: Template, tmp_path: Path) -> None:
    function = start(template, tmp_path / "one", [{"do": "family", "then": "sleep"}])
    function.wait_for_output()

    os.kill(function.pid, 9)

    function.end(-9)
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert eventually(lambda: processes_with(str(tmp_path)) == [])
    backing = Path("/sys/block").glob("loop*/loop/backing_file")
    assert eventually(lambda: not [one for one in backing if str(tmp_path) in one.read_text()])
    shutil.rmtree(tmp_path / "one")


def test_an_image_of_no_size_or_in_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlatformError, match="at least, not 0"):
        make_tmp_image(tmp_path / "image", size_mb=0)


@pytest.mark.skipif(not IS_ROOT, reason="only root can become somebody else")
@pytest.mark.timeout(300)
def test_the_same_holds_for_an_ordinary_user() -> None:
    # Given: a folder of theirs.
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, 1000, 1000)
        files = [str(Path(__file__)), str(Path(__file__).with_name("test_template.py"))]
        become = [sys.executable, str(Path(__file__).with_name("as_user.py")), "1000"]
        python = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0"]
        environment = {**os.environ, "HOME": folder, "PYTHONDONTWRITEBYTECODE": "1"}

        # When: the tests of this file, and of forking, once more.
        done = subprocess.run(
            [*become, *python, "--basetemp", f"{folder}/base", *files],
            cwd=ROOT,
            env=environment | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )

    # Then
    assert done.returncode == 0, done.stdout[-4000:]
    if can(TMPFS):
        assert "user_ns=True" not in done.stdout  # none was skipped
