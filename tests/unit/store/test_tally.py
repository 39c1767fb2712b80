"""Counts in shared memory, and what is left of them when their writer is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from funcpipe.errors import ObjectMissing
from funcpipe.keys import KINDS, Run
from funcpipe.store.memory import MemoryStore
from funcpipe.store.meter import DELETE, GET, GET_MISSED, LIST, PUT, Metered, Usage
from funcpipe.store.tally import Tally
from funcpipe.store.usage import OPERATIONS

ROOT = Path(__file__).resolve().parents[3]
STEP = Run("run").attempt(1).training(3)
WRITER = """
import os, signal, sys
from funcpipe.store.memory import MemoryStore
from funcpipe.store.meter import Metered
from funcpipe.store.tally import Tally

store = Metered(MemoryStore(), Tally.on(int(sys.argv[1])))
for number in range(1000):
    store.put(f"run/a0001/t00000003/act/0.{number:05d}", b"12345")
print("counted", flush=True)
for _ in range(int(sys.stdin.readline())):
    store.get("run/a0001/t00000003/act/0.00007")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def shared() -> Iterator[int]:
    descriptor = Tally.descriptor()
    yield descriptor
    os.close(descriptor)


def test_what_is_counted_is_told_by_operation_and_kind() -> None:
    tally = Tally()
    for operation in OPERATIONS:
        for count, kind in enumerate(KINDS):
            for _ in range(count):
                tally.add_request(operation, kind)
    tally.add_up("act", 2**40)
    tally.add_down("other", 7)
    tally.add_deleted("sum", num_keys=3, num_bytes=11)

    assert tally.usage() == Usage(
        requests={(name, kind): n for name in OPERATIONS for n, kind in enumerate(KINDS) if n},
        bytes_up={"act": 2**40},
        bytes_down={"other": 7},
        deleted={"sum": 3},
        deleted_bytes={"sum": 11},
    )


def test_another_process_reads_the_counts_of_one_that_runs_and_of_one_that_was_killed(
    shared: int,
) -> None:
    # given a reader here and a writer elsewhere
    reader = Tally.on(shared)
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(shared)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[shared],
    ) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        # when the writer has counted, then it is seen here while the writer lives
        assert writer.stdout.readline() == "counted\n"
        live = Usage(requests={(PUT, "act"): 1000}, bytes_up={"act": 5000})
        assert reader.usage() == live
        # when it is killed right after counting more, then that is seen as well
        writer.stdin.write("250\n")
        writer.stdin.flush()
        assert writer.wait(timeout=60) == -signal.SIGKILL
    assert reader.usage() - live == Usage(requests={(GET, "act"): 250}, bytes_down={"act": 5 * 250})
    assert Tally.on(shared).usage() == reader.usage()


def test_a_meter_tells_its_own_counts_only_and_leaves_them_in_the_tally() -> None:
    tally = Tally()
    first = Metered(MemoryStore(), tally)
    first.put(STEP.activation(0, 0), b"1234")
    second = Metered(MemoryStore(), tally)
    with pytest.raises(ObjectMissing):
        second.get(STEP.sum(0, 0, 0))
    list(second.list(""))
    second.delete([STEP.sum(0, 0, 0)])

    assert second.counts() == Usage(
        requests={(GET_MISSED, "sum"): 1, (LIST, "other"): 1, (DELETE, "sum"): 1},
        deleted={"sum": 1},
    )
    assert tally.usage() == second.counts() + Usage(requests={(PUT, "act"): 1}, bytes_up={"act": 4})


def test_threads_lose_no_count() -> None:
    tally = Tally()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: tally.add_request(PUT, "act"), range(4000)))
    assert tally.usage().total(PUT) == 4000


def test_memory_that_cannot_hold_the_counts_is_refused(shared: int) -> None:
    with pytest.raises(ValueError, match=f"{Tally.SIZE} bytes, found one of 8"):
        Tally(bytearray(8))
    with pytest.raises(ValueError, match="read-only"):
        Tally(memoryview(bytes(Tally.SIZE)))
    os.ftruncate(shared, Tally.SIZE - 1)
    with pytest.raises(ValueError, match=f"needs {Tally.SIZE} bytes"):
        Tally.on(shared)


def test_counts_go_up_only() -> None:
    tally = Tally()
    with pytest.raises(ValueError, match="up only"):
        tally.add_up("act", -1)
    assert tally.usage() == Usage()
