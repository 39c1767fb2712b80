"""From an invocation to a stage in memory: the user's code, its weights and, at the ends, data."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from funcpipe import bundle
from funcpipe.errors import JobError
from funcpipe.model.build import build_data
from funcpipe.model.sampling import Fetcher, weight_of
from funcpipe.model.stage import Stage
from funcpipe.model.weights import load_layers
from funcpipe.store.base import ObjectStore
from funcpipe.usercode import user_code
from funcpipe.worker.invocation import Invocation, RunSpec
from funcpipe.worker.memory import resident_bytes
from funcpipe.worker.passes import Pass

if TYPE_CHECKING:
    from funcpipe.job import Job

__all__ = ["BuiltStage", "DataCost", "build_stage", "fetch_job"]


@dataclass
class DataCost:
    """What loading the data costs a function: seconds, and resident bytes after it."""

    seconds: float = 0.0
    resident: int = 0


@dataclass
class BuiltStage:
    """A stage with the data it needs. Wraps every call into the user's code."""

    job: Job
    stage: Stage
    train: Fetcher | None
    evaluation: Fetcher | None
    roots: Sequence[Path]
    data: DataCost = field(default_factory=DataCost)
    _weights: dict[int, list[float]] = field(default_factory=dict)

    def load(self, one: Pass, k: int) -> tuple[Any, Any]:
        """Inputs and targets of micro-batch k."""
        began = time.perf_counter()
        try:
            with user_code("loading the data", roots=self.roots):
                return self._load(one, k)
        finally:
            self.data.seconds += time.perf_counter() - began

    def _load(self, one: Pass, k: int) -> tuple[Any, Any]:
        fetcher = self.train if one.trains else self.evaluation
        if fetcher is None:
            raise JobError("this stage has no data to load")
        return fetcher.load(one.micro_batches[k], step=one.step, micro_batch=k)

    def forward(self, one: Pass, k: int, value: Any) -> Any:
        with user_code("the model's forward", roots=self.roots):
            return self.stage.forward(step=one.step, micro_batch=k, value=value)

    def forward_last(self, one: Pass, k: int, value: Any, target: Any) -> float:
        """Forward and loss; this micro-batch's contribution to the loss of the step."""
        scale = self._scale(one, k)
        with user_code("the model's forward or the loss", roots=self.roots):
            return self.stage.forward_loss(
                step=one.step, micro_batch=k, value=value, target=target, scale=scale
            )

    def backward(self, k: int, gradient: Any) -> Any:
        with user_code("the model's backward", roots=self.roots):
            return self.stage.backward(micro_batch=k, gradient=gradient)

    def step(self) -> None:
        with user_code("the optimiser step", roots=self.roots):
            self.stage.step()

    def evaluate(self, value: Any) -> Any:
        with user_code("the model's forward in evaluation", roots=self.roots):
            return self.stage.evaluate(value)

    def evaluate_last(self, value: Any, target: Any) -> dict[str, Any]:
        with user_code("the evaluation", roots=self.roots):
            return self.stage.evaluate_loss(value, target)

    def _scale(self, one: Pass, k: int) -> float:
        """weight_k over the weight of the whole batch; 1 for sum losses (DESIGN section 3)."""
        if self.job.loss_reduction == "sum":
            return 1.0
        weights = self._weights.get(one.index)
        if weights is None:
            self._weights = {one.index: self._weigh(one)}
            weights = self._weights[one.index]
        return weights[k] / sum(weights)

    def _weigh(self, one: Pass) -> list[float]:
        if self.job.loss_weight is None:
            return [float(len(ids)) for ids in one.micro_batches]
        targets = (self.load(one, k)[1] for k in range(len(one.micro_batches)))
        with user_code("loss_weight", roots=self.roots):
            return [weight_of(self.job, target) for target in targets]


def fetch_job(spec: RunSpec, store: ObjectStore, folder: Path) -> Job:
    """The user's job from its bundle, unpacked into `folder`, which becomes the working folder."""
    data = store.get(spec.run.bundle(spec.digest))
    bundle.unpack(data, digest=spec.digest, folder=folder)
    os.chdir(folder)
    return bundle.load_unpacked(folder, spec.entry)


def build_stage(
    invocation: Invocation, job: Job, store: ObjectStore, *, roots: Sequence[Path]
) -> BuiltStage:
    """Build this stage only: its own layers from the store, data at the two ends."""
    spec = invocation.spec
    manifest = json.loads(bytes(store.get(spec.run.manifest())))
    place = spec.plan.stages[invocation.stage]

    def fetch(layer: int, start: int, stop: int) -> memoryview:
        return store.get(spec.run.layer(layer), start=start, stop=stop)

    with user_code("building the model", roots=roots):
        layers = load_layers(job, manifest, place.first_layer, place.stop_layer, fetch)
    with user_code("making the optimiser", roots=roots):
        stage = Stage(layers, job=job, is_first=invocation.is_first, is_last=invocation.is_last)
    built = BuiltStage(job, stage, None, None, roots)
    if invocation.is_first or invocation.is_last:
        began, before = time.perf_counter(), resident_bytes()
        with user_code("loading the data", roots=roots):
            built.train = _fetcher(job, spec.num_train, evaluation=False)
            if spec.num_eval:
                built.evaluation = _fetcher(job, spec.num_eval, evaluation=True)
        built.data.seconds = time.perf_counter() - began
        built.data.resident = max(0, resident_bytes() - before)
    return built


def _fetcher(job: Job, expected: int, *, evaluation: bool) -> Fetcher:
    dataset = build_data(job, evaluation=evaluation)
    if len(dataset) != expected:
        which = "eval_data" if evaluation else "train_data"
        raise JobError(
            f"{which} has {len(dataset)} samples here, but {expected} where the run was started; "
            "every function must see the same data"
        )
    return Fetcher(dataset, collate=job.collate, seed=job.seed)
