"""Where this process lies in the machine's cgroup hierarchies: pure, from two texts of /proc."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

__all__ = ["Hierarchy", "find_hierarchies"]


@dataclass(frozen=True, kw_only=True)
class Hierarchy:
    """One mounted hierarchy; `own` is the folder of this process's group, None if out of reach.

    `controllers` is empty for version 2, which names them in a file of each group.
    """

    version: int
    mount: str
    own: str | None
    controllers: frozenset[str] = frozenset()
    read_only: bool = False


def find_hierarchies(mountinfo: str, own: str) -> list[Hierarchy]:
    """The hierarchies in the text of ``/proc/self/mountinfo``; `own` is ``/proc/self/cgroup``.

    A hierarchy that is mounted twice is listed once: by the mount that can be written, if any.
    """
    v1_paths, v2_path = _own_paths(own)
    found: dict[frozenset[str] | None, Hierarchy] = {}
    for line in mountinfo.splitlines():
        first, separator, second = line.partition(" - ")
        fields, tail = first.split(), second.split()
        if (
            not separator
            or len(fields) < 6
            or len(tail) < 3
            or tail[0] not in ("cgroup", "cgroup2")
        ):
            continue
        root, mount = _unescape(fields[3]), _unescape(fields[4])
        read_only = "ro" in fields[5].split(",") or "ro" in tail[2].split(",")
        if tail[0] == "cgroup2":
            key, path, version = None, v2_path, 2
            controllers: frozenset[str] = frozenset()
        else:
            controllers = frozenset(tail[2].split(",")) & set(v1_paths)
            if not controllers:
                continue
            key, path, version = controllers, v1_paths[min(controllers)], 1
        one = Hierarchy(
            version=version,
            mount=mount,
            own=_below(mount, root, path),
            controllers=controllers,
            read_only=read_only,
        )
        known = found.get(key)
        if known is None or (_usable(one) and not _usable(known)):
            found[key] = one
    return list(found.values())


def _usable(one: Hierarchy) -> bool:
    return one.own is not None and not one.read_only


def _own_paths(own: str) -> tuple[dict[str, str], str | None]:
    """The path of our group by v1 controller, and in the v2 hierarchy."""
    v1: dict[str, str] = {}
    v2: str | None = None
    for line in own.splitlines():
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if number == "0" and not controllers:
            v2 = path
        else:
            v1 |= dict.fromkeys(filter(None, controllers.split(",")), path)
    return v1, v2


def _below(mount: str, root: str, path: str | None) -> str | None:
    """The folder of group `path` where the group `root` is mounted at `mount`.

    A container may see its own group as the root of the mount, by its full name.
    """
    if path is None or ".." in path.split("/") or ".." in root.split("/"):
        return None
    inside = os.path.relpath(path or "/", root or "/")
    if inside.split("/")[0] == "..":
        return None
    return mount if inside == "." else os.path.join(mount, inside)


def _unescape(text: str) -> str:
    """mountinfo writes blanks and backslashes in octal."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
