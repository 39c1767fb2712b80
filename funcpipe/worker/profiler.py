"""A function that measures layers instead of training them: what `ProfileTask` asks for.

It loads its layers and runs them as a function in training does, through the same code, and
leaves what it has measured as JSON under `keys.Run.profile_result`.
"""

from __future__ import annotations

import json
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from funcpipe.errors import FuncpipeError, OutOfMemory, StoreError, describe, to_log
from funcpipe.job import Job
from funcpipe.model.build import build_data
from funcpipe.model.sampling import Fetcher
from funcpipe.model.stage import Stage
from funcpipe.model.weights import load_layers
from funcpipe.profiletask import ProfileTask
from funcpipe.store.meter import Metered
from funcpipe.store.shape import Shaped
from funcpipe.usercode import user_code
from funcpipe.worker.build import BuiltStage, fetch_bundle
from funcpipe.worker.context import Context
from funcpipe.worker.memory import base_bytes, resident_bytes
from funcpipe.worker.profiler_bytes import measure_bytes
from funcpipe.worker.profiler_passes import Passes, measure_times
from funcpipe.worker.profiler_transport import measure_transport
from funcpipe.worker.reuse import clean_process

__all__ = ["FORMAT", "main", "profile"]

FORMAT = 1
LANES_BYTES = 24 << 20
"""What a function in training holds beside: threads of its lanes, their connections and arenas.

In runs of four large linear layers, 13 to 20 MB were held that nothing else explained.
"""


def main(payload: Mapping[str, Any], context: Context = Context()) -> int:  # noqa: B008 - frozen
    """Run one such function; its exit code: 0 done, 1 failed and said why.

    As `worker.entry.main`: after 0 the process may run another function, after 1 it must end.
    """
    try:
        task = ProfileTask.from_dict(payload)
        opened = task.store.open(clock=context.clock)
    except FuncpipeError as error:
        print(error, flush=True)
        return 1
    with tempfile.TemporaryDirectory(prefix="funcpipe-") as folder, clean_process(Path(folder)):
        if context.threads is not None:
            torch.set_num_threads(context.threads)
        link = None if context.link is None else context.link.open(context.clock)
        shaped = opened if link is None else Shaped(opened, link)
        store = Metered(shaped, context.tally, clock=context.clock)
        try:
            result = profile(task, store, Path(folder) / "bundle", context)
            store.put(task.run.profile_result(task.token), json.dumps(result).encode())
        except (FuncpipeError, MemoryError) as error:
            _tell(task, store, error)
            return 1
        store.close()
    return 0


def _tell(task: ProfileTask, store: Metered, error: FuncpipeError | MemoryError) -> None:
    traceback.print_exception(error)
    if isinstance(error, MemoryError):
        error = OutOfMemory(f"out of memory: {error}")
    try:
        store.put(task.run.profile_fault(task.token), json.dumps(describe(error)).encode())
    except StoreError as failure:
        print(f"could not store the error ({failure})", to_log(error), sep="\n", flush=True)


def profile(task: ProfileTask, store: Metered, folder: Path, context: Context) -> dict[str, Any]:
    """What the task asks for, as JSON-ready data; seconds are those of the context's clock."""
    base = base_bytes(unseen_file_bytes=context.unseen_file_bytes)
    folder.mkdir()
    roots = (folder,)
    key = task.run.bundle(task.digest)
    job = fetch_bundle(store, key, digest=task.digest, entry=task.entry, folder=folder)
    imported = resident_bytes(unseen_file_bytes=context.unseen_file_bytes) - base
    built = _build(task, job, store, roots, context)
    passes = Passes(task, built, store, context)
    times = measure_times(passes)
    told = measure_bytes(passes, times) if task.memory else {}
    rows = [
        {"name": f"{layer.name} {type(layer.module).__name__}", **row, **extra}
        for layer, row, extra in zip(
            built.stage.layers,
            times.rows(),
            told.get("layers", [{}] * len(built.stage.layers)),
            strict=True,
        )
    ]
    return {
        "format": FORMAT,
        "layers": rows,
        "sizes": list(task.sizes),
        "spread": times.spread,
        "passes": times.num_passes,
        "in_flight": times.in_flight,
        "peak_bytes": times.peaks,
        "stretch": times.stretches,
        "base_bytes": base,
        "data_bytes": built.data.resident,
        "fixed_bytes": times.fixed_bytes + max(0, imported) + LANES_BYTES,
        "input_bytes": passes.input_bytes(),
        "transport": measure_transport(task, store) if task.transport else None,
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
    }


def _build(
    task: ProfileTask, job: Job, store: Metered, roots: tuple[Path, ...], context: Context
) -> BuiltStage:
    manifest = json.loads(bytes(store.get(task.run.manifest())))

    def fetch(layer: int, start: int, stop: int) -> memoryview:
        return store.get(task.run.layer(layer), start=start, stop=stop)

    with user_code("building the model", roots=roots):
        layers = load_layers(job, manifest, task.first_layer, task.stop_layer, fetch)
    with user_code("making the optimiser", roots=roots):
        stage = Stage(layers, job=job, num_layers=task.num_layers)
    built = BuiltStage(job, stage, None, None, roots, clock=context.clock)
    if stage.is_first or stage.is_last:
        unseen = context.unseen_file_bytes
        before = resident_bytes(unseen_file_bytes=unseen)
        with user_code("loading the data", roots=roots):
            train = build_data(job)
            built.train = Fetcher(train, collate=job.collate, seed=job.seed, name="train_data")
            if job.eval_data is not None:
                held = build_data(job, evaluation=True)
                built.evaluation = Fetcher(held, collate=job.collate, seed=job.seed)
        built.data.resident = max(0, resident_bytes(unseen_file_bytes=unseen) - before)
    return built
