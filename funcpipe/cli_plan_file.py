"""The file that ``-o`` of a command writes: checked before its work, written after it."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from funcpipe.errors import PlanError
from funcpipe.files import mode_of, replacing
from funcpipe.partitioner.limits import shown

__all__ = ["check_output", "is_stdout", "write_output"]

_STDOUT = ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
_MOST_LINKS = 40  # more than the system follows


def check_output(name: str, read: str, *, what: str = "plan", source: str = "the profile") -> None:
    """`PlanError` if nothing can be written there: before the work, not after it.

    read: the file that is read, which must not be replaced; `source` in words. what: is written.
    """
    if not name or "\0" in name:
        found = "its name has a NUL byte in it" if name else "its name is empty"
        raise PlanError(f"cannot write the {what} to {shown(name)}: {found}; name a file")
    path = Path(name)
    try:
        if path.is_dir():
            raise PlanError(f"cannot write the {what} to {path}: it is a folder; name a file in it")
        if path.exists() and os.path.exists(read) and path.samefile(read):
            raise PlanError(
                f"cannot write the {what} to {path}: it is {source} that is read; name another file"
            )
        if path.exists() and not path.is_file():
            return
        with tempfile.NamedTemporaryFile(dir=_target(path).parent, prefix=".plan-"):
            pass
    except OSError as error:
        raise _unwritable(path, error, what) from error


def is_stdout(name: str) -> bool:
    """Whether a path is, or links to, one of the names that standard output has."""
    for _ in range(0 if "\0" in name else _MOST_LINKS):
        if os.path.normpath(name) in (*_STDOUT, f"/proc/{os.getpid()}/fd/1"):
            return True
        if not os.path.islink(name):
            break
        name = os.path.join(os.path.dirname(name), os.readlink(name))
    return False


def write_output(path: Path, text: str, *, what: str = "plan") -> None:
    """All of it or nothing. A device or a pipe is written into, a link's target is replaced."""
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        target = _target(path)
        with replacing(target, mode=mode_of(target)) as partial:
            partial.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, error, what) from error


def _target(path: Path) -> Path:
    """Where links lead; OSError where they lead round."""
    try:
        return path.resolve()
    except RuntimeError:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None


def _unwritable(path: Path, error: OSError, what: str) -> PlanError:
    return PlanError(f"cannot write the {what} to {path}: {error.strerror or error}")
