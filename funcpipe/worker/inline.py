"""A whole run in one thread: the same machines, tasks and messages, over any store.

For tests and debugging: no processes, no clocks, and any arrival order that a seed gives.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from funcpipe.errors import FuncpipeError, ObjectMissing
from funcpipe.invocation import Invocation, RunSpec
from funcpipe.job import Job
from funcpipe.passes import Pass, passes, program_of
from funcpipe.schedule.action import Action
from funcpipe.schedule.execute import Executor, Start
from funcpipe.store.base import ObjectStore
from funcpipe.store.wait import Arrival
from funcpipe.worker.build import BuiltStage, build_stage
from funcpipe.worker.tasks import Tasks

__all__ = ["InlineWorker", "run_inline"]


@dataclass
class InlineWorker:
    """One worker of an inline run; `built` holds its stage."""

    invocation: Invocation
    built: BuiltStage
    executor: Executor
    tasks: Tasks
    pending: list[Start]


def run_inline(
    spec: RunSpec,
    job: Job,
    store: ObjectStore,
    *,
    order_seed: int = 0,
    made: Callable[[InlineWorker], None] | None = None,
    roots: Sequence[Path] = (),
) -> list[InlineWorker]:
    """Run every worker of `spec` to its end; what each was left with.

    The model's layers and manifest must be in the store. Which of the actions that could run
    next does run is drawn from `order_seed`: results must not depend on it. `made` is called with
    each worker before anything runs.
    """
    stream = list(
        passes(
            job,
            num_train=spec.num_train,
            num_eval=spec.num_eval,
            num_steps=spec.num_steps,
            micro_batch_size=spec.plan.micro_batch_size,
            report_every=spec.report_every,
        )
    )
    workers = []
    for stage, replica in spec.shape.workers():
        place = Invocation(spec=spec, stage=stage, replica=replica, token=f"{stage}.{replica}")
        built = build_stage(place, job, store, roots=roots)
        workers.append(_worker(place, built, store, stream))
    if made is not None:
        for worker in workers:
            made(worker)
    draw = random.Random(order_seed)  # noqa: S311 - an order, not a secret
    while not all(worker.executor.finished for worker in workers):
        for worker in workers:
            worker.pending += worker.executor.start()
        ready = [(worker, start) for worker in workers for start in worker.pending]
        draw.shuffle(ready)
        if not any(_try(worker, start, stream) for worker, start in ready):
            waiting = "; ".join(worker.executor.waiting_for() for worker in workers)
            raise FuncpipeError(f"no worker can go on: {waiting}")
    return workers


def _worker(
    place: Invocation, built: BuiltStage, store: ObjectStore, stream: Sequence[Pass]
) -> InlineWorker:
    programs = [
        program_of(place.spec.shape, one, stage=place.stage, replica=place.replica)
        for one in stream
    ]

    def fetch(key: str, _one: Pass, _action: Action) -> Arrival:
        return Arrival(store.get(key), 0.0, 0.0, 0)

    return InlineWorker(place, built, Executor(programs), Tasks(place, built, store, fetch), [])


def _try(worker: InlineWorker, start: Start, stream: Sequence[Pass]) -> bool:
    """Run one started action if what it needs is there."""
    one = stream[start.pass_index]
    try:
        worker.tasks.run(one, start.action)
    except ObjectMissing:
        return False
    worker.pending.remove(start)
    worker.executor.done(start)
    return True


def reports(spec: RunSpec, store: ObjectStore) -> list[dict[str, Any]]:
    """Every entry that the last stage's replicas have reported, in the order of their keys."""
    entries: list[dict[str, Any]] = []
    for key in sorted(store.list(f"{spec.keys.root}/report/")):
        entries += json.loads(bytes(store.get(key)))["entries"]
    return entries
