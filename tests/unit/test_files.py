"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from funcpipe.files import mode_of, replacing


def test_a_file_is_there_when_the_block_has_ended_and_not_before(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with replacing(path, mode=0o640) as partial:
        partial.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_block_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def interrupted() -> None:
        with replacing(path) as partial:
            partial.write_text("ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_replaced_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(OSError, match="folder"), replacing(folder):
        pass
    assert list(tmp_path.iterdir()) == [folder]


def test_permissions_are_those_of_the_file_or_of_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    mask = os.umask(0o027)
    try:
        assert mode_of(path) == 0o640
    finally:
        os.umask(mask)
    path.touch(0o600)
    assert mode_of(path) == 0o600
