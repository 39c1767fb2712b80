"""Runs a command as an ordinary user: ``python as_user.py NUMBER COMMAND...``, started by root.

Where Python itself lies in a folder that only root may enter, the command sees another folder in
its place, in which there is nothing but Python.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from funcpipe.emulator import linux


def open_the_way(folder: Path) -> None:
    closed = [one for one in [*folder.parents][::-1] if not one.stat().st_mode & 0o001]
    if not closed:
        return
    linux.unshare(linux.NEW_MOUNTS)
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    source = os.open(folder, os.O_PATH)
    linux.mount("tmpfs", str(closed[0]), "tmpfs", data="mode=755")
    folder.mkdir(parents=True)
    linux.mount(f"/proc/self/fd/{source}", str(folder), flags=linux.MS_BIND | linux.MS_REC)


if __name__ == "__main__":
    open_the_way(Path(sys.base_prefix).resolve())
    os.setgroups([])
    os.setgid(int(sys.argv[1]))
    os.setuid(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606
