"""One training step of the character model, taken apart: whose is the time?

Trains examples/charlm on 2 stages x 2 replicas over a local S3 server, reads the workers'
timelines and follows each worker's critical path through each step (`funcpipe.report.critical`
defines it). At every moment of that path the worker computes for the user, moves bytes, waits for
a peer, or does something of funcpipe's own: `overhead_share` is the last one's share, the median
over workers and steps. Then it measures imports, and the memory that sending takes.

The last line is JSON. Nothing fails for being slow: the machine's load is printed beside.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import funcpipe as fp
from funcpipe.emulator.server import KINDS, start_server
from funcpipe.locate import load_job
from funcpipe.passes import passes, program_of
from funcpipe.report.critical import Ran, Shares, StepPath, late_arrivals, step_paths, total
from funcpipe.schedule.action import Action
from funcpipe.schedule.program import Shape

sys.path.insert(0, str(Path(__file__).parent))
from imports import ImportCost, measure_imports
from wire_memory import measure_wire

ROOT = Path(__file__).resolve().parents[2]
WIRE_BYTES = 256 << 20
AIMS = {
    "overhead_share": 0.05,
    "own_import_s": 0.15,
    "import_s_over_torch": 0.5,
    "wire_peak_ratio": 1.1,
}
NOTE = """\
Seconds of one step on the worker's critical path: from the end of the pass's last computation or
upload back through whatever each action had to wait for last. own: inside actions, what is neither
user code, transfer nor waiting (encoding, checking, adding gradients). gaps: from the end of what
an action depended on last to its start (handing over to its thread, and waiting for a core where
there are fewer cores than functions). overhead = (own + gaps) / step. late: the part of waiting
that came after the object was there, because one looks for it in intervals; requests in vain are
counted against it, so it is a choice, and not in the overhead.\
"""


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A worker's measured steps, and the late part of waiting in each of them."""

    stage: int
    replica: int
    paths: list[StepPath]
    late_s: list[float]
    gets: int
    misses: int

    @property
    def name(self) -> str:
        return f"stage {self.stage} replica {self.replica}"


def main() -> None:
    options = _options()
    os.environ["OMP_NUM_THREADS"] = "1"
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="funcpipe-bench-") as folder:
        run = Path(folder) / "run"
        job, size = str(ROOT / options.job), options.micro_batch_size
        print(f"{options.job}: {options.steps} steps on 2 stages x 2 replicas ...", flush=True)
        summary = fp.train(
            job,
            stages=2,
            replicas=2,
            micro_batch_size=size,
            schedule=options.schedule,
            store=options.store,
            emulate="none",
            steps=options.steps,
            run_dir=run,
        )
        timelines = json.loads((run / "timeline.json").read_text(encoding="utf-8"))
        workers = list(read_workers(job, timelines, options.warm_up))
    print(table(workers))
    print("imports and memory ...", flush=True)
    imports = measure_imports()
    with start_server(options.store) as server:
        wire = measure_wire(server, WIRE_BYTES)
    result = figures(workers, imports, wire)
    print(aims(result, imports))
    result |= {
        "store": summary.store,
        "steps": len(workers[0].paths),
        "warm_up_steps": options.warm_up,
        "cores": os.cpu_count(),
        "load_before": round(load, 2),
        "load_after": round(os.getloadavg()[0], 2),
    }
    print(json.dumps(result))


def read_workers(job: str, timelines: Mapping[str, Any], warm_up: int) -> Iterator[Worker]:
    """The critical paths of all steps but the first `warm_up`."""
    shape = Shape(**{name: _frozen(value) for name, value in timelines["shape"].items()})
    stream = list(passes(load_job(job).job, **timelines["run"]))
    ran = {
        (one["stage"], one["replica"]): (one["began_at"], [Ran.of(row) for row in one["rows"]])
        for one in timelines["workers"]
    }
    late = late_arrivals(ran)
    for (stage, replica), (_, rows) in ran.items():
        programs = {
            one.index: program_of(shape, one, stage=stage, replica=replica) for one in stream
        }
        paths = [one for one in step_paths(rows, programs) if one.pass_index >= warm_up]
        measured = {one.pass_index for one in paths}
        received = [
            one
            for one in rows
            if one.pass_index in measured and one.action.kind.value.startswith("RECV")
        ]
        yield Worker(
            stage=stage,
            replica=replica,
            paths=paths,
            late_s=[_late(path, late[stage, replica]) for path in paths],
            gets=len(received),
            misses=sum(one.misses for one in received),
        )


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _late(path: StepPath, late: Mapping[tuple[int, Action], float]) -> float:
    """The late part of the waiting that lies on the path."""
    return sum(
        min(link.ran.wait_s, late.get((link.ran.pass_index, link.ran.action), 0.0))
        for link in path.links
    )


