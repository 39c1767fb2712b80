"""What a process holds, as the kernel tells it."""

from __future__ import annotations

from pathlib import Path

import pytest

from funcpipe.worker import memory
from funcpipe.worker.memory import forget_peak, peak_bytes, resident_bytes

STATUS = """Name:\tpython
VmHWM:\t  500000 kB
VmRSS:\t  300000 kB
RssAnon:\t  290000 kB
RssFile:\t   10000 kB
Threads:\t1
"""


@pytest.fixture
def status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "status"
    path.write_text(STATUS)
    monkeypatch.setattr(memory, "_STATUS", path)


@pytest.mark.usefixtures("status")
@pytest.mark.parametrize(("unseen_kb", "more_kb"), [(0, 0), (9_000, 0), (78_000, 68_000)])
def test_files_that_do_not_show_are_counted_up_to_what_the_parent_holds(
    unseen_kb: int, more_kb: int
) -> None:
    unseen = unseen_kb * 1024
    assert resident_bytes(unseen_file_bytes=unseen) == (300_000 + more_kb) * 1024
    assert peak_bytes(unseen_file_bytes=unseen) == (500_000 + more_kb) * 1024


def test_a_peak_can_be_forgotten() -> None:
    held = bytearray(64 << 20)
    held[::4096] = bytes([1]) * len(held[::4096])
    high = peak_bytes()
    del held
    forget_peak()
    assert peak_bytes() <= high - (32 << 20)


def test_where_the_kernel_does_not_let_it_the_peak_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_CLEAR_REFS", tmp_path / "absent" / "clear_refs")
    before = peak_bytes()
    forget_peak()
    assert peak_bytes() >= before
