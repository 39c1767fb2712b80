"""What a kind of store server needs to run: pure data, filled in by one small module per kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from funcpipe.emulator.credentials import Credentials
from funcpipe.emulator.guarded import Upkeep

__all__ = ["Kind", "OpenDoor", "Recipe"]


@dataclass(frozen=True, kw_only=True)
class OpenDoor:
    """A page that still answers a caller without credentials, the same whatever the method."""

    role: str
    path: str
    shows: str
    """What it gives away, and so why it may stay open."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Commands and files for one server; relative paths are below the folder it runs in."""

    server: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)
    setup: Sequence[Sequence[str]] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    sockets: Sequence[str] = ()
    upkeep: Upkeep | None = None


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of server: how its binary is called, the ports it listens on, how to get it."""

    name: str
    binary: str
    how_to_get: str
    roles: tuple[str, ...]
    """Its ports by purpose; "s3" is the one that clients use, and ``X+`` is the one
    `ports.PAIR_OFFSET` above X."""
    open_doors: tuple[OpenDoor, ...]
    recipe: Callable[[str, Mapping[str, int], Credentials], Recipe]
    least_free_bytes: int = 16 << 20
    """With less space than that on its disk the server may refuse to write."""
