"""What can be said about a function that ended without saying anything itself."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import TypeAlias

from funcpipe.errors import FuncpipeError, FunctionLost, OutOfMemory, TimeLimitExceeded, from_log

__all__ = ["BROKEN_LIMITS", "Exited", "Place", "lost"]

Place: TypeAlias = tuple[int, int]
"""Stage and replica."""

# What a platform's limits are called when they are broken, and what helps.
_LIMITS: dict[str, tuple[type[FuncpipeError], str, str]] = {
    "out-of-memory": (
        OutOfMemory,
        "ran out of memory",
        "Give this stage more memory (--memory-mb), fewer layers, or smaller micro-batches",
    ),
    "time-limit": (
        TimeLimitExceeded,
        "exceeded the time limit",
        "Train fewer steps in one run, or choose larger functions",
    ),
}
BROKEN_LIMITS = frozenset(_LIMITS)
_LAST_LINES = 10
_BUNDLE = "/bundle/"  # where a function unpacks the user's code
# What Python's faulthandler prints when a signal such as SIGSEGV ends the process.
_CRASH = re.compile(r"^Fatal Python error: ", re.MULTILINE)
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>\S+)', re.MULTILINE)


@dataclass(frozen=True)
class Exited:
    """A function ended; `reason` as in `funcpipe.driver.host.Exit`."""

    place: Place
    reason: str
    code: int | None
    log_tail: str = ""
    detail: str = ""


def lost(exited: Exited, *, progress: str) -> FuncpipeError:
    """Its own error if its log holds one, else `FunctionLost` with its last words.

    progress: how far the run had come, such as "2 of 12 steps".
    """
    stage, replica = exited.place
    if exited.reason in _LIMITS:
        kind, what, remedy = _LIMITS[exited.reason]
        return kind(
            f"the function {what}, after {progress}: {exited.detail}. {remedy}",
            stage=stage,
            replica=replica,
        )
    if (told := from_log(exited.log_tail)) is not None:
        return told.at(stage=stage, replica=replica)
    printed, where = _split_crash(exited.log_tail)
    words = "\n".join(printed.strip().splitlines()[-_LAST_LINES:])
    tail = f"; its last words:\n{words}" if words else ""
    why = f": {exited.detail}" if exited.detail else ""
    return FunctionLost(
        f"the function {_ending(exited)} without saying why, after {progress}{why}{tail}",
        stage=stage,
        replica=replica,
        where=where,
    )


def _ending(exited: Exited) -> str:
    if exited.code is None:
        return exited.reason
    if exited.code >= 0:
        return f"{exited.reason} (exit code {exited.code})"
    try:
        name = signal.Signals(-exited.code).name
    except ValueError:
        name = f"signal {-exited.code}"
    unexplained = name == "SIGKILL" and not exited.detail
    hint = ", perhaps because the machine ran out of memory," if unexplained else ""
    return f"was killed by {name}{hint}" if name == "SIGKILL" else f"crashed by {name}"


def _split_crash(log: str) -> tuple[str, str | None]:
    """What was printed before a crash, and the user's line that it happened on."""
    crash = _CRASH.search(log)
    if crash is None:
        return log, None
    printed = log[: crash.start()]
    for frame in _FRAME.finditer(log, crash.start()):
        _, bundle, file = frame["file"].rpartition(_BUNDLE)
        if bundle:
            return printed, f"{file}:{frame['line']} in {frame['name']}"
    return printed, None
