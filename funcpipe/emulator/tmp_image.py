"""File systems in files: a bounded temporary folder for one function."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from funcpipe.errors import PlatformError

__all__ = ["make_tmp_image"]

_MB = 1 << 20
_INODES_PER_MB = 16
_SYSTEM_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"


def make_tmp_image(path: Path, *, size_mb: int) -> None:
    """Make a sparse ext4 image that takes `size_mb` of files, and little more.

    What is deleted in it is given back to the file system that it lies on. Raises `PlatformError`.
    """
    if size_mb < 1:
        raise PlatformError(f"a temporary folder must have 1 MB at least, not {size_mb}")
    num_inodes = 256 + size_mb * _INODES_PER_MB
    # Beside the files: inodes of 256 bytes, bitmaps and descriptors of 128 MB groups, and the
    # blocks that ext4 holds back for itself, of which there are at most 4096.
    extra_bytes = num_inodes * 256 + (2 + size_mb // 128) * (_MB // 4)
    extra_bytes += min(size_mb * _MB // 50, 4096 * 4096)
    make = shutil.which("mkfs.ext4", path=f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}")
    if make is None:
        raise PlatformError("mkfs.ext4 is not there: install e2fsprogs")
    with path.open("wb") as file:
        file.truncate((size_mb * _MB + extra_bytes) // 4096 * 4096)
    features = "^has_journal,^resize_inode,^dir_index"
    options = ["-q", "-F", "-b", "4096", "-I", "256", "-m", "0", "-O", features]
    options += ["-E", "lazy_itable_init=0,nodiscard", "-N", str(num_inodes)]
    done = subprocess.run([make, *options, str(path)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        path.unlink()
        raise PlatformError(f"cannot make a file system in {path}: {done.stderr.strip()}")
