"""A function for tests: the real entry point around a worker that does as the payload says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any


def work(payload: dict[str, Any], context: FakeContext | None = None) -> int:
    if payload.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    match payload["do"]:
        case "exit":
            print(payload.get("text", ""), flush=True)
            return int(payload["code"])
        case "signal":
            os.kill(os.getpid(), payload["number"])
        case "raise":
            raise RuntimeError(payload["text"])
        case "print":
            for number in range(payload["num_lines"]):
                print(f"line {number:09d}")
            return 0
        case "show":
            seen = {"environment": dict(os.environ), "folder": os.getcwd(), "path": sys.path}
            seen |= {"stdin": sys.stdin.read(), "session": os.getsid(0) == os.getpid()}
            seen |= {"funcpipe": os.path.realpath(str(sys.modules["funcpipe"].__file__))}
            Path(payload["to"]).write_text(json.dumps(seen))
            return 0
        case "context":
            assert context is not None
            pid = os.getpid()
            print(json.dumps([pid, payload["value"], context.surroundings, context.meter]))
            return 0
        case "spawn":
            child = subprocess.Popen(["sleep", "600"])
            draft = Path(payload["mark"] + ".new")
            draft.write_text(str(child.pid))
            draft.rename(payload["mark"])
            time.sleep(payload.get("seconds", 600))
            return 0
    time.sleep(600)
    return 0


class FakeContext:
    """Keeps what a platform told the function."""

    def __init__(self, surroundings: dict[str, Any], meter: int | None) -> None:
        self.surroundings = surroundings
        self.meter = meter

    @staticmethod
    def from_dict(data: dict[str, Any], *, meter: int | None) -> FakeContext:
        return FakeContext(data, meter)


def stub(name: str, **contents: object) -> None:
    module = types.ModuleType(name)
    vars(module).update(contents)
    sys.modules[name] = module


stub("funcpipe.worker", __path__=[])
stub("funcpipe.worker.entry", main=work)
stub("funcpipe.worker.context", Context=FakeContext)

if __name__ == "__main__":
    from funcpipe.functions import local

    sys.exit(local.main())
