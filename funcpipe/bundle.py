"""The user's code in one zip: packed once, checked and unpacked by every function.

Equal files make equal bytes: members are sorted, their times and modes fixed. Beside the user's
files a bundle holds `BUNDLE_MARKER`, a small JSON with the format's version and the entry.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from funcpipe.errors import BundleError
from funcpipe.imports import base_of, reachable
from funcpipe.include import included_files
from funcpipe.job import Job
from funcpipe.locate import LoadedJob, import_job
from funcpipe.store.base import Buffer
from funcpipe.usercode import BUNDLE_MARKER

__all__ = ["MAX_PACKED_BYTES", "MAX_UNPACKED_BYTES", "Bundle", "load_unpacked", "pack", "unpack"]

#: What `pack` allows, counted before compression.
MAX_PACKED_BYTES = 50 * 2**20
#: What `unpack` allows, so that no archive can fill a function's disk.
MAX_UNPACKED_BYTES = 512 * 2**20

_FORMAT = 1
_EPOCH = (1980, 1, 1, 0, 0, 0)
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_READ_ONLY = stat.S_IFREG | 0o444


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A packed job. `digest` is the SHA-256 of `data` in hex, `entry` is ``module:attribute``."""

    data: bytes = field(repr=False)
    digest: str
    entry: str
    files: tuple[str, ...]


def pack(loaded: LoadedJob, *, limit_bytes: int = MAX_PACKED_BYTES) -> Bundle:
    """The job file, the user's own modules that it imports and its `include`, as a bundle.

    Modules are those that importing the job has loaded and those that the sources of any of them
    name, in functions too. Raises `BundleError` for a module or file that lies outside the folder
    it was found in (by a symbolic link), for a pattern of `include` that names nothing, for what
    looks like a credential, and for more than `limit_bytes`.
    """
    try:
        members = _members_of(loaded)
        _check_size(members, limit_bytes)
        entry = f"{loaded.module}:{loaded.attribute}"
        data = _zipped(members, entry)
    except OSError as exc:
        raise BundleError(f"a file of the job cannot be read: {exc}") from exc
    return Bundle(
        data=data,
        digest=hashlib.sha256(data).hexdigest(),
        entry=entry,
        files=tuple(sorted(members)),
    )


def _members_of(loaded: LoadedJob) -> dict[str, Path]:
    """Name in the bundle and file of everything that the job needs."""
    folder = loaded.file.parent
    prefix = PurePosixPath(folder.relative_to(loaded.root).as_posix())
    included = {
        str(prefix / name): folder / name for name in included_files(folder, loaded.job.include)
    }
    starts = dict(loaded.modules) | _python_modules(included)
    starts[loaded.module] = loaded.file
    modules = reachable(starts, root=loaded.root, known=loaded.modules)
    members = _archive_names(modules)
    for name, file in included.items():
        if os.path.realpath(members.setdefault(name, file)) != os.path.realpath(file):
            raise BundleError(
                f"the job includes {file}, but the module {members[name]} takes the same place "
                f"({name}) in the bundle; rename one of them"
            )
    return members


def _python_modules(files: Mapping[str, Path]) -> dict[str, Path]:
    """Included sources as modules, so that what they import is packed as well."""
    found = {}
    for name, file in files.items():
        parts = PurePosixPath(name).with_suffix("").parts
        if file.suffix == ".py" and all(part.isidentifier() for part in parts):
            module = parts[:-1] if parts[-1] == "__init__" else parts
            if module:
                found[".".join(module)] = file
    return found


def _archive_names(modules: Mapping[str, Path]) -> dict[str, Path]:
    members: dict[str, Path] = {}
    for module, file in modules.items():
        base = base_of(module, file)
        if not Path(os.path.realpath(file)).is_relative_to(os.path.realpath(base)):
            raise BundleError(
                f"the module {module!r} is a symbolic link that leaves {base}, to "
                f"{os.path.realpath(file)}; copy the file, or put its folder on PYTHONPATH"
            )
        members[file.relative_to(base).as_posix()] = file
    return members


