"""The whole life of a function: what every platform's handler calls."""

from __future__ import annotations

import json
import secrets
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from funcpipe.control import Watch
from funcpipe.errors import FuncpipeError, Stopped, StoreError, describe, to_log
from funcpipe.invocation import Invocation
from funcpipe.job import Job
from funcpipe.model.chain import parameters_of, separate, state_of
from funcpipe.passes import Pass, passes, program_of
from funcpipe.sameness import weights_digest
from funcpipe.schedule.action import Action, Lane
from funcpipe.schedule.execute import Start
from funcpipe.schedule.program import Program
from funcpipe.store.meter import Metered
from funcpipe.store.shape import Link, Shaped
from funcpipe.store.wait import Arrival, wait_for
from funcpipe.worker.arrivals import Arrivals
from funcpipe.worker.build import BuiltStage, build_stage, fetch_job
from funcpipe.worker.context import Context
from funcpipe.worker.lease import take_lease
from funcpipe.worker.machine import (
    Build,
    Built,
    Event,
    Export,
    Exported,
    Instruction,
    LeaseTaken,
    Run,
    TakeLease,
    TaskDone,
    WorkerMachine,
)
from funcpipe.worker.memory import age_s, base_bytes, peak_bytes
from funcpipe.worker.reuse import clean_process
from funcpipe.worker.runner import Runner
from funcpipe.worker.tasks import Tasks
from funcpipe.worker.timeline import Timeline

__all__ = ["FunctionWorker", "main"]

KEPT_PASSES = 4


def main(payload: Mapping[str, Any], context: Context = Context()) -> int:  # noqa: B008 - frozen
    """Run one function; its exit code: 0 done, stopped or superseded, 1 failed and said why.

    After 0 the process may run another function. After a failure other threads may still be at
    work: the caller ends the process at once.
    """
    try:
        invocation = Invocation.from_dict(payload)
        opened = invocation.spec.store.open(clock=context.clock)
    except FuncpipeError as error:
        # Without a store nobody can be told but whoever reads the log.
        print(error, flush=True)
        return 1
    with tempfile.TemporaryDirectory(prefix="funcpipe-") as folder, clean_process(Path(folder)):
        if context.threads is not None:
            torch.set_num_threads(context.threads)
        link = None if context.link is None else context.link.open(context.clock)
        shaped = opened if link is None else Shaped(opened, link)
        store = Metered(shaped, context.tally, clock=context.clock)
        worker = FunctionWorker(invocation, store, Path(folder) / "bundle", context, link)
        end = Runner(worker.machine, worker.do).run()
        if end.error is None:
            store.close()
        elif end.tell:
            traceback.print_exception(end.error)
            worker.tell(end.error)
        return 0 if end.error is None or isinstance(end.error, Stopped) else 1


