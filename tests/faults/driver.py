"""A driver that stays and trains one job after the other, as a notebook would.

Each line of standard input is a request, each line of standard output an event or the outcome.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping
from typing import Any

import funcpipe as fp
from funcpipe.errors import FuncpipeError, describe


def say(line: Mapping[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def outcome_of(request: Mapping[str, Any]) -> dict[str, Any]:
    """What `fp.train` did; a traceback only of what is no `FuncpipeError`."""
    os.environ |= request["environment"]
    os.environ["TMPDIR"] = tempfile.tempdir = request["tmp"]
    os.chdir(request["cwd"])
    before = threads_and_files()
    try:
        options = {"emulate": "none", **request["options"]}
        summary = fp.train(request["job"], on_event=lambda event: say({"event": event}), **options)
        told = {"status": summary.status, "losses": list(summary.losses)}
    except FuncpipeError as error:
        told = {"error": describe(error), "text": str(error)}
    except BaseException:  # noqa: BLE001 - the test that reads it fails
        told = {"traceback": traceback.format_exc()}
    at = time.time()
    os.chdir("/")
    return {**told, "at": at, "kept": kept(before)}


def threads_and_files() -> tuple[set[str], set[str]]:
    files = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            files.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
        except OSError:
            continue  # the listing's own
    return {thread.name for thread in threading.enumerate()}, files


def kept(before: tuple[set[str], set[str]]) -> list[str]:
    """Threads and open files that the run has left in this process."""
    gc.collect()  # of the SDK's clients, which refer to themselves
    threads, files = threads_and_files()
    return sorted(threads - before[0]) + sorted(files - before[1])


def main() -> int:
    say({"ready": True})
    for line in sys.stdin:
        say({"outcome": outcome_of(json.loads(line))})
    return 0


if __name__ == "__main__":
    sys.exit(main())
