"""From an invocation to a stage in memory: the user's code, its weights and, at the ends, data."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from funcpipe import bundle
from funcpipe.clock import REAL, Clock
from funcpipe.errors import JobError
from funcpipe.invocation import Invocation, RunSpec
from funcpipe.model.build import build_data
from funcpipe.model.sampling import Fetcher, loss_scales
from funcpipe.model.stage import Stage
from funcpipe.model.weights import load_layers
from funcpipe.passes import Pass
from funcpipe.sameness import check_same, data_fingerprint, job_settings, optimizer_settings
from funcpipe.store.base import ObjectStore
from funcpipe.usercode import user_code
from funcpipe.worker.context import Context
from funcpipe.worker.memory import resident_bytes

if TYPE_CHECKING:
    from funcpipe.job import Job

__all__ = ["BuiltStage", "DataCost", "build_stage", "fetch_bundle", "fetch_job"]


@dataclass
class DataCost:
    """What loading the data costs a function: seconds, and resident bytes after it."""

    seconds: float = 0.0
    resident: int = 0


@dataclass
class BuiltStage:
    """A stage with the data it needs. Wraps every call into the user's code.

    `data` is in seconds of `clock`.
    """

    job: Job
    stage: Stage
    train: Fetcher | None
    evaluation: Fetcher | None
    roots: Sequence[Path]
    data: DataCost = field(default_factory=DataCost)
    clock: Clock = REAL
    _scales: dict[int, list[float]] = field(default_factory=dict)

    def inputs(self, one: Pass, k: int) -> Any:
        """The inputs of micro-batch k; only at the first stage."""
        return self._load(one, k, Fetcher.inputs)

    def targets(self, one: Pass, k: int) -> Any:
        """The targets of micro-batch k; only at the last stage."""
        return self._load(one, k, Fetcher.targets)

    def _load(self, one: Pass, k: int, half: Callable[..., Any]) -> Any:
        fetcher = self.train if one.trains else self.evaluation
        if fetcher is None:
            raise JobError("this stage has no data to load")
        began = self.clock.now()
        with user_code("loading the data", roots=self.roots):
            loaded = half(fetcher, one.micro_batches[k], step=one.step, micro_batch=k)
        self.data.seconds += self.clock.now() - began
        return loaded

    def forward(self, one: Pass, k: int, value: Any, target: Any = None) -> Any:
        """The activation, or on the last stage this micro-batch's share of the step's loss."""
        what = "the model's forward"
        scale = 1.0
        if self.stage.is_last:
            what += " or the loss"
            scale = self._scale(one, k)
        with user_code(what, roots=self.roots, loss=self.job.loss):
            return self.stage.forward(
                step=one.step, micro_batch=k, value=value, scale=scale, target=target
            )

    def backward(self, k: int, gradient: Any) -> Any:
        # A stage that recomputes runs the model and the loss here, too.
        with user_code("the model's backward", roots=self.roots, loss=self.job.loss):
            return self.stage.backward(micro_batch=k, gradient=gradient)

    def step(self, one: Pass) -> None:
        with user_code("the optimiser step", roots=self.roots):
            self.stage.step(step=one.step)

    def evaluate(self, one: Pass, k: int, value: Any, target: Any = None) -> Any:
        """The activation, or on the last stage an `Evaluation`."""
        with user_code("the evaluation", roots=self.roots, loss=self.job.loss):
            return self.stage.evaluate(value=value, target=target, count=len(one.micro_batches[k]))

    def _scale(self, one: Pass, k: int) -> float:
        """What micro-batch k's loss is multiplied with; all of a step are computed at once."""
        if one.index not in self._scales:
            sizes = [len(ids) for ids in one.micro_batches]
            with user_code("loss_weight", roots=self.roots):
                scales = loss_scales(self.job, sizes, lambda index: self.targets(one, index))
            self._scales = {one.index: scales}
        return self._scales[one.index][k]


def fetch_job(spec: RunSpec, store: ObjectStore, folder: Path) -> Job:
    """The user's job from its bundle, unpacked into `folder`, which becomes the working folder."""
    key = spec.run.bundle(spec.digest)
    return fetch_bundle(store, key, digest=spec.digest, entry=spec.entry, folder=folder)


def fetch_bundle(store: ObjectStore, key: str, *, digest: str, entry: str, folder: Path) -> Job:
    """`fetch_job` of a bundle by its key."""
    bundle.unpack(store.get(key), digest=digest, folder=folder)
    os.chdir(folder)
    return bundle.load_unpacked(folder, entry)


def build_stage(
    invocation: Invocation,
    job: Job,
    store: ObjectStore,
    *,
    roots: Sequence[Path],
    context: Context = Context(),  # noqa: B008 - frozen
) -> BuiltStage:
    """Build this stage only: its own layers from the store, data at the two ends."""
    spec = invocation.spec
    settings = spec.settings
    if settings:
        check_same("the job", job_settings(job), settings["job"])
    manifest = json.loads(bytes(store.get(spec.run.manifest())))
    place = spec.plan.stages[invocation.stage]

    def fetch(layer: int, start: int, stop: int) -> memoryview:
        return store.get(spec.run.layer(layer), start=start, stop=stop)

    with user_code("building the model", roots=roots):
        layers = load_layers(job, manifest, place.first_layer, place.stop_layer, fetch)
    with user_code("making the optimiser", roots=roots):
        stage = Stage(layers, job=job, num_layers=spec.plan.num_layers, recompute=place.recompute)
    if settings:
        there = settings["optimizers"][invocation.stage]
        check_same("the optimiser", optimizer_settings(stage.optimizer), there)
    built = BuiltStage(job, stage, None, None, roots, clock=context.clock)
    if invocation.is_first or invocation.is_last:
        unseen = context.unseen_file_bytes
        began, before = context.clock.now(), resident_bytes(unseen_file_bytes=unseen)
        with user_code("loading the data", roots=roots):
            built.train = _fetcher(job, spec, evaluation=False)
            if spec.num_eval:
                built.evaluation = _fetcher(job, spec, evaluation=True)
        built.data.seconds = context.clock.now() - began
        now = resident_bytes(unseen_file_bytes=unseen)
        built.data.resident = max(0, now - before)
    return built


def _fetcher(job: Job, spec: RunSpec, *, evaluation: bool) -> Fetcher:
    """Of the very data that the driver saw: every stage must see the same."""
    expected = spec.num_eval if evaluation else spec.num_train
    dataset = build_data(job, evaluation=evaluation)
    if len(dataset) != expected:
        which = "eval_data" if evaluation else "train_data"
        raise JobError(
            f"{which} has {len(dataset)} samples here, but {expected} where the run was started; "
            "every function must see the same data"
        )
    name = "job.eval_data()" if evaluation else "job.train_data()"
    fetcher = Fetcher(dataset, collate=job.collate, seed=job.seed, name=name)
    if spec.settings:
        check_same(name, data_fingerprint(fetcher), spec.settings["data"][int(evaluation)])
    return fetcher
