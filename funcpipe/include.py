"""Which files the `include` of a job names, and which must never be sent."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from funcpipe.errors import BundleError
from funcpipe.usercode import BUNDLE_MARKER

__all__ = ["included_files", "looks_secret"]

_LEFT_OUT_FOLDERS = {
    *("__pycache__", ".git", ".hg", ".svn", ".venv", "venv", ".tox", ".nox", "node_modules"),
    *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints"),
}
_LEFT_OUT_SUFFIXES = {".pyc", ".pyo"}

_SECRET_FOLDERS = {".aws", ".ssh", ".gnupg", ".azure", ".kube", ".docker", ".aliyun", ".gcloud"}
_SECRET_NAMES = {
    *(".netrc", "_netrc", ".pgpass", ".pypirc", ".npmrc", ".git-credentials", ".htpasswd"),
    *(".boto", ".s3cfg", ".ossutilconfig", "credentials", "credentials.json"),
}
_SECRET_PATTERN = re.compile(
    r"\.env(\..*)?|.*\.env|id_(rsa|dsa|ecdsa|ed25519)(\..*)?"
    r"|(credentials|rootkey|accesskeys?).*\.csv|.*\.(pem|key|p12|pfx|jks|kdbx|ppk)",
    re.IGNORECASE,
)
_PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY")


def included_files(folder: Path, patterns: Iterable[str]) -> tuple[str, ...]:
    """The files, relative to `folder` and sorted, that `patterns` (files, folders, globs) name.

    Caches, version control and virtual environments are left out. Raises `BundleError` for a
    pattern that names nothing, a symbolic link that leaves `folder`, and anything that looks like
    a credential.
    """
    found: set[str] = set()
    for pattern in patterns:
        files = set(_files_of(folder, pattern))
        if not files:
            raise BundleError(f"the job includes {pattern!r}, {_why_nothing(folder, pattern)}")
        found |= files
    for name in sorted(found):
        _check_inside(folder, name)
        if looks_secret(folder / name, PurePosixPath(name)):
            raise BundleError(
                f"the job includes {name!r}, which looks like a credential; bundles are stored "
                "and sent to every function, so keep it out (give functions their rights by "
                "their role or environment) or rename it if it is none"
            )
    return tuple(sorted(found))


def looks_secret(file: Path, name: PurePosixPath) -> bool:
    """Whether the file's name, a folder in its `name` or its first bytes are a credential's."""
    if _SECRET_FOLDERS.intersection(name.parts) or name.name.lower() in _SECRET_NAMES:
        return True
    if _SECRET_PATTERN.fullmatch(name.name):
        return True
    with file.open("rb") as content:
        return _PRIVATE_KEY.match(content.read(64).lstrip()) is not None


def _files_of(folder: Path, pattern: str) -> Iterator[str]:
    path = folder / pattern
    for match in [path] if os.path.lexists(path) else sorted(folder.glob(pattern)):
        if match.is_dir():
            yield from _walk(folder, match)
        elif not _is_left_out(PurePosixPath(match.relative_to(folder))):
            yield match.relative_to(folder).as_posix()


def _walk(folder: Path, start: Path) -> Iterator[str]:
    if start.is_symlink():
        raise BundleError(
            f"the job includes {start.relative_to(folder)}, a symbolic link to a folder; include "
            "that folder itself, or copy it beside the job file"
        )
    if _is_left_out(PurePosixPath(start.relative_to(folder))):
        return
    for child in sorted(start.iterdir()):
        if child.is_dir():
            if child.name not in _LEFT_OUT_FOLDERS:
                yield from _walk(folder, child)
        elif not _is_left_out(PurePosixPath(child.relative_to(folder))):
            yield child.relative_to(folder).as_posix()


def _is_left_out(name: PurePosixPath) -> bool:
    if name.name == BUNDLE_MARKER:
        return True
    return bool(_LEFT_OUT_FOLDERS.intersection(name.parts)) or name.suffix in _LEFT_OUT_SUFFIXES


def _check_inside(folder: Path, name: str) -> None:
    file = folder / name
    real = Path(os.path.realpath(file))
    if not real.is_relative_to(os.path.realpath(folder)):
        raise BundleError(
            f"the job includes {name!r}, a symbolic link that leaves the job's folder, to {real}; "
            "copy the file beside the job file"
        )
    if not real.is_file():
        state = "a broken symbolic link" if not real.exists() else "not a plain file"
        raise BundleError(f"the job includes {name!r}, which is {state}")


def _why_nothing(folder: Path, pattern: str) -> str:
    if os.path.lexists(folder / pattern):
        return (
            "which holds nothing to send (caches, version control and virtual environments never "
            "are); leave it out"
        )
    names = [entry.name for entry in folder.iterdir()]
    close = difflib.get_close_matches(pattern, names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"which names no file in {folder}{hint}"
