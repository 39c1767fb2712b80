"""What findings on a machine mean: pure, with the findings of several machines."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from funcpipe.emulator import capability
from funcpipe.emulator.capability import Capability, Findings, capabilities
from funcpipe.emulator.cgroup_mounts import Hierarchy
from funcpipe.emulator.isolation_probe import STEPS
from funcpipe.emulator.resources import memory_bytes, usable_cpus

WORKS = dict.fromkeys(STEPS)
FEATURES = ["memory", "vcpu", "process tree", "tmp size", "read-only code", "shared memory"]
NEVER = ["other connections", "disk speed"]


def by_feature(findings: Findings) -> dict[str, Capability]:
    found = capabilities(findings)
    assert [one.feature for one in found] == FEATURES + NEVER
    for one in found:
        # What is not enforced is always explained, what is needs no remedy without a shortcoming.
        assert one.how is not None or one.missing
        assert one.missing or not one.remedy
    return {one.feature: one for one in found}


def how(findings: Findings) -> list[str | None]:
    return [one.how for one in by_feature(findings).values()]


def test_root_with_everything() -> None:
    findings = Findings(root=True, cgroups={"cpu": 2, "memory": 2}, steps=WORKS)

    assert how(findings) == [
        "by the kernel (cgroup version 2)",
        "by the kernel (cgroup version 2, periods from 10 ms)",
        "pid namespace",
        "an ext4 image mounted for each function",
        "mount namespace",
        "IPC namespace",
        None,
        None,
    ]
    assert (findings.user_ns, findings.tmp) == (False, "loop")
    assert all(not one.remedy for one in capabilities(findings))


def test_a_user_in_a_user_namespace() -> None:
    why_not = dict.fromkeys(("cpu", "memory"), "this user may not make groups in /sys/fs/cgroup/x")
    steps = {**WORKS, "loop": "only root may mount an image"}
    findings = Findings(root=False, why_not=why_not, steps=steps)

    found = by_feature(findings)

    assert (findings.user_ns, findings.tmp) == (True, "tmpfs")
    assert found["memory"].how == "looked at every 50 ms"
    assert "may not make groups" in found["memory"].missing
    assert found["vcpu"].how is None
    assert "run it as root" in found["vcpu"].remedy
    assert "Delegate=yes" in found["vcpu"].remedy
    assert found["process tree"].how == "pid namespace (inside a user namespace)"
    assert found["tmp size"].how == "a tmpfs for each function"
    assert "only root may mount an image" in found["tmp size"].missing
    assert found["tmp size"].remedy == "run it as root"
    assert found["shared memory"].how == "IPC namespace (inside a user namespace)"


def test_a_user_without_anything() -> None:
    steps = {
        "user namespace": "Operation not permitted",
        **dict.fromkeys(STEPS[1:], "needs a user namespace"),
    }
    findings = Findings(root=False, steps=steps)

    found = by_feature(findings)

    assert (findings.user_ns, findings.tmp) == (False, None)
    assert [one.how for one in found.values()] == [
        *("looked at every 50 ms", None, "killed by process group", None, None, None),
        *(None, None),
    ]
    for feature in FEATURES[2:]:
        assert "user namespace: Operation not permitted" in found[feature].missing
        assert "sysctl user.max_user_namespaces" in found[feature].remedy


def test_a_container_gets_its_own_remedies() -> None:
    why_not = {"cpu": "/sys/fs/cgroup is mounted read-only", "memory": "same"}
    steps = dict.fromkeys(STEPS, "Operation not permitted")
    found = by_feature(Findings(root=True, container=True, why_not=why_not, steps=steps))

    assert "--privileged" in found["vcpu"].remedy
    assert "mounted read-only" in found["vcpu"].missing
    assert "--cap-add SYS_ADMIN" in found["process tree"].remedy


@pytest.mark.parametrize(
    ("findings", "feature", "remedy"),
    [
        (Findings(root=True, why_not={"cpu": "3 other processes are in it"}), "vcpu",
         "start it in a scope of its own: systemd-run --scope -p Delegate=yes funcpipe ..."),
        (Findings(root=False, why_not={"cpu": "3 other processes are in it"}), "vcpu",
         "start it in a scope of its own: systemd-run --user --scope -p Delegate=yes funcpipe ..."),
        (Findings(root=True, steps={**WORKS, "loop": "there is no mkfs.ext4"}), "tmp size",
         "install mkfs.ext4 (package e2fsprogs)"),
        (Findings(root=True, steps={**WORKS, "loop": "mount: failed"}), "tmp size",
         "modprobe loop"),
        (Findings(root=True, steps={**WORKS, "read only": "mount_setattr: Function not "
                                    "implemented"}), "read-only code", "use Linux 5.12 or newer"),
    ],
)  # fmt: skip
def test_the_remedy_fits_the_reason(findings: Findings, feature: str, remedy: str) -> None:
    assert by_feature(findings)[feature].remedy == remedy


def test_a_cgroup_ends_the_tree_where_there_are_no_namespaces() -> None:
    findings = Findings(root=True, cgroups={"memory": 1}, steps={})

    assert by_feature(findings)["process tree"].how == "killed by cgroup"


def test_a_folder_that_cannot_be_written_is_the_reason(tmp_path: Path) -> None:
    steps = capability._try_isolation(tmp_path / "missing")

    assert set(steps) == set(STEPS)
    assert all("no folder to try it in" in (text or "") for text in steps.values())


def test_cgroups_that_processes_cannot_join_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capability, "_JOIN", "raise OSError(13, 'Permission denied')")

    cgroups, why_not = capability._try_cgroups(lambda _: None)

    assert cgroups == {}
    assert "a process could not join a group: " in why_not["cpu"]
    assert os.strerror(errno.EACCES) in why_not["memory"]


# -- this machine's share --------------------------------------------------------------------

MEMINFO = "MemTotal: 8000 kB\nMemFree: 1 kB\nMemAvailable:  5000 kB\nHugePages_Total: 0\n"


def group(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")
    return folder


def test_a_quota_of_a_group_above_counts(tmp_path: Path) -> None:
    group(tmp_path / "a", cpu__max="50000 100000", memory__max="max", memory__current="1")
    stat = "anon 1\ninactive_file 1024000"
    own = group(tmp_path / "a/b", cpu__max="max 100000", memory__max="3072000",
                memory__current="2048000", memory__stat=stat)  # fmt: skip
    hierarchies = [Hierarchy(version=2, mount=str(tmp_path), own=str(own))]

    assert usable_cpus(hierarchies) == 0.5
    assert memory_bytes(hierarchies, meminfo=MEMINFO) == (3072000, 2048000)


def test_version_1_says_the_same_in_other_words(tmp_path: Path) -> None:
    cpu = group(tmp_path / "cpu", cpu__cfs_quota_us="25000", cpu__cfs_period_us="100000")
    memory = group(tmp_path / "memory", memory__limit_in_bytes="1024000",
                   memory__usage_in_bytes="0", memory__stat="cache 0")  # fmt: skip
    hierarchies = [
        Hierarchy(version=1, mount=str(folder), own=str(folder), controllers=frozenset({name}))
        for name, folder in (("cpu", cpu), ("memory", memory))
    ]

    assert usable_cpus(hierarchies) == 0.25
    assert memory_bytes(hierarchies, meminfo=MEMINFO) == (1024000, 1024000)


def test_without_groups_the_whole_machine_is_ours() -> None:
    assert usable_cpus([]) == len(os.sched_getaffinity(0))
    assert memory_bytes([], meminfo=MEMINFO) == (8000 << 10, 5000 << 10)
