"""What is told about functions that ended without a word, or with words in their log only."""

from __future__ import annotations

import pytest

from funcpipe.driver.lost import Exited, lost
from funcpipe.errors import (
    FuncpipeError,
    FunctionLost,
    OutOfMemory,
    StoreFull,
    TimeLimitExceeded,
    from_log,
    to_log,
)

DUMP = """epoch begins
Fatal Python error: Segmentation fault

Current thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/tmp/f/funcpipe-x/bundle/net/layers.py", line 32 in forward
  File "/tmp/f/library/funcpipe/model/stage.py", line 115 in forward

Extension modules: numpy._core (total: 1)
"""


def test_an_error_that_could_not_be_stored_is_read_from_the_log() -> None:
    error = StoreFull("no space", stage=1, step=3)
    log = f"training\ncould not store the error\n{to_log(error)}\nbye"

    told = lost(Exited((1, 2), "failed", 1, log), progress="2 of 3 steps")

    assert type(told) is StoreFull
    assert (told.message, told.stage, told.replica, told.step) == ("no space", 1, 2, 3)


def test_a_long_error_still_fits_the_end_of_a_log() -> None:
    line = to_log(StoreFull("\n" * 100_000, step=3))

    assert len(line) < 2000
    assert "\n" not in line
    told = from_log(line)
    assert told is not None
    assert told.step == 3


@pytest.mark.parametrize("log", ["", "nothing here", "funcpipe error: {cut sho"])
def test_a_log_without_an_error_holds_none(log: str) -> None:
    assert from_log(log) is None


def test_a_crash_is_told_with_the_users_line_and_without_the_dump() -> None:
    told = lost(Exited((0, 1), "crashed", -11, DUMP), progress="5 of 9 steps")

    assert type(told) is FunctionLost
    assert told.message == (
        "the function crashed by SIGSEGV without saying why, after 5 of 9 steps; its last words:\n"
        "epoch begins"
    )
    assert told.where == "net/layers.py:32 in forward"


@pytest.mark.parametrize(
    ("reason", "code", "words"),
    [
        ("killed", -9, "was killed by SIGKILL, perhaps because the machine ran out of memory, "),
        ("crashed", 3, "crashed (exit code 3) "),
        ("crashed", -200, "crashed by signal 200 "),
        ("failed", None, "failed "),
    ],
)
def test_how_it_ended(reason: str, code: int | None, words: str) -> None:
    told = lost(Exited((0, 0), reason, code), progress="0 of 9 steps")

    assert told.message == f"the function {words}without saying why, after 0 of 9 steps"


def test_only_the_last_lines_of_a_log_are_told() -> None:
    log = "\n".join(str(number) for number in range(100))

    told = lost(Exited((0, 0), "failed", 1, log), progress="0 of 9 steps")

    assert told.message.partition("words:\n")[2].split() == [str(n) for n in range(90, 100)]


@pytest.mark.parametrize(
    ("reason", "kind", "words"),
    [
        (
            "out-of-memory",
            OutOfMemory,
            "ran out of memory, after 2 of 3 steps: 512 MB are not enough",
        ),
        (
            "time-limit",
            TimeLimitExceeded,
            "exceeded the time limit, after 2 of 3 steps: 512 MB are",
        ),
    ],
)
def test_a_broken_limit_is_named_whatever_the_function_had_printed(
    reason: str, kind: type[FuncpipeError], words: str
) -> None:
    log = to_log(StoreFull("a consequence"))

    told = lost(Exited((1, 0), reason, -9, log, "512 MB are not enough"), progress="2 of 3 steps")

    assert type(told) is kind
    assert words in told.message
    assert (told.stage, told.replica) == (1, 0)
