"""What importing costs a function, each time measured in a process of its own."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from dataclasses import dataclass

REPEATS = 5

# What a function imports; a client of S3 included, since making the first one loads much more.
NEEDED = """
import funcpipe.worker.entry
from funcpipe.store.credentials import Credentials
from funcpipe.store.open import open_store
access = Credentials(access_key="AKEXAMPLE", secret_key="secret")
open_store("s3://bucket/x", endpoint="http://127.0.0.1:9", region="us-east-1", credentials=access)
"""

LIST_FOREIGN = f"""{NEEDED}
import json, sys
print(json.dumps([name for name in sys.modules if name.partition(".")[0] != "funcpipe"]))
"""

TIME_OWN = """
import contextlib, importlib, json, sys, time
for name in json.load(sys.stdin):
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
assert not any(name.partition(".")[0] == "funcpipe" for name in sys.modules)
began = time.perf_counter()
import funcpipe.worker.entry
import funcpipe.store.s3
print(json.dumps([time.perf_counter() - began]))
"""

TIME_OVER_TORCH = f"""
import json, time
import torch
from pathlib import Path
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
cpu = time.process_time()
times = [time.perf_counter()]
{NEEDED}
times.append(time.perf_counter())
cpu = time.process_time() - cpu
before = resident()
import torch._dynamo
times.append(time.perf_counter())
print(json.dumps([times[1] - times[0], cpu, times[2] - times[1], resident() - before]))
"""


@dataclass(frozen=True, kw_only=True)
class ImportCost:
    """Medians.

    own_s: funcpipe's own modules, everything else that they need being there. over_torch_s: all
    that a function imports beyond torch, and over_torch_cpu_s what it takes of a core, which shows
    how much of it is the machine's other load. dynamo_s, dynamo_bytes: torch's compiler, which
    torch's own optimisers import at first use, in plain PyTorch too.
    """

    own_s: float
    over_torch_s: float
    over_torch_cpu_s: float
    dynamo_s: float
    dynamo_bytes: int


def measure_imports(repeats: int = REPEATS) -> ImportCost:
    foreign = _python(LIST_FOREIGN, "")
    own = [_python(TIME_OWN, json.dumps(foreign))[0] for _ in range(repeats)]
    rows = [_python(TIME_OVER_TORCH, "") for _ in range(repeats)]
    over_torch, cpu, dynamo, dynamo_bytes = (
        statistics.median(column) for column in zip(*rows, strict=True)
    )
    return ImportCost(
        own_s=statistics.median(own),
        over_torch_s=over_torch,
        over_torch_cpu_s=cpu,
        dynamo_s=dynamo,
        dynamo_bytes=int(dynamo_bytes),
    )


def _python(code: str, text: str) -> list:
    done = subprocess.run(
        [sys.executable, "-c", code], input=text, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout)
