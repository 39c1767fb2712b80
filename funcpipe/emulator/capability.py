"""What of a platform this machine can enforce, found out by really trying it.

`find` tries and leaves nothing behind; `capabilities`, which is pure, says what it means.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from funcpipe.emulator import isolation_probe
from funcpipe.emulator.cgroups import open_cgroups
from funcpipe.emulator.guarded import base_environment
from funcpipe.errors import PlatformError

__all__ = ["Capability", "Findings", "capabilities", "find", "probe_machine"]

_PROBE_S = 30.0
_IMAGE_BYTES = 1 << 20
_JOIN = """\
import sys
for path in sys.argv[1:]:
    with open(path, "w") as file:
        file.write("0")
"""


@dataclass(frozen=True, kw_only=True)
class Capability:
    """One thing that a platform does to its functions, and how it is done here."""

    feature: str
    how: str | None
    """None: not enforced."""
    missing: str = ""
    """What that means for a run, as the end of a sentence; empty if nothing is missing."""
    remedy: str = ""
    """What to do about it; empty if there is nothing to do."""

    def to_dict(self) -> dict[str, str | None]:
        return dict(self.__dict__)


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What was tried. In `steps` and `why_not` a text says why it did not work."""

    root: bool
    container: bool = False
    cgroups: Mapping[str, int] = field(default_factory=dict)
    """By "cpu" and "memory": the version of the kernel's interface."""
    why_not: Mapping[str, str] = field(default_factory=dict)
    steps: Mapping[str, str | None] = field(default_factory=dict)
    """By `isolation_probe.STEPS`: None if it works."""

    def works(self, *steps: str) -> bool:
        return all(self.steps.get(step, "not tried") is None for step in steps)

    @property
    def user_ns(self) -> bool:
        """Whether namespaces are to be had, and only inside a user namespace."""
        return not self.root and self.works("user namespace")

    @property
    def tmp(self) -> Literal["loop", "tmpfs"] | None:
        """What bounds a function's /tmp."""
        if not self.works("mount namespace"):
            return None
        return "loop" if self.works("loop") else "tmpfs" if self.works("tmpfs") else None


def probe_machine(folder: Path | None = None) -> list[Capability]:
    """What this machine can enforce; tries it in `folder` (default: the temporary folder)."""
    return capabilities(find(folder))


# -- trying ----------------------------------------------------------------------------------


def find(
    folder: Path | None = None, *, announce: Callable[[str], None] = lambda _: None
) -> Findings:
    """`announce` hears of every control group before it is made (see `open_cgroups`)."""
    cgroups, why_not = _try_cgroups(announce)
    return Findings(
        root=os.geteuid() == 0,
        container=any(map(os.path.exists, ("/.dockerenv", "/run/.containerenv"))),
        cgroups=cgroups,
        why_not=why_not,
        steps=_try_isolation(folder),
    )


