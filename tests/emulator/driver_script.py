"""A driver for tests: a store server and three functions, then whatever the test does to it.

Arguments: the kind of server (or none), a folder for all that is made, what to do next (wait,
leave, raise), and perhaps a platform whose limits the functions have.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from funcpipe.emulator.host import LocalHost
from funcpipe.emulator.server import start_server
from funcpipe.partitioner.platform import load_platform


def main() -> None:
    kind, folder, then = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    platform = sys.argv[4] if len(sys.argv) > 4 else "none"
    server = None if kind == "none" else start_server(kind, folder=folder / "store")
    marks = folder / "marks"
    marks.mkdir()
    host = LocalHost(
        platform=load_platform(platform, changes={"time.cold_start_s": "0"}),
        log_folder=folder / "logs",
        credentials=None if server is None else server.credentials,
        writable=[marks],
        work_folder=folder / "work",
        entry="fake_function",
        environment={"PYTHONPATH": str(Path(__file__).parent)},
    )
    started = [marks / f"started-{number}" for number in range(3)]
    for number, path in enumerate(started):
        task = {"do": "spawn", "mark": str(path), "deaf": number == 0}
        host.start(json.dumps(task).encode(), name=f"stage-{number}")
    while not all(path.exists() for path in started):
        time.sleep(0.02)
    print(json.dumps(server.ports if server else {}), flush=True)
    if then == "wait":
        time.sleep(600)
    if then == "raise":
        raise RuntimeError("as planned")


if __name__ == "__main__":
    main()
