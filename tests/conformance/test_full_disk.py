"""A disk that is really full: a small tmpfs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from funcpipe.errors import StoreFull, StoreUnavailable
from funcpipe.store.base import PacedStore
from funcpipe.store.directory import DirectoryStore
from funcpipe.store.open import open_store
from funcpipe.store.retry import RetryPolicy

from .servers import running, why_not

NOISE = np.random.default_rng(0).bytes(1 << 20)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mounts a disk of so many MiB."""
    with ExitStack() as stack:

        def mount(mebibytes: int) -> Path:
            folder = tmp_path / "disk"
            folder.mkdir()
            answer = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(folder)],
                capture_output=True,
                text=True,
                check=False,
            )
            if answer.returncode:
                pytest.skip(f"cannot mount a small disk here: {answer.stderr.strip()}")
            stack.callback(subprocess.run, ["umount", "-l", str(folder)], check=True)
            return folder

        if os.geteuid():
            pytest.skip("only root can mount a small disk")
        yield mount


def test_a_directory_on_a_full_disk(small_disk: Callable[[int], Path]) -> None:
    folder = small_disk(4)
    store = DirectoryStore(folder)
    store.put("first", NOISE)

    with pytest.raises(StoreFull, match=r"'second'.*free some space"):
        store.put("second", [NOISE] * 4)

    assert list(store.list("")) == ["first"]
    assert list((folder / "~partial").iterdir()) == []
    store.put("third", NOISE)
    assert bytes(store.get("first")) == NOISE


def fill(store: PacedStore) -> None:
    for number in range(30):
        store.put(f"k/{number}", [NOISE] * 4)


@pytest.mark.server
@pytest.mark.skipif(why_not("seaweedfs") is not None, reason=str(why_not("seaweedfs")))
def test_seaweedfs_says_no_more_than_that_it_failed(small_disk: Callable[[int], Path]) -> None:
    with running("seaweedfs", small_disk(64)) as server:
        store = open_store(
            server.url,
            endpoint=server.endpoint,
            credentials=server.credentials,
            retries=RetryPolicy(tries=2, first_s=0.01),
        )

        with pytest.raises(StoreUnavailable, match=r"disk is not full.*tried 2 times"):
            fill(store)

        assert bytes(store.get("k/0", stop=1 << 20)) == NOISE
