"""Objects as files in a directory, for one machine or a shared file system."""

from __future__ import annotations

import errno
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from funcpipe.errors import (
    BucketMissing,
    ObjectExists,
    ObjectMissing,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from funcpipe.store.base import Data, Pace
from funcpipe.store.buffers import (
    aligned_buffer,
    check_key,
    check_prefix,
    check_range,
    is_key,
    pieces,
)
from funcpipe.store.wait import wait_for

__all__ = ["DirectoryStore"]

_PARTIAL = "~partial"  # "~" is in no key, so no key can name, list or replace what lies here
_LEFTOVER_AGE_S = 3600.0
_PUBLISH_TRIES = 100
_READ_BYTES = 64 << 20
_FULL = {errno.ENOSPC, errno.EDQUOT}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}


class DirectoryStore:
    """Object ``a/b`` is the file ``ROOT/a/b``.

    It is written without a name, where the file system can do that, else aside, and published by
    one hard link or rename: a reader sees all of it or nothing. Of a writer that is killed nothing
    is left, or something aside that nobody sees and that is removed after an hour.
    A key and a key below it (``k`` and ``k/x``) cannot both be held: `StoreError`.
    """

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root).expanduser().absolute()
        self._partial = self._root / _PARTIAL
        try:
            self._partial.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise BucketMissing(
                f"cannot keep objects in {str(self._root)!r}: it is not a directory; "
                "name one that exists or can be made"
            ) from error
        except OSError as error:
            raise self._translated(error, "open", "") from error
        self._nameless = _can_be_nameless(self._partial)
        self._sweep()

    def put(
        self, key: str, data: Data, *, if_absent: bool = False, pace: Pace | None = None
    ) -> None:
        check_key(key)
        views = pieces(data)
        aside = self._partial / uuid.uuid4().hex
        try:
            descriptor = self._open_draft(aside)
            try:
                _write(descriptor, views, pace)
                self._publish(descriptor, aside, key, if_absent)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._translated(error, "put", key) from error
        finally:
            aside.unlink(missing_ok=True)

    def get(
        self, key: str, *, start: int = 0, stop: int | None = None, pace: Pace | None = None
    ) -> memoryview:
        check_key(key)
        check_range(start, stop)
        try:
            with open(self._root / key, "rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                end = size if stop is None else min(stop, size)
                body = aligned_buffer(max(end - start, 0))
                file.seek(start)
                read = _read(file.fileno(), body, pace)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise ObjectMissing(f"no object {key!r} in directory {str(self._root)!r}") from None
        except OSError as error:
            raise self._translated(error, "get", key) from error
        if read != body.nbytes:
            raise StoreUnavailable(
                f"object {key!r} in directory {str(self._root)!r} ended after {read} of "
                f"{body.nbytes} bytes: something else changes files there"
            )
        return body

    def wait(self, key: str, *, deadline_s: float) -> memoryview:
        return wait_for(self, key, deadline_s=deadline_s).data

    def delete(self, keys: Iterable[str]) -> None:
        for key in [check_key(key) for key in keys]:
            path = self._root / key
            try:
                path.unlink()
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                if path.is_dir():
                    continue
                raise self._translated(error, "delete", key) from error
            self._prune(path.parent)

    def list(self, prefix: str) -> Iterator[str]:
        check_prefix(prefix)
        return self._walk(prefix)

    def close(self) -> None:
        """Nothing to release."""

    def _walk(self, prefix: str) -> Iterator[str]:
        top = self._root / prefix.rpartition("/")[0]
        for folder, folders, names in os.walk(top):
            folders[:] = [name for name in folders if name != _PARTIAL]
            relative = os.path.relpath(folder, self._root)
            for name in names:
                key = name if relative == "." else f"{relative}/{name}"
                if key.startswith(prefix) and is_key(key):
                    yield key

    def _open_draft(self, aside: Path) -> int:
        """A file to write to: at `aside`, or better nowhere."""
        if self._nameless:
            return os.open(self._partial, os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o666)
        return os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def _publish(self, descriptor: int, aside: Path, key: str, if_absent: bool) -> None:
        path = self._root / key
        for _ in range(_PUBLISH_TRIES):
            try:
                if not self._nameless:
                    (os.link if if_absent else os.replace)(aside, path)
                elif if_absent or not path.exists():
                    _link(descriptor, path)
                else:
                    _link(descriptor, aside)
                    os.replace(aside, path)
            except FileNotFoundError:
                self._make_folder(path.parent)
            except FileExistsError:
                if path.is_dir():
                    raise
                if not if_absent:
                    continue  # another writer was faster: it is to be replaced
                raise ObjectExists(
                    f"object {key!r} is already in directory {str(self._root)!r}"
                ) from None
            else:
                return
        raise StoreUnavailable(
            f"cannot publish {key!r} in {str(self._root)!r}: its folder vanishes again and again"
        )

    def _make_folder(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError:
            return  # a deleter has just removed an empty parent: the caller tries again
        except FileExistsError:
            if folder.exists() and not folder.is_dir():
                raise

    def _prune(self, folder: Path) -> None:
        """Remove folders that have become empty, so that a long run leaves no tree of them."""
        while folder != self._root:
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent

    def _sweep(self) -> None:
        """Remove what writers that were killed long ago left aside."""
        oldest_s = time.time() - _LEFTOVER_AGE_S
        for path in self._partial.iterdir():
            try:
                if path.stat().st_mtime < oldest_s:
                    path.unlink()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise self._translated(error, "open", "") from error

    def _translated(self, error: OSError, operation: str, key: str) -> StoreError:
        what = f"{operation} of {key!r}" if key else operation
        place = f"{what} in directory {str(self._root)!r} failed: {error.strerror}"
        if error.errno in _FULL:
            return StoreFull(f"{place}; free some space, or name a directory on a larger disk")
        if error.errno in _DENIED:
            return StoreDenied(f"{place}; make the directory readable and writable for this user")
        if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.EEXIST):
            return StoreError(
                f"{place}; a directory store cannot hold both a key and a key below it"
            )
        return StoreUnavailable(f"{place}; check the disk")


def _can_be_nameless(folder: Path) -> bool:
    """Whether a file in `folder` can be written first and named when it is whole."""
    name = folder / uuid.uuid4().hex
    try:
        descriptor = os.open(folder, os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o666)
    except (OSError, AttributeError):
        return False
    try:
        _link(descriptor, name)
    except OSError:
        return False
    finally:
        os.close(descriptor)
        name.unlink(missing_ok=True)
    return True


def _link(descriptor: int, path: Path) -> None:
    """Give an open file without a name that one; `FileExistsError` if it is taken."""
    # The folder's descriptor is of no use beside an absolute path, but makes links be followed.
    os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor, follow_symlinks=True)


def _write(descriptor: int, views: list[memoryview], pace: Pace | None) -> None:
    for view in views:
        begin = 0
        while begin < view.nbytes:
            part = view[begin:] if pace is None else view[begin : begin + pace.chunk_bytes]
            if pace is not None:
                pace(part.nbytes)
            _write_all(descriptor, part)
            begin += part.nbytes


def _write_all(descriptor: int, part: memoryview) -> None:
    while part.nbytes:
        part = part[os.write(descriptor, part) :]


def _read(descriptor: int, body: memoryview, pace: Pace | None) -> int:
    """Fill `body` from the descriptor's position; returns how many bytes there were."""
    chunk_bytes = _READ_BYTES if pace is None else pace.chunk_bytes
    done = 0
    while done < body.nbytes:
        num_bytes = os.readv(descriptor, [body[done : done + chunk_bytes]])
        if not num_bytes:
            break
        if pace is not None:
            pace(num_bytes)
        done += num_bytes
    return done
