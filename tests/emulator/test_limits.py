"""An emulated platform's limits, held against functions that break them, or nearly so."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from funcpipe.driver.host import Execution, Exit
from funcpipe.emulator import capability, limits
from funcpipe.emulator.capability import Findings
from funcpipe.emulator.cgroups import Cgroups, open_cgroups
from funcpipe.emulator.forks import Isolation
from funcpipe.emulator.host import LocalHost
from funcpipe.errors import PayloadTooLarge, PlanError, Throttled
from funcpipe.partitioner.platform import load_platform

from .helpers import eventually, left_of, processes_with

pytestmark = pytest.mark.timeout(180)

TIER_MB = 512
TMP, SHARED = "/tmp", "/dev/shm"  # noqa: S108
QUICK = {"time.cold_start_s": "0", "time.warm_start_s": "0"}


def make_host(
    folder: Path, changes: dict[str, str] | None = None, platform: str = "aws-lambda", **more: Any
) -> LocalHost:
    return LocalHost(
        platform=load_platform(platform, changes=QUICK | (changes or {})),
        log_folder=folder / "logs",
        work_folder=folder / "work",
        environment={"PYTHONPATH": str(Path(__file__).parent)},
        entry="fake_function",
        **more,
    )


def start(host: LocalHost, name: str = "f", memory_mb: int = TIER_MB, **task: Any) -> str:
    return host.start(json.dumps(task).encode(), name=name, memory_mb=memory_mb)


def ends(host: LocalHost, count: int = 1, within_s: float = 30.0) -> dict[str, Exit]:
    """The next exits, by name."""
    found: list[Exit] = []
    assert eventually(lambda: found.extend(host.exits()) or len(found) >= count, within_s=within_s)
    assert len(found) == count
    return {one.name: one for one in found}


def run(host: LocalHost, memory_mb: int, *tasks: dict[str, Any]) -> dict[str, Any]:
    """What a function said that did these tasks and ended well."""
    start(host, memory_mb=memory_mb, do="several", tasks=tasks)
    ended = ends(host)["f"]
    assert ended.reason == "done", (ended, ended.log_tail)
    said: dict[str, Any] = json.loads(ended.log_tail.splitlines()[-1])
    return said


def without_cgroups(patch: pytest.MonkeyPatch) -> None:
    def none(_: str, **__: object) -> Cgroups:
        return Cgroups({}, dict.fromkeys(("cpu", "memory"), "this test wants none"))

    patch.setattr(limits, "open_cgroups", none)
    patch.setattr(capability, "open_cgroups", none)


# -- memory ----------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["cgroups", "watch"])
def test_memory_over_the_tier_is_out_of_memory_and_under_it_is_not(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    if by == "watch":
        without_cgroups(monkeypatch)
    with make_host(tmp_path, {"cpu.vcpu": "1"}) as host:
        if by == "cgroups" and not host.limits.memory:
            pytest.skip(f"no control groups here: {host.limits.missing}")
        assert host.limits.memory == (by == "cgroups")
        said = [text for text in host.limits.missing if text.startswith("vcpu")]
        assert bool(said) == (by == "watch")
        # when functions take 5 % less or more than they have, themselves or by a child
        over, under = TIER_MB * 105 // 100, TIER_MB * 95 // 100
        for name, to_mb, in_child in (
            ("over", over, False),
            ("under", under, False),
            ("child over", over, True),
            ("child under", under, True),
        ):
            start(host, name=name, do="allocate", to_mb=to_mb, in_child=in_child)
        ended = ends(host, 4)
    # then
    reasons = {name: one.reason for name, one in ended.items()}
    assert reasons == {
        "over": "out-of-memory",
        "under": "done",
        "child over": "out-of-memory",
        "child under": "done",
    }, {name: (one.detail, one.log_tail) for name, one in ended.items()}
    for name in ("over", "child over"):
        assert re.match(r"it (held 5\d\d MB of|needed more than its) 512 MB", ended[name].detail)
        assert "aws-lambda" in ended[name].detail
    assert ended["under"].detail == ""


def test_a_machine_that_enforces_little_says_so_and_still_ends_what_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given neither control groups nor namespaces
    monkeypatch.setattr(limits, "find", lambda *_, **__: Findings(root=False))
    with make_host(tmp_path) as host:
        assert host.limits.isolation == Isolation()
        said = {text.split(":")[0] for text in host.limits.missing}
        assert said >= {"memory", "vcpu", "tmp size", "read-only code", "shared memory"}
        # when one takes too much, and another leaves a child behind
        mark = tmp_path / "mark"
        start(host, name="over", do="allocate", to_mb=TIER_MB * 105 // 100)
        start(host, name="child", do="spawn", mark=str(mark), seconds=0)
        ended = ends(host, 2)
        assert psutil.pid_exists(int(mark.read_text()))
    # then
    assert {name: one.reason for name, one in ended.items()} == {
        "over": "out-of-memory",
        "child": "done",
    }
    assert eventually(lambda: not psutil.pid_exists(int(mark.read_text())))
    assert_nothing_left(host, tmp_path)


# -- time, CPU and concurrency ---------------------------------------------------------------


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHost]:
    """Four times slower than real time; two functions at once, for a second each."""
    folder = tmp_path_factory.mktemp("slow")
    changes = {"time.limit_s": "1", "invocation.concurrency": "2"}
    with make_host(folder, changes, dilation=4.0) as host:
        yield host
    assert_nothing_left(host, folder)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHost]:
    """Tests that share it use functions of different sizes, which share no environment."""
    folder = tmp_path_factory.mktemp("host")
    changes = {"time.cold_start_s": "0.2", "tmp.least_mb": "16", "tmp.default_mb": "24"}
    with make_host(folder, changes) as host:
        yield host
    assert_nothing_left(host, folder)


def assert_nothing_left(host: LocalHost, folder: Path) -> None:
    assert left_of(host.folder.name) == {}
    assert processes_with(str(folder)) == []
    assert list((folder / "work").iterdir()) == []


def test_time_and_concurrency_are_limited(slow: LocalHost) -> None:
    # given as many functions as may run
    began = time.monotonic()
    for name in ("one", "two"):
        start(slow, name=name, do="loop")
    # when one more is started
    with pytest.raises(Throttled, match=r"runs 2 functions at once .* three was answered with 429"):
        start(slow, name="three", do="exit", code=0)
    assert slow.alive() == 2
    ended = ends(slow, 2)
    # then they end after one platform second, which is four here, and it can be started
    assert time.monotonic() - began >= 4.0
    assert {one.reason for one in ended.values()} == {"time-limit"}
    assert {one.detail.endswith("ends a function after 1 s") for one in ended.values()} == {True}
    start(slow, name="three", do="exit", code=0)
    assert ends(slow)["three"].reason == "done"
    # and what the platform ended is billed up to its limit
    used = {one.use.name: one.use.run_ms for one in slow.executions()}
    assert used["one"] == used["two"] == 1000
    assert used["three"] < 1000
    assert [use.name for use in slow.uses()].count("three") == 1


def shares(host: LocalHost) -> list[float]:
    """CPUs of this machine that the environments may use, from the kernel's own files."""
    found = []
    with host._lock:
        folders = [one.cell.folders for one in host._environments.values() if one.cell is not None]
    for folder in (Path(one) for several in folders for one in several):
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        elif (folder / "cpu.cfs_quota_us").exists():
            files = [folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us"]
            quota, period = (file.read_text().strip() for file in files)
        else:
            continue
        assert int(period) >= 5000
        found.append(float(quota) / int(period))
    return found


@pytest.mark.parametrize(("name", "dilation"), [("host", 1), ("slow", 4)])
def test_a_function_gets_the_cpu_time_of_its_tier(
    name: str, dilation: int, request: pytest.FixtureRequest
) -> None:
    host: LocalHost = request.getfixturevalue(name)
    if not any(text.startswith("vcpu") for text in host.limits.enforced):
        pytest.skip(f"no control groups here: {host.limits.missing}")
    before = len(shares(host))
    ids = [start(host, memory_mb=1769, do="sleep"), start(host, memory_mb=885, do="sleep")]
    assert eventually(lambda: len([one for one in shares(host) if one > 0]) == before + 2)

    quotas = shares(host)[before:]

    # 1769 MB are one vCPU, and half of it is half as much.
    assert sorted(quotas) == pytest.approx([0.5 / dilation, 1 / dilation], rel=0.01)
    host.stop(ids, grace_s=0)
    host.exits()


def test_an_environment_that_waits_for_work_has_none_of_the_cpu(host: LocalHost) -> None:
    run(host, 700)
    (idle,) = [one for one in host._environments.values() if one.sizes.memory_bytes == 700 << 20]

    states = Path(f"/proc/{idle.pid}/stat").read_text().rpartition(")")[2].split()[0]

    assert states == "T"


# -- files and shared memory -----------------------------------------------------------------


def test_tmp_is_bounded_and_stays_for_a_warm_start(host: LocalHost) -> None:
    if host.limits.isolation.tmp is None:
        pytest.skip(f"its space is not bounded here: {host.limits.missing}")
    host.executions()
    fill = {"do": "fill", "path": f"{TMP}/big", "most_mb": 100}
    kept = f"{TMP}/kept-{os.getpid()}"
    # given a function that fills its /tmp, after it has put something there
    first = run(host, 640, {"do": "write", "paths": [kept]}, fill)
    # when the next of the same size comes
    second = run(host, 640, {"do": "look", "paths": [kept]}, fill)
    # and one of another size
    other = run(host, 641, {"do": "look", "paths": [kept]})
    # then it had the platform's space, which the other's files take nothing from
    assert first["write"] == {kept: "ok"}
    for said in (first, second):
        error, num_mb = said["fill"]
        assert error == "ENOSPC"
        assert 22 <= num_mb <= 26
    # and it was the same environment, with no start to be billed
    assert second["look"] == {kept: True}
    assert other["look"] == {kept: False}
    assert first["surroundings"]["init_s"] == other["surroundings"]["init_s"] == 0.2
    assert second["surroundings"]["init_s"] == 0.0
    executions = host.executions()
    assert [one.cold for one in executions] == [True, False, True]
    assert [one.use.init_ms for one in executions] == [200, 0, 200]
    assert executions[0].environment == executions[1].environment != executions[2].environment
    assert not Path(kept).exists()


def test_there_is_nothing_to_write_to_outside_of_tmp(host: LocalHost) -> None:
    if not host.limits.isolation.read_only:
        pytest.skip(f"files are not read-only here: {host.limits.missing}")
    name = f"funcpipe-test-{os.getpid()}"
    outside = [f"{folder}/{name}" for folder in ("", "/etc", "/usr", "/var", "/root", "/dev")]

    said = run(
        host, 650, {"do": "write", "paths": [*outside, name, f"{TMP}/{name}"]}, {"do": "write_code"}
    )

    inside = {path: said["write"].pop(path) for path in (name, f"{TMP}/{name}")}
    assert set(inside.values()) == {"ok"}
    assert set(said["write"].values()) | set(said["write_code"].values()) <= {"EROFS", "EACCES"}
    assert len(said["write_code"]) == 3
    assert not [path for path in [*outside, f"{TMP}/{name}"] if Path(path).exists()]


def test_a_function_cannot_undo_its_walls(host: LocalHost) -> None:
    if not host.limits.isolation.read_only:
        pytest.skip(f"files are not read-only here: {host.limits.missing}")

    assert run(host, 670, {"do": "remount"})["remount"] == "EPERM"


def test_there_is_no_shared_memory(host: LocalHost) -> None:
    if host.limits.isolation.shared_memory_mb is None:
        pytest.skip(f"shared memory is everybody's here: {host.limits.missing}")
    path = f"{SHARED}/funcpipe-test-{os.getpid()}"
    assert run(host, 660, {"do": "write", "paths": [path]})["write"] == {path: "EROFS"}


# -- invocations -----------------------------------------------------------------------------


def test_a_function_is_told_its_link_and_the_speed_of_time(slow: LocalHost) -> None:
    said = run(slow, 3538)["surroundings"]
    assert said["dilation"] == 4
    assert said["threads"] == 2
    assert said["link"] == {
        "up_bytes_per_s": 70e6,
        "down_bytes_per_s": 70e6,
        "latency_s": 0.03,
        "burst_bytes": 0,
        "burst_bytes_per_s": None,
    }


def test_what_the_platform_does_not_take_is_refused(host: LocalHost) -> None:
    with pytest.raises(PayloadTooLarge, match=r"AWS Lambda.* takes at most 1,048,576"):
        host.start(b" " * ((1 << 20) + 1), name="f", memory_mb=512)
    with pytest.raises(PlanError, match="function f: 100 MB is no memory size of aws-lambda"):
        host.start(b"{}", name="f", memory_mb=100)
    start(host, memory_mb=670, do="exit", code=0, text="x" * 900_000)
    assert ends(host)["f"].reason == "done"


def test_an_invocation_may_be_delivered_twice(tmp_path: Path) -> None:
    with make_host(tmp_path, {"invocation.duplicate_rate": "1"}, seed=5) as host:
        names = {start(host, name=name, do="exit", code=0): name for name in ("a", "b", "c")}
        # each is told once
        assert set(ends(host, 3)) == {"a", "b", "c"}
        # and was done twice, and is billed so
        executions: list[Execution] = host.executions()
        found = sorted((names[one.invocation], one.number) for one in executions)
        assert found == [(name, number) for name in "abc" for number in (1, 2)]
        assert {one.reason for one in executions} == {"done"}
        assert len(host.uses()) == 6
        time.sleep(0.2)
        assert host.exits() == []
    assert_nothing_left(host, tmp_path)


# -- what is left ----------------------------------------------------------------------------


def test_every_group_is_announced_before_it_is_made() -> None:
    there: list[bool] = []
    told: list[str] = []

    def announce(folder: str) -> None:
        told.append(folder)
        there.append(os.path.exists(folder))

    cgroups = open_cgroups(f"funcpipe-test-{os.getpid()}", announce=announce)

    assert set(cgroups.folders) <= set(told)
    assert not any(there)
    cgroups.close()


def test_closing_leaves_nothing(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    run(host, 512, {"do": "write", "paths": [f"{TMP}/x"]})  # stays warm
    start(host, name="loop", memory_mb=600, do="loop")
    start(host, name="deaf", memory_mb=601, do="sleep", deaf=True)
    start(host, name="just started", memory_mb=602, do="exit", code=0)
    there = left_of(host.folder.name)
    if host.limits.cgroups is not None and host.limits.cgroups.folders:
        assert len(there["cgroups"]) >= 5
    if host.limits.isolation.tmp == "loop":
        assert len(there["loop devices"]) >= 3

    host.close()

    assert_nothing_left(host, tmp_path)
    assert {"loop", "deaf"} <= {one.name for one in host.exits() if one.reason == "stopped"}


ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("guard_too", [False, True], ids=["driver", "guard and driver"])
def test_a_killed_driver_leaves_nothing(guard_too: bool, tmp_path: Path) -> None:
    # given a driver with three limited functions
    script = Path(__file__).with_name("driver_script.py")
    driver = subprocess.Popen(
        [sys.executable, str(script), "none", str(tmp_path), "wait", "aws-lambda"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    driver.stdout.readline()
    (folder,) = (tmp_path / "work").iterdir()
    there = left_of(folder.name)
    # when
    if guard_too:
        for process in psutil.Process(driver.pid).children():
            if any(word.endswith("guard.py") for word in process.cmdline()):
                process.kill()
    driver.kill()
    driver.communicate()
    # then
    assert eventually(lambda: processes_with(str(tmp_path)) == [])
    if guard_too:  # the next host finds what nobody was there to remove
        assert folder.exists()
        assert left_of(folder.name).get("cgroups") == there.get("cgroups")
        make_host(tmp_path).close()
    assert eventually(lambda: left_of(folder.name) == {}), left_of(folder.name)
    assert eventually(lambda: list((tmp_path / "work").iterdir()) == [])