def _try_cgroups(announce: Callable[[str], None]) -> tuple[dict[str, int], dict[str, str]]:
    """Make groups, let a process join them, and remove them."""
    try:
        cgroups = open_cgroups(f"funcpipe-probe-{secrets.token_hex(4)}", announce=announce)
    except OSError as error:  # no /proc, or none like Linux's
        return {}, dict.fromkeys(("cpu", "memory"), str(error))
    try:
        cell = cgroups.cell("probe")
        cell.limit_cpu(0.5)
        cell.limit_memory(256 << 20)
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _JOIN, *cell.procs_files],
            env=base_environment(),
            capture_output=True,
            text=True,
            timeout=_PROBE_S,
            check=False,
        )
        if done.returncode == 0:
            return cgroups.versions, cgroups.why_not
        lines = done.stderr.strip().splitlines() or [f"code {done.returncode}"]
        reason = f"a process could not join a group: {lines[-1]}"
    except (OSError, PlatformError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    finally:
        cgroups.close()
    return {}, dict.fromkeys(("cpu", "memory"), reason)


def _try_isolation(folder: Path | None) -> dict[str, str | None]:
    try:
        with tempfile.TemporaryDirectory(prefix="funcpipe-probe-", dir=folder) as place:
            mount_point = Path(place, "mount")
            mount_point.mkdir()
            image, why_not = _image(Path(place, "image"))
            spec = {
                "folder": str(mount_point),
                "image": image,
                "user_namespace": os.geteuid() != 0,
            }
            steps = _run_probe(spec)
            return steps if image is not None else {**steps, "loop": why_not}
    except OSError as error:
        return dict.fromkeys(isolation_probe.STEPS, f"no folder to try it in: {error}")


def _image(path: Path) -> tuple[str | None, str | None]:
    """An ext4 image, or why there is none."""
    if os.geteuid() != 0:
        return None, "only root may mount an image"
    if (
        mkfs := shutil.which("mkfs.ext4", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    ) is None:
        return None, "there is no mkfs.ext4"
    with open(path, "wb") as file:
        file.truncate(_IMAGE_BYTES)
    done = subprocess.run([mkfs, "-q", str(path)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return None, done.stderr.strip() or "mkfs.ext4 failed"
    return str(path), None


def _run_probe(spec: Mapping[str, object]) -> dict[str, str | None]:
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", isolation_probe.__name__],
            input=json.dumps(spec) + "\n",
            env={**base_environment(), "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            text=True,
            timeout=_PROBE_S,
            check=False,
        )
        return dict(json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        reason = f"trying it took more than {_PROBE_S:g} s"
    except (OSError, ValueError) as error:
        reason = f"trying it failed: {error}"
    return dict.fromkeys(isolation_probe.STEPS, reason)


# -- what it means ---------------------------------------------------------------------------


def capabilities(findings: Findings) -> list[Capability]:
    """Every feature, enforced or not, in the order in which to show them."""
    return [
        _memory(findings),
        _vcpu(findings),
        _process_tree(findings),
        _tmp_size(findings),
        _read_only(findings),
        _shared_memory(findings),
        *_NEVER,
    ]


_NEVER = (
    Capability(
        feature="other connections",
        how=None,
        missing="only what goes through the store is held to the tier's bandwidth and latency; a "
        "connection that a job opens by itself, to another function too, is not",
        remedy="",
    ),
    Capability(
        feature="disk speed",
        how=None,
        missing="reading and writing /tmp is as fast as this machine's disk",
        remedy="",
    ),
)


def _memory(findings: Findings) -> Capability:
    if (version := findings.cgroups.get("memory")) is not None:
        return Capability(feature="memory", how=f"by the kernel (cgroup version {version})")
    return Capability(
        feature="memory",
        how="looked at every 50 ms",
        missing="a function that exceeds its memory is ended only some 50 ms later, so that a "
        "short peak may pass, and what is in memory files that nobody has mapped is not counted "
        f"({_cgroup_reason(findings, 'memory')})",
        remedy=_cgroup_remedy(findings),
    )


def _vcpu(findings: Findings) -> Capability:
    if (version := findings.cgroups.get("cpu")) is not None:
        return Capability(
            feature="vcpu", how=f"by the kernel (cgroup version {version}, periods from 10 ms)"
        )
    return Capability(
        feature="vcpu",
        how=None,
        missing="functions use all the CPU time there is, so that computing takes as long as on "
        f"this machine, not as on the platform ({_cgroup_reason(findings, 'cpu')})",
        remedy=_cgroup_remedy(findings),
    )


def _cgroup_reason(findings: Findings, controller: str) -> str:
    return findings.why_not.get(controller, "not tried")


def _cgroup_remedy(findings: Findings) -> str:
    if findings.container:
        return (
            "start the container with --privileged --cgroupns=private, and funcpipe as its only "
            "process"
        )
    scope = "systemd-run --user --scope -p Delegate=yes funcpipe ..."
    if any("other processes" in text for text in findings.why_not.values()):
        scope = scope.replace(" --user", "") if findings.root else scope
        return f"start it in a scope of its own: {scope}"
    if findings.root:
        return "mount the cgroup file system writable, with the cpu and memory controllers"
    return f"run it as root, or where cgroup version 2 is in use: {scope}"


def _process_tree(findings: Findings) -> Capability:
    if findings.works("pid namespace"):
        return Capability(feature="process tree", how=_namespace("pid", findings))
    if findings.cgroups:
        return Capability(feature="process tree", how="killed by cgroup")
    return Capability(
        feature="process tree",
        how="killed by process group",
        missing="a process that leaves its function's process group outlives the function "
        f"({_step_reason(findings, 'pid namespace')})",
        remedy=_namespace_remedy(findings),
    )


def _tmp_size(findings: Findings) -> Capability:
    feature = "tmp size"
    match findings.tmp:
        case "loop":
            return Capability(feature=feature, how="an ext4 image mounted for each function")
        case "tmpfs":
            return Capability(
                feature=feature,
                how="a tmpfs for each function",
                missing="what functions write to /tmp is in memory, and counts as theirs where "
                f"the kernel limits that ({_step_reason(findings, 'loop')})",
                remedy=_loop_remedy(findings),
            )
    return Capability(
        feature=feature,
        how=None,
        missing="a function may fill this machine's disk, and others see what it writes to /tmp "
        f"({_step_reason(findings, 'mount namespace', 'tmpfs')})",
        remedy=_namespace_remedy(findings),
    )


def _read_only(findings: Findings) -> Capability:
    if findings.works("mount namespace", "read only"):
        return Capability(feature="read-only code", how=_namespace("mount", findings))
    return Capability(
        feature="read-only code",
        how=None,
        missing="a function may write wherever this user may "
        f"({_step_reason(findings, 'mount namespace', 'read only')})",
        remedy=_namespace_remedy(
            findings, kernel="5.12" if findings.works("mount namespace") else ""
        ),
    )


def _shared_memory(findings: Findings) -> Capability:
    needed = ("mount namespace", "ipc namespace", "tmpfs")
    if findings.works(*needed):
        return Capability(feature="shared memory", how=_namespace("IPC", findings))
    return Capability(
        feature="shared memory",
        how=None,
        missing="functions share /dev/shm and could talk through it "
        f"({_step_reason(findings, *needed)})",
        remedy=_namespace_remedy(findings),
    )


def _namespace(kind: str, findings: Findings) -> str:
    return f"{kind} namespace" + (" (inside a user namespace)" if findings.user_ns else "")


def _step_reason(findings: Findings, *steps: str) -> str:
    """Why the first of `steps` that does not work does not; what it rests on comes first."""
    tried = steps if findings.root else ("user namespace", *steps)
    for step in tried:
        if not findings.works(step):
            return f"{step}: {findings.steps.get(step, 'not tried')}"
    return "not tried"


def _loop_remedy(findings: Findings) -> str:
    reason = findings.steps.get("loop") or ""
    if "mkfs" in reason:
        return "install mkfs.ext4 (package e2fsprogs)"
    if not findings.root:
        return "run it as root"
    if findings.container:
        return "start the container with --privileged"
    return "modprobe loop"


def _namespace_remedy(findings: Findings, *, kernel: str = "") -> str:
    if kernel:
        return f"use Linux {kernel} or newer"
    if findings.container:
        return (
            "start the container with --cap-add SYS_ADMIN --security-opt seccomp=unconfined "
            "--security-opt apparmor=unconfined"
        )
    if findings.root:
        return "run it as a root that may make namespaces (CAP_SYS_ADMIN)"
    return (
        "run it as root, or allow user namespaces: sysctl user.max_user_namespaces=10000, "
        "kernel.unprivileged_userns_clone=1 (Debian), "
        "kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu)"
    )
