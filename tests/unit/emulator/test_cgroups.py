"""Control groups of both versions, over folders that behave like the kernel's."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from funcpipe.emulator.cgroup_files import cfs_quota
from funcpipe.emulator.cgroup_mounts import Hierarchy, find_hierarchies
from funcpipe.emulator.cgroups import DRIVER_LEAF, Cgroups, open_cgroups
from funcpipe.errors import PlatformError

from .fake_cgroups import FakeKernel, mount_line

MB = 1 << 20


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeKernel:
    return FakeKernel(tmp_path / "sys", monkeypatch)


def contents(folder: str | Path, *names: str) -> list[str]:
    return [(Path(folder) / name).read_text() for name in names]


def v1_machine(kernel: FakeKernel) -> Cgroups:
    """Three hierarchies; ours is a group below the root in the one for memory."""
    mounts = own = ""
    for number, controller in enumerate(("cpu", "cpuacct", "memory")):
        folder = kernel.hierarchy(controller, 1, controller)
        place = "/below/mine" if controller == "memory" else "/"
        (folder / place[1:]).mkdir(parents=True, exist_ok=True)
        mounts += mount_line(folder, controller)
        own += f"{number + 1}:{controller}:{place}\n"
    return open_cgroups("run", mounts=mounts, own=own + "0::/\n")


def v2_machine(
    kernel: FakeKernel, *others: int, controllers: tuple[str, ...] = ("cpu", "memory")
) -> tuple[Path, Cgroups]:
    """One hierarchy; our group is a scope with `others` in it."""
    folder = kernel.hierarchy("unified", 2, *controllers)
    (folder / "cgroup.subtree_control").write_text(" ".join(controllers))
    scope = folder / "mine.scope"
    scope.mkdir()
    (scope / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in (os.getpid(), *others)))
    cgroups = open_cgroups("run", mounts=mount_line(folder, "cgroup2"), own="0::/mine.scope\n")
    return scope, cgroups


# -- where things are ------------------------------------------------------------------------


def test_the_own_group_is_found_in_every_hierarchy() -> None:
    mounts = (
        mount_line(Path("/sys/fs/cgroup/cpu,cpuacct"), "cpu,cpuacct")
        + mount_line(Path("/sys/fs/cgroup/memory"), "memory", options="ro")
        + mount_line(Path("/sys/fs/cgroup/systemd"), "name=systemd")
        + mount_line(Path("/sys/fs/my cgroup"), "cgroup2")
        + "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\nnonsense\n"
    )
    own = "4:memory:/a/b\n2:cpu,cpuacct:/\n1:name=systemd:/\n0::/user.slice/x.scope\n"

    found = find_hierarchies(mounts, own)

    assert found == [
        Hierarchy(
            version=1,
            mount="/sys/fs/cgroup/cpu,cpuacct",
            own="/sys/fs/cgroup/cpu,cpuacct",
            controllers=frozenset({"cpu", "cpuacct"}),
        ),
        Hierarchy(
            version=1,
            mount="/sys/fs/cgroup/memory",
            own="/sys/fs/cgroup/memory/a/b",
            controllers=frozenset({"memory"}),
            read_only=True,
        ),
        Hierarchy(
            version=1,
            mount="/sys/fs/cgroup/systemd",
            own="/sys/fs/cgroup/systemd",
            controllers=frozenset({"name=systemd"}),
        ),
        Hierarchy(version=2, mount="/sys/fs/my cgroup", own="/sys/fs/my cgroup/user.slice/x.scope"),
    ]


@pytest.mark.parametrize(
    ("root", "path", "own"),
    [
        ("/docker/abc", "/docker/abc", "/cg"),
        ("/docker/abc", "/docker/abc/inner", "/cg/inner"),
        ("/docker/abc", "/docker/abcd", None),
        ("/docker/abc", "/", None),
        ("/../..", "/", None),
        ("/", "/../other", None),
    ],
)
def test_a_container_sees_its_own_part_of_a_hierarchy(root: str, path: str, own: str) -> None:
    found = find_hierarchies(mount_line(Path("/cg"), "memory", root=root), f"4:memory:{path}\n")

    assert [one.own for one in found] == [own]


def test_of_two_mounts_of_one_hierarchy_the_usable_one_counts() -> None:
    mounts = mount_line(Path("/a"), "cgroup2", options="ro") + mount_line(Path("/b"), "cgroup2")

    assert [one.mount for one in find_hierarchies(mounts, "0::/\n")] == ["/b"]


# -- numbers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpus", "quota_us", "period_us"),
    [
        (1.0, 10_000, 10_000),
        (2.0, 20_000, 10_000),
        (0.8, 10_000, 12_500),
        (0.5, 10_000, 20_000),
        (0.25, 10_000, 40_000),
        (0.01, 10_000, 1_000_000),
        (0.005, 5_000, 1_000_000),
        (0.002, 2_000, 1_000_000),
        (0.0001, 1_000, 1_000_000),
        (64.0, 640_000, 10_000),
    ],
)
def test_periods_are_short_but_quotas_are_worth_being_started_for(
    cpus: float, quota_us: int, period_us: int
) -> None:
    assert cfs_quota(cpus) == (quota_us, period_us)


@pytest.mark.parametrize("cpus", [0.0, -1.0, float("nan")])
def test_a_share_that_is_none_is_refused(cpus: float) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        cfs_quota(cpus)


# -- version 1 -------------------------------------------------------------------------------


def test_v1_limits_and_readings(kernel: FakeKernel) -> None:
    cgroups = v1_machine(kernel)
    assert (cgroups.cpu, cgroups.memory, cgroups.why_not) == (True, True, {})
    cell = cgroups.cell("stage0")
    cpu, memory, account = cell.folders

    cell.limit_cpu(0.5)
    assert cell.limit_memory(100 * MB)

    assert memory == str(kernel.root / "memory/below/mine/run/stage0")
    assert contents(cpu, "cpu.cfs_quota_us", "cpu.cfs_period_us") == ["10000", "20000"]
    limits = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.swappiness")
    assert contents(memory, *limits) == [str(100 * MB), str(100 * MB), "0"]
    assert cell.procs_files == tuple(f"{one}/cgroup.procs" for one in (cpu, memory, account))
    held = cell.memory()
    assert (held.charged_bytes, held.anon_bytes, held.oom_kills) == (8192, 4096, 2)
    assert (cell.cpu_s(), cell.throttled_s()) == (1.5, 2.5)

    cell.limit_cpu(None)
    cell.limit_memory(None)
    assert contents(cpu, "cpu.cfs_quota_us") == ["-1"]
    assert contents(memory, *limits[:2]) == ["-1", "-1"]


def test_v1_raises_memory_with_swap_first_where_it_must(kernel: FakeKernel) -> None:
    # Given: a kernel that refuses memory alone above memory with swap, as the real one does.
    cell = v1_machine(kernel).cell("one")
    cell.limit_memory(10 * MB)
    plain = kernel.write

    def strict(group: object, name: str, text: str) -> None:
        if name == "memory.limit_in_bytes":
            both = int(contents(cell.folders[1], "memory.memsw.limit_in_bytes")[0])
            if int(text) > both:
                raise OSError(errno.EINVAL, "Invalid argument")
        plain(group, name, text)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("funcpipe.emulator.cgroup_files.Group.write", strict)

        assert cell.limit_memory(20 * MB)

    names = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
    assert contents(cell.folders[1], *names) == [str(20 * MB)] * 2


def test_v1_says_when_memory_in_use_stands_against_a_limit(kernel: FakeKernel) -> None:
    cell = v1_machine(kernel).cell("one")
    kernel.refuse["memory.limit_in_bytes"] = errno.EBUSY

    assert not cell.limit_memory(MB)


def test_v1_more_cpu_than_the_group_above_has_is_what_that_has(kernel: FakeKernel) -> None:
    cell = v1_machine(kernel).cell("one")
    plain = kernel.write

    def bounded(group: object, name: str, text: str) -> None:
        if name == "cpu.cfs_quota_us" and int(text) > 5_000:
            raise OSError(errno.EINVAL, "Invalid argument")
        plain(group, name, text)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("funcpipe.emulator.cgroup_files.Group.write", bounded)

        cell.limit_cpu(4.0)

    assert contents(cell.folders[0], "cpu.cfs_quota_us") == ["-1"]


def test_a_hierarchy_of_cpu_and_accounting_has_one_group(kernel: FakeKernel) -> None:
    folder = kernel.hierarchy("cpu,cpuacct", 1, "cpu", "cpuacct")
    mounts = mount_line(folder, "cpu,cpuacct")

    cgroups = open_cgroups("run", mounts=mounts, own="2:cpu,cpuacct:/\n")

    assert (cgroups.cpu, cgroups.memory) == (True, False)
    assert cgroups.why_not == {
        "memory": "no cgroup hierarchy with the memory controller is mounted"
    }
    cell = cgroups.cell("one")
    assert len(cell.folders) == 1
    assert cell.cpu_s() == 1.5
    assert cell.limit_memory(1)
    assert cell.memory().charged_bytes == 0
    assert (cell.holds_cpu, cell.holds_memory) == (True, False)


# -- version 2 -------------------------------------------------------------------------------


def test_v2_alone_in_its_scope_the_driver_steps_aside(kernel: FakeKernel) -> None:
    scope, cgroups = v2_machine(kernel)

    assert (cgroups.cpu, cgroups.memory, cgroups.why_not) == (True, True, {})
    assert kernel.pids(scope / DRIVER_LEAF) == [str(os.getpid())]
    cell = cgroups.cell("one")
    cell.limit_cpu(0.5)
    cell.limit_memory(100 * MB)
    assert cell.folders == (str(scope / "run/one"),)
    names = ("cpu.max", "memory.max", "memory.swap.max", "memory.oom.group")
    assert contents(cell.folders[0], *names) == ["10000 20000", str(100 * MB), "0", "1"]
    held = cell.memory()
    assert (held.charged_bytes, held.anon_bytes, held.oom_kills) == (8192, 4096, 2)
    assert (cell.cpu_s(), cell.throttled_s()) == (1.5, 2.5)
    cell.limit_cpu(None)
    cell.limit_memory(None)
    assert contents(cell.folders[0], *names[:2]) == ["max 100000", "max"]

    cgroups.close()

    assert [entry.name for entry in scope.iterdir() if entry.is_dir()] == []
    assert kernel.pids(scope) == [str(os.getpid())]
    assert contents(scope, "cgroup.subtree_control") == [""]


def test_v2_other_processes_are_not_moved(kernel: FakeKernel) -> None:
    scope, cgroups = v2_machine(kernel, 1, 2)

    assert (cgroups.cpu, cgroups.memory, cgroups.folders) == (False, False, ())
    assert cgroups.why_not["cpu"].startswith("2 other processes are in this process's group")
    assert kernel.pids(scope) == [str(os.getpid()), "1", "2"]
    assert [entry.name for entry in scope.iterdir() if entry.is_dir()] == []


def test_v2_a_second_driver_uses_what_the_first_made_and_leaves_it(kernel: FakeKernel) -> None:
    # Given: a first driver of the same scope, which has moved out of it.
    scope, first = v2_machine(kernel)
    mounts = mount_line(kernel.root / "unified", "cgroup2")
    own = f"0::/mine.scope/{DRIVER_LEAF}\n"

    # When: a process that it started opens and closes its own.
    second = open_cgroups("other", mounts=mounts, own=own)
    assert second.folders == (str(scope / "other"),)
    second.close()

    # Then: the first one's still work, and close leaves nothing.
    assert contents(scope, "cgroup.subtree_control") == ["cpu memory"]
    first.cell("one").limit_memory(MB)
    first.close()
    assert [entry.name for entry in scope.iterdir() if entry.is_dir()] == []


def test_v2_what_the_first_needs_no_more_stays_while_a_second_is_there(kernel: FakeKernel) -> None:
    scope, first = v2_machine(kernel)
    mounts = mount_line(kernel.root / "unified", "cgroup2")
    second = open_cgroups("other", mounts=mounts, own=f"0::/mine.scope/{DRIVER_LEAF}\n")
    cell = second.cell("one")

    first.close()

    assert contents(scope, "cgroup.subtree_control") == ["cpu memory"]
    assert cell.limit_memory(MB)


def test_v2_a_controller_that_is_not_given_is_named(kernel: FakeKernel) -> None:
    _, cgroups = v2_machine(kernel, controllers=("memory", "pids"))

    assert (cgroups.cpu, cgroups.memory) == (False, True)
    assert cgroups.why_not == {"cpu": "this process's group has not been given the cpu controller"}


def test_each_controller_is_used_where_it_lies(kernel: FakeKernel) -> None:
    # Given: memory in version 1, cpu in version 2.
    v1 = kernel.hierarchy("memory", 1, "memory")
    v2 = kernel.hierarchy("unified", 2, "cpu")
    mounts = mount_line(v1, "memory") + mount_line(v2, "cgroup2")

    cell = open_cgroups("run", mounts=mounts, own="4:memory:/\n0::/\n").cell("one")
    cell.limit_cpu(1.0)
    cell.limit_memory(MB)

    assert cell.folders == (str(v2 / "run/one"), str(v1 / "run/one"))
    assert contents(v2 / "run/one", "cpu.max") == ["10000 10000"]
    assert contents(v1 / "run/one", "memory.limit_in_bytes") == [str(MB)]


# -- what is missing -------------------------------------------------------------------------


def test_a_machine_without_cgroups_has_cells_without_limits() -> None:
    cgroups = open_cgroups("run", mounts="", own="")

    assert set(cgroups.why_not) == {"cpu", "memory"}
    cell = cgroups.cell("one")
    assert (cell.procs_files, cell.folders, cell.pids()) == ((), (), [])
    cell.limit_cpu(1.0)
    cell.limit_memory(MB)
    assert (cell.memory().oom_kills, cell.cpu_s(), cell.throttled_s()) == (0, 0.0, 0.0)
    cell.remove()
    cgroups.close()


def test_a_mount_that_cannot_be_written_is_named(kernel: FakeKernel) -> None:
    folder = kernel.hierarchy("memory", 1, "memory")

    cgroups = open_cgroups(
        "run", mounts=mount_line(folder, "memory", options="ro"), own="4:memory:/\n"
    )

    assert cgroups.why_not["memory"] == f"{folder} is mounted read-only"


def test_a_folder_that_this_user_may_not_write_is_named(
    kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = kernel.hierarchy("memory", 1, "memory")

    def refuse(path: str, *_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(os, "mkdir", refuse)

    cgroups = open_cgroups("run", mounts=mount_line(folder, "memory"), own="4:memory:/\n")

    assert cgroups.why_not["memory"] == (
        f"this user may not make groups in {folder} (Permission denied)"
    )


def test_a_kernel_without_cpu_quotas_is_named_and_nothing_is_left(kernel: FakeKernel) -> None:
    kernel.missing = {"cpu.cfs_quota_us"}
    folder = kernel.hierarchy("cpu", 1, "cpu")
    account = kernel.hierarchy("cpuacct", 1, "cpuacct")
    mounts = mount_line(folder, "cpu") + mount_line(account, "cpuacct")

    cgroups = open_cgroups("run", mounts=mounts, own="1:cpu:/\n2:cpuacct:/\n")

    assert cgroups.why_not["cpu"] == "the kernel was built without cpu.cfs_quota_us"
    assert not (folder / "run").exists()
    assert not (account / "run").exists()


def test_a_refused_cell_leaves_nothing(kernel: FakeKernel) -> None:
    cgroups = v1_machine(kernel)
    (kernel.root / "memory/below/mine/run/one").mkdir()

    with pytest.raises(PlatformError, match="no control group for one"):
        cgroups.cell("one")

    assert not (kernel.root / "cpu/run/one").exists()


@pytest.mark.parametrize("name", ["", "a/b", "..", ".x", "a b"])
def test_a_name_that_is_a_path_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no name for a control group"):
        open_cgroups(name, mounts="", own="")


def test_close_removes_every_cell_and_parent(kernel: FakeKernel) -> None:
    cgroups = v1_machine(kernel)
    cells = [cgroups.cell("one"), cgroups.cell("two")]
    (Path(cells[1].folders[1]) / "made-by-the-function").mkdir()
    cells[0].remove()
    cells[0].remove()

    cgroups.close()
    cgroups.close()

    assert not any(Path(folder).exists() for folder in cgroups.folders)
    with pytest.raises(OSError, match="memory"):
        cells[1].memory()
