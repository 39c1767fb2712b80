"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["mode_of", "replacing"]


@contextmanager
def replacing(path: Path, *, mode: int = 0o600) -> Iterator[Path]:
    """A new file beside `path`, which takes its place when the block ends, with these permissions.

    If the block raises nothing is left of it. Of several writers at once one wins. OSError where
    nothing can be written.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".partial-")
    os.close(handle)
    try:
        yield Path(name)
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def mode_of(path: Path) -> int:
    """The permissions that a file there has, or that a new one would get."""
    if path.exists():
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