class FunctionWorker:
    """Carries out the instructions of a worker's state machine with real IO."""

    def __init__(
        self,
        invocation: Invocation,
        store: Metered,
        folder: Path,
        context: Context,
        link: Link | None = None,
    ) -> None:
        self.machine = WorkerMachine()
        self._invocation = invocation
        self._spec = invocation.spec
        self._store = store
        self._folder = folder
        self._context = context
        self._link = link
        self._clock = clock = context.clock
        self._base_bytes = 0
        self._init_s = age_s() / clock.dilation if context.init_s is None else context.init_s
        self._timeline = Timeline(clock)
        self._arrivals = Arrivals()
        self._passes: dict[int, Pass] = {}
        self._tasks: Tasks | None = None
        self._built: BuiltStage | None = None
        self._built_s = 0.0
        self._watch = Watch(
            store,
            self._spec.run,
            self._spec.control,
            every_s=self._spec.watch_s,
            clock=clock.now,
        )

    def do(self, instruction: Instruction) -> Event:
        """Carry out one instruction; errors carry the place where they happened."""
        try:
            match instruction:
                case TakeLease():
                    self._take_lease()
                    return LeaseTaken()
                case Build():
                    return Built(self._build())
                case Run(start):
                    self._run(start)
                    return TaskDone(start)
                case Export():
                    self._export()
                    return Exported()
                case _:
                    raise FuncpipeError(f"cannot carry out {instruction}")
        except FuncpipeError as error:
            error.at(stage=self._invocation.stage, replica=self._invocation.replica)
            raise

    def tell(self, error: FuncpipeError) -> None:
        """Leave the attempt's first error in the store; a later one adds nothing."""
        data = json.dumps(describe(error)).encode()
        try:
            self._store.put(self._spec.keys.fault(), data, if_absent=True)
        except StoreError as failure:
            print(f"could not store the error ({failure})", to_log(error), sep="\n", flush=True)

    def _take_lease(self) -> None:
        place = self._invocation
        key = self._spec.keys.lease(place.stage, place.replica, place.segment)
        # A duplicate delivery carries the same token; what tells the two apart is made here.
        token = f"{place.token} {secrets.token_hex(16)}"
        if_absent = self._spec.if_absent
        take_lease(self._store, key, token, if_absent=if_absent, sleep=self._clock.sleep)

    def _build(self) -> Iterator[Program]:
        context = self._context
        self._base_bytes = base_bytes(unseen_file_bytes=context.unseen_file_bytes)
        self._folder.mkdir()
        job = fetch_job(self._spec, self._store, self._folder)
        roots = (self._folder,)
        place, store = self._invocation, self._store
        self._built = build_stage(place, job, store, roots=roots, context=context)
        self._tasks = Tasks(place, self._built, store, self._fetch, clock=self._clock)
        self._built_s = self._timeline.now()
        return self._programs(job)

    def _programs(self, job: Job) -> Iterator[Program]:
        """The program of every pass; only the last few passes are kept."""
        place = self._invocation
        for one in _passes(job, place):
            self._passes[one.index] = one
            self._passes.pop(one.index - KEPT_PASSES, None)
            yield program_of(self._spec.shape, one, stage=place.stage, replica=place.replica)

    def _run(self, start: Start) -> None:
        one, tasks = self._passes[start.pass_index], self._tasks
        if tasks is None:
            raise FuncpipeError("a task came before the stage was built")
        began = self._timeline.now()
        try:
            if start.action.lane is Lane.SERVICE:
                self._watch()  # also a worker that never waits hears of a stop
            cost = tasks.run(one, start.action)
        except FuncpipeError as error:
            error.at(step=one.step + 1, micro_batch=_micro_batch(start))
            raise
        self._timeline.add(start, began, self._timeline.now(), cost)

    def _fetch(self, key: str, one: Pass, action: Action) -> Arrival:
        place = (one.trains, action)
        delay_s, backoff = self._arrivals.plan(place)
        began, absent_s = self._clock.now(), None

        def missed() -> None:
            nonlocal absent_s
            absent_s = self._clock.now() - began
            self._watch()

        arrival = wait_for(
            self._store,
            key,
            deadline_s=self._spec.wait_s,
            delay_s=delay_s,
            backoff=backoff,
            between=missed,
            clock=self._clock.now,
            sleep=self._sleep,
        )
        self._arrivals.learn(place, delay_s=delay_s, absent_s=absent_s)
        return arrival

    def _sleep(self, seconds: float) -> None:
        """Sleep, but never long without a look at the control object."""
        while seconds > self._spec.watch_s:
            self._clock.sleep(self._spec.watch_s)
            seconds -= self._spec.watch_s
            self._watch()
        self._clock.sleep(seconds)

    def _export(self) -> None:
        """The trained weights, by the first replica, and what this function has to say."""
        built, place = self._built, self._invocation
        if built is None:
            raise FuncpipeError("nothing was built, so nothing can be exported")
        if place.replica == 0:
            for layer in built.stage.layers:
                state = separate(state_of((layer,)))
                self._store.put(self._spec.run.final_layer(layer.index), save(state))
        usage = self._store.counts()
        result = {
            "stage": place.stage,
            "replica": place.replica,
            "base_bytes": self._base_bytes,
            "peak_bytes": peak_bytes(unseen_file_bytes=self._context.unseen_file_bytes),
            "data_s": built.data.seconds,
            "data_bytes": built.data.resident,
            "start_s": self._init_s + self._built_s,
            "seconds": self._init_s + self._timeline.now(),
            "compute_s": self._timeline.user_s,
            "transfer_s": self._timeline.transfer_s,
            "waiting_s": self._timeline.wait_s,
            "link": None if self._link is None else [self._link.taken_s, self._link.late_s],
            "usage": usage.to_dict(),
            "began_at": self._timeline.began_at,
            "timeline": self._timeline.rows(),
            "weights": weights_digest(p for _, p in parameters_of(built.stage.layers)),
            "buffers": weights_digest(_buffers(built)),
            "threads": torch.get_num_threads(),
            "capability": torch.backends.cpu.get_cpu_capability(),
            "torch": torch.__version__,
        }
        key = self._spec.keys.result(place.stage, place.replica)
        self._store.put(key, json.dumps(result).encode())


def _buffers(built: BuiltStage) -> Iterator[torch.Tensor]:
    for layer in built.stage.layers:
        yield from layer.module.buffers()


def _passes(job: Job, invocation: Invocation) -> Iterator[Pass]:
    spec = invocation.spec
    return passes(
        job,
        num_train=spec.num_train,
        num_eval=spec.num_eval,
        num_steps=spec.num_steps,
        micro_batch_size=spec.plan.micro_batch_size,
        report_every=spec.report_every,
    )


def _micro_batch(start: Start) -> int | None:
    chunked = start.action.chunk is not None
    return None if chunked else start.action.index
