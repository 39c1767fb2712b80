"""What of a platform's limits this machine enforces, and with what; the rest is said."""

from __future__ import annotations

from dataclasses import dataclass

from funcpipe.emulator.cgroups import Cell, Cgroups, open_cgroups
from funcpipe.emulator.forks import Isolation
from funcpipe.emulator.guarded import Guarded
from funcpipe.partitioner.platform import PlatformSpec

__all__ = ["Limits"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """`enforced` and `missing` are texts for people; `memory`: whether the kernel holds it."""

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
        found: list = []
        cgroups = open_cgroups(name)
        for folder in cgroups.folders:
            guarded.tell(f"cgroup {folder}")
        return Limits(
            cgroups=cgroups,
            isolation=Isolation(),
            enforced=tuple(f"{one.feature}: {one.how}" for one in found if one.how),
            missing=tuple(f"{one.feature}: {one.missing}" for one in found if not one.how),
        )

    @property
    def memory(self) -> bool:
        return self.cgroups is not None and self.cgroups.memory

    def cell(self, name: str) -> Cell | None:
        return None if self.cgroups is None else self.cgroups.cell(name)

    def close(self) -> None:
        if self.cgroups is not None:
            self.cgroups.close()
