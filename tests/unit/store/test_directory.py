from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from funcpipe.errors import BucketMissing, ObjectExists, ObjectMissing, StoreError
from funcpipe.store import directory
from funcpipe.store.directory import DirectoryStore


def test_objects_are_plain_files(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "made" / "here")

    store.put("run/final/l00000.safetensors", b"weights")

    path = tmp_path / "made" / "here" / "run" / "final" / "l00000.safetensors"
    assert path.read_bytes() == b"weights"


def test_a_place_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(BucketMissing, match="not a directory"):
            DirectoryStore(root)


@pytest.fixture(params=[True, False], ids=["nameless", "aside"])
def nameless(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the file system lets files be written before they have a name."""
    if not request.param:
        monkeypatch.setattr(directory, "_can_be_nameless", lambda folder: False)
    return bool(request.param)


def test_puts_replace_or_refuse(nameless: bool, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)

    store.put("a/k", b"first", if_absent=True)
    with pytest.raises(ObjectExists):
        store.put("a/k", b"second", if_absent=True)
    assert bytes(store.get("a/k")) == b"first"
    store.put("a/k", b"third")

    assert bytes(store.get("a/k")) == b"third"
    assert list((tmp_path / "~partial").iterdir()) == []
    with pytest.raises(StoreError, match="both a key and a key below it"):
        store.put("a", b"x")
    assert list((tmp_path / "~partial").iterdir()) == []


def test_a_killed_writer_leaves_nothing_that_is_seen(nameless: bool, tmp_path: Path) -> None:
    script = """
import sys
from funcpipe.store import directory
from funcpipe.store.directory import DirectoryStore
if sys.argv[2] == "False":
    directory._can_be_nameless = lambda folder: False

class Stall:
    chunk_bytes = 10
    calls = 0
    def __call__(self, num_bytes):
        self.calls += 1
        if self.calls == 3:
            print("half way", flush=True)
            sys.stdin.read()

DirectoryStore(sys.argv[1]).put("k", bytes(100), pace=Stall())
"""
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), str(nameless)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"half way\n"
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    store = DirectoryStore(tmp_path)

    leftovers = [path.stat().st_size for path in (tmp_path / "~partial").iterdir()]
    assert leftovers == ([] if nameless else [20])
    assert list(store.list("")) == []
    with pytest.raises(ObjectMissing):
        store.get("k")
    store.put("k", b"whole", if_absent=True)
    assert bytes(store.get("k")) == b"whole"


def test_old_leftovers_are_removed_when_the_store_is_opened(tmp_path: Path) -> None:
    DirectoryStore(tmp_path)
    old, new = tmp_path / "~partial" / "old", tmp_path / "~partial" / "new"
    old.write_bytes(b"x")
    new.write_bytes(b"x")
    os.utime(old, (time.time() - 7200, time.time() - 7200))

    DirectoryStore(tmp_path)

    assert list((tmp_path / "~partial").iterdir()) == [new]


def test_a_failed_put_leaves_nothing_aside(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    store.put("k", b"taken")

    with pytest.raises(ObjectExists):
        store.put("k", b"other", if_absent=True)
    with pytest.raises(StoreError, match="both a key and a key below it"):
        store.put("k/x", b"below")

    assert list((tmp_path / "~partial").iterdir()) == []


@pytest.mark.parametrize("if_absent", [False, True])
def test_a_key_above_a_key_is_refused_clearly(tmp_path: Path, if_absent: bool) -> None:
    store = DirectoryStore(tmp_path)
    store.put("k/x", b"below")

    with pytest.raises(StoreError, match="both a key and a key below it"):
        store.put("k", b"above", if_absent=if_absent)
    with pytest.raises(ObjectMissing):
        store.get("k")
    store.delete(["k"])
    assert bytes(store.get("k/x")) == b"below"


def test_emptied_folders_are_removed(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    store.put("run/a0001/t00000001/act/0.00000", b"")
    store.put("run/control/000001.json", b"")

    store.delete(["run/a0001/t00000001/act/0.00000"])

    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["control"]


def test_putting_and_removing_below_one_folder_at_once(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    failures: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for _ in range(300):
                store.put(f"a/b/{name}", b"x")
                store.delete([f"a/b/{name}"])
        except StoreError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in ("one", "two", "three")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert list(store.list("")) == []


def test_other_files_in_the_directory_are_not_objects(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    (tmp_path / "a file.txt").write_bytes(b"")
    (tmp_path / "plain").write_bytes(b"by hand")

    assert list(store.list("")) == ["plain"]
