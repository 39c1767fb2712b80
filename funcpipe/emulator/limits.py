"""What of a platform's limits this machine enforces, and with what; the rest is said."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from funcpipe.emulator.capability import Capability, Findings, capabilities, find
from funcpipe.emulator.cgroups import Cell, Cgroups, open_cgroups
from funcpipe.emulator.forks import Isolation
from funcpipe.emulator.guarded import Guarded
from funcpipe.partitioner.platform import PlatformSpec

__all__ = ["Limits"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """`enforced` and `missing` are texts for people."""

    cgroups: Cgroups | None
    isolation: Isolation
    enforced: tuple[str, ...]
    missing: tuple[str, ...]

    @staticmethod
    def open(platform: PlatformSpec, *, name: str, guarded: Guarded) -> Limits:
        """Find out what can be done here, and make the control group for all environments.

        name: of that group. guarded: removes it, should this process be killed.
        """
        if not platform.limited:
            return Limits(cgroups=None, isolation=Isolation(), enforced=(), missing=())

        def announce(folder: str) -> None:
            guarded.tell(f"cgroup {folder}")

        findings = find(guarded.folder, announce=announce)
        found = [*capabilities(findings), *_gpu(platform), *_room(platform, guarded.folder)]
        # Groups that a process could not join would keep every function from starting.
        cgroups = open_cgroups(name, announce=announce) if findings.cgroups else None
        return Limits(
            cgroups=cgroups,
            isolation=isolation_of(findings, platform),
            enforced=tuple(f"{one.feature}: {one.how}" for one in found if one.how is not None),
            missing=tuple(f"{one.feature}: {one.missing}" for one in found if one.missing),
        )

    @property
    def memory(self) -> bool:
        return self.cgroups is not None and self.cgroups.memory

    def cell(self, name: str) -> Cell | None:
        return None if self.cgroups is None else self.cgroups.cell(name)

    def close(self) -> None:
        if self.cgroups is not None:
            self.cgroups.close()


def isolation_of(findings: Findings, platform: PlatformSpec) -> Isolation:
    """As much of it as works here."""
    own_mounts = findings.works("mount namespace", "ipc namespace")
    own_shm = own_mounts and findings.works("tmpfs")
    return Isolation(
        pid_ns=findings.works("pid namespace"),
        mount_ns=own_mounts,
        user_ns=findings.user_ns,
        tmp=findings.tmp if own_mounts else None,
        read_only=own_mounts and findings.works("read only"),
        shared_memory_mb=platform.tmp.shared_memory_mb if own_shm else None,
    )


def _gpu(platform: PlatformSpec) -> list[Capability]:
    if platform.gpu.kind is None:
        return []
    kind = f"{platform.gpu.kind} with {platform.gpu.memory_mb:,} MB"
    missing = (
        f"functions compute on this machine's CPUs and not on a {kind}, so their times are not"
    )
    return [Capability(feature="GPU", how=None, missing=f"{missing} the platform's")]


def _room(platform: PlatformSpec, folder: Path) -> list[Capability]:
    free_mb = shutil.disk_usage(folder).free >> 20
    if free_mb >= platform.tmp.default_mb:
        return []
    missing = (
        f"a function's /tmp has {platform.tmp.default_mb:,} MB, and the disk below {folder.parent} "
        f"only {free_mb:,}: name a larger one with TMPDIR"
    )
    return [Capability(feature="disk space", how=None, missing=missing)]