def table(workers: list[Worker]) -> str:
    """Milliseconds of a step: by function, and by kind of action for each stage."""
    lines = [_row("milliseconds of a step", HEADS), "-" * WIDTH]
    for one in workers:
        shares, count = total(path.shares for path in one.paths), len(one.paths)
        lines.append(_numbers(one.name, shares, count, sum(one.late_s)))
    lines.append("")
    for stage in sorted({one.stage for one in workers}):
        peers = [one for one in workers if one.stage == stage]
        count = sum(len(one.paths) for one in peers)
        kinds: dict[str, Shares] = {}
        for path in (path for one in peers for path in one.paths):
            for kind, shares in path.by_kind().items():
                kinds[kind.value] = kinds.get(kind.value, Shares()) + shares
        for kind, shares in sorted(kinds.items(), key=lambda item: -item[1].total_s):
            lines.append(_numbers(f"stage {stage}  {kind}", shares, count))
    return "\n".join([*lines, "", NOTE])


HEADS = ("total", "user", "transfer", "waiting", "own", "gaps", "overhead", "late")
NAME_WIDTH, COLUMN = 24, 9
WIDTH = NAME_WIDTH + COLUMN * len(HEADS)


def _row(name: str, cells: Iterable[str]) -> str:
    return name.ljust(NAME_WIDTH) + "".join(cell.rjust(COLUMN) for cell in cells)


def _numbers(name: str, shares: Shares, count: int, late_s: float | None = None) -> str:
    seconds = (
        shares.total_s,
        shares.user_s,
        shares.transfer_s,
        shares.wait_s,
        shares.own_s,
        shares.gap_s,
    )
    cells = [f"{1000 * value / count:.1f}" for value in seconds]
    cells.append(f"{100 * shares.overhead_share:.1f} %")
    cells.append("" if late_s is None else f"{1000 * late_s / count:.1f}")
    return _row(name, cells)


def figures(
    workers: list[Worker], imports: ImportCost, wire: Mapping[str, float]
) -> dict[str, Any]:
    paths = [path for one in workers for path in one.paths]
    late = [
        (path.shares.overhead_s + late_s) / path.shares.total_s
        for one in workers
        for path, late_s in zip(one.paths, one.late_s, strict=True)
    ]
    gets = sum(one.gets for one in workers)
    return {
        "overhead_share": round(statistics.median(p.shares.overhead_share for p in paths), 4),
        "own_import_s": round(imports.own_s, 3),
        "import_s_over_torch": round(imports.over_torch_s, 3),
        "wire_peak_ratio": round(wire["send"], 4),
        "wire_receive_ratio": round(wire["receive"], 4),
        "overhead_and_late_share": round(statistics.median(late), 4),
        "import_cpu_s_over_torch": round(imports.over_torch_cpu_s, 3),
        "torch_compiler_import_s": round(imports.dynamo_s, 3),
        "torch_compiler_import_mb": round(imports.dynamo_bytes / 1e6),
        "step_s": round(statistics.median(path.end_s - path.begin_s for path in paths), 4),
        "misses_per_get": round(sum(one.misses for one in workers) / gets, 2),
    }


def aims(result: Mapping[str, Any], imports: ImportCost) -> str:
    """Each figure beside what it should stay under."""
    lines = [
        f"{name.ljust(NAME_WIDTH)}{result[name]:9.3f}   aim: under {aim:g}"
        f"{'' if result[name] < aim else '   MISSED'}"
        for name, aim in AIMS.items()
    ]
    lines.append(
        f"torch's own optimisers import its compiler at first use: {imports.dynamo_s:.2f} s and "
        f"{imports.dynamo_bytes / 1e6:.0f} MB on top, in plain PyTorch too"
    )
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--job", default="examples/charlm/job.py")
    parser.add_argument("--micro-batch-size", type=int, default=8)
    parser.add_argument("--schedule", default="gpipe")
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--warm-up", type=int, default=4, help="steps left out at the beginning")
    parser.add_argument("--store", default="auto", choices=["auto", *KINDS])
    options = parser.parse_args()
    if not 1 <= options.warm_up < options.steps:
        parser.error("--warm-up must be at least 1 and less than --steps")
    return options


if __name__ == "__main__":
    main()