def _check_size(members: Mapping[str, Path], limit_bytes: int) -> None:
    sizes = sorted(((file.stat().st_size, name) for name, file in members.items()), reverse=True)
    total = sum(size for size, _ in sizes)
    if total > limit_bytes:
        largest = ", ".join(f"{name} ({_megabytes(size)})" for size, name in sizes[:5])
        raise BundleError(
            f"the job's bundle would hold {_megabytes(total)} in {len(sizes)} files, more than "
            f"the limit of {_megabytes(limit_bytes)}; the largest are {largest}. Include less, and "
            "let the functions load large data from where they can reach it"
        )


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.1f} MB" if num_bytes >= 1e5 else f"{num_bytes} bytes"


def _zipped(members: Mapping[str, Path], entry: str) -> bytes:
    marker = json.dumps({"format": _FORMAT, "entry": entry}).encode()
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        archive.writestr(_member(BUNDLE_MARKER), marker)
        for name, file in sorted(members.items()):
            archive.writestr(_member(name), file.read_bytes())
    return target.getvalue()


def _member(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _EPOCH)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.create_system = 3
    info.external_attr = _READ_ONLY << 16
    return info


def unpack(
    data: Buffer, *, digest: str, folder: Path, limit_bytes: int = MAX_UNPACKED_BYTES
) -> tuple[str, ...]:
    """Write the bundle's files, read-only, into `folder`, which must be empty or not exist.

    Nothing is read from `data` before its SHA-256 is `digest`, nothing is written before every
    name in it was found harmless. Returns the names; raises `BundleError`.
    """
    found = hashlib.sha256(data).hexdigest()
    if found != digest:
        raise BundleError(f"the job's bundle has the SHA-256 {found}, expected {digest}")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            _check_members(members, limit_bytes)
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise BundleError(f"the bundle is not unpacked into {folder}, which is not empty")
            for member in members:
                _write(folder / member.filename, archive.read(member))
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError) as exc:
        raise BundleError(f"the job's bundle is not a valid archive: {exc}") from exc
    except OSError as exc:
        raise BundleError(f"the job's bundle cannot be unpacked into {folder}: {exc}") from exc
    return tuple(member.filename for member in members)


def _check_members(members: Iterable[zipfile.ZipInfo], limit_bytes: int) -> None:
    names: set[str] = set()
    folders: set[str] = set()
    total = 0
    for member in members:
        name = member.filename
        path = PurePosixPath(name)
        kind = stat.S_IFMT(member.external_attr >> 16)
        if (
            str(path) != name
            or not path.parts
            or path.is_absolute()
            or ".." in path.parts
            or "\\" in name
        ):
            raise BundleError(f"the job's bundle holds the name {name!r}, which is not allowed")
        if kind not in (0, stat.S_IFREG) or member.compress_type not in _METHODS:
            raise BundleError(f"the job's bundle holds {name!r}, which is not a plain file")
        if name in names:
            raise BundleError(f"the job's bundle holds {name!r} twice")
        names.add(name)
        folders.update(str(parent) for parent in path.parents)
        # zipfile reads no more of a member than its header announces, so the sum bounds it.
        total += member.file_size
    if names & folders:
        raise BundleError(f"the job's bundle holds {min(names & folders)!r} as file and folder")
    if total > limit_bytes:
        raise BundleError(
            f"the job's bundle unpacks to {_megabytes(total)}, more than {_megabytes(limit_bytes)}"
        )


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o444), "wb") as file:
        file.write(content)


def load_unpacked(folder: Path, entry: str) -> Job:
    """The job of an unpacked bundle; `folder` goes first on `sys.path` and stays there.

    The working directory is the caller's to set. Raises `BundleError` for a module or a file that
    the bundle lacks, with what to add to the job, and `JobImportError` for any other exception.
    """
    module, separator, attribute = entry.partition(":")
    if not (module and separator and attribute):
        raise BundleError(f"the bundle's entry is {entry!r}; expected module:attribute")
    return import_job(Path(os.path.abspath(folder)), module, attribute)
