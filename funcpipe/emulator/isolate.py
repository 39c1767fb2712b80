"""What a forked function puts between itself and the machine before it runs anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["ForkRequest", "Isolation", "TmpKind"]

TmpKind = Literal["loop", "tmpfs"]


@dataclass(frozen=True, kw_only=True)
class Isolation:
    """Which walls a function gets; the default is none, which works everywhere.

    `pid_ns`: it sees and signals only its own processes, and they all end with it. `mount_ns`: own
    mounts, a private /tmp and own IPC objects; `read_only`, `tmp` and `shared_memory_mb` need it.
    `user_ns`: the template enters a user namespace first, which makes the others possible without
    root. `tmp`: "loop" mounts the request's `tmp_image` (root), "tmpfs" makes one of `tmp_mb`,
    None leaves the size of the folder unbounded. `shared_memory_mb`: None leaves /dev/shm alone,
    0 leaves nothing to write to.
    """

    pid_ns: bool = False
    mount_ns: bool = False
    user_ns: bool = False
    tmp: TmpKind | None = None
    read_only: bool = False
    shared_memory_mb: int | None = None

    def __post_init__(self) -> None:
        if self.tmp not in (None, "loop", "tmpfs"):
            raise ValueError(f"tmp must be 'loop', 'tmpfs' or None, found {self.tmp!r}")
        if self.tmp == "loop" and self.user_ns:
            raise ValueError("in a user namespace no image can be mounted: use tmp='tmpfs'")
        needs = [self.tmp is not None, self.read_only, self.shared_memory_mb is not None]
        if any(needs) and not self.mount_ns:
            raise ValueError("tmp, read_only and shared_memory_mb need mount_ns")
        if self.shared_memory_mb is not None and self.shared_memory_mb < 0:
            raise ValueError(f"shared_memory_mb cannot be {self.shared_memory_mb}")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Isolation:
        return Isolation(**data)


@dataclass(frozen=True, kw_only=True)
class ForkRequest:
    """One function to be forked.

    `environment` replaces all variables. `folder` exists; it becomes the working folder, and the
    caller names it in HOME and TMPDIR. `procs_files` are the control groups to join. With own
    mounts, `writable` and `visible` are existing paths that stay what they are outside, also below
    /tmp; what Python itself needs stays visible anyway.
    """

    id: str
    environment: Mapping[str, str]
    folder: str
    procs_files: tuple[str, ...] = ()
    tmp_image: str | None = None
    tmp_mb: int | None = None
    visible: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"environment": dict(self.environment)}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> ForkRequest:
        lists = {name: tuple(data[name]) for name in ("procs_files", "visible", "writable")}
        return ForkRequest(**(dict(data) | lists))


def isolate(isolation: Isolation, request: ForkRequest) -> None:
    """Raise the walls, in a forked child; raises `OSError` where one cannot be."""
    for path in request.procs_files:
        with open(path, "w", encoding="ascii") as file:
            file.write("0")
