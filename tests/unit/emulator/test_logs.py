from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from funcpipe.emulator.logs import BoundedLog


@settings(max_examples=30, deadline=None)
@given(parts=st.lists(st.binary(max_size=60), max_size=20), limit=st.integers(2, 64))
def test_a_bounded_log_keeps_the_newest_bytes(parts: list[bytes], limit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = BoundedLog(Path(folder) / "log", limit_bytes=limit)

        for part in parts:
            log.write(part)
        log.close()

        older = Path(folder) / "log.1"
        kept = (older.read_bytes() if older.exists() else b"") + log.path.read_bytes()
    written = b"".join(parts)
    assert written.endswith(kept)
    assert min(len(written), limit // 2) <= len(kept) <= limit


def test_the_tail_spans_both_files(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "one.log", limit_bytes=20)
    log.write(b"0123456789abcdefg")
    log.close()

    assert log.tail(12) == "56789abcdefg"
    assert log.tail(3) == "efg"
