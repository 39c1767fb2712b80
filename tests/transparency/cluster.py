"""Runs of small jobs in one thread, held against plain PyTorch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from funcpipe.driver.machine import combine
from funcpipe.driver.prepare import store_model
from funcpipe.invocation import RunSpec
from funcpipe.job import Job
from funcpipe.model.build import build_data, build_model
from funcpipe.model.chain import chain_of, state_of
from funcpipe.partitioner.plan import Plan, even_plan
from funcpipe.passes import total_steps
from funcpipe.store.memory import MemoryStore
from funcpipe.store.meter import Metered
from funcpipe.store.open import StoreSpec
from funcpipe.worker.inline import InlineWorker, reports, run_inline


@dataclass
class Trained:
    """What an inline run leaves: as `funcpipe.model.reference.Reference`, and its traces."""

    state_dict: dict[str, Tensor]
    losses: list[float]
    metrics: dict[str, float]
    gradients: dict[str, Tensor | None]
    replicas_differ: list[str]
    store: Metered
    spec: RunSpec
    workers: list[InlineWorker] = field(repr=False, default_factory=list)


def plan_of(
    job: Job,
    *,
    stages: int,
    replicas: Sequence[int],
    micro_batches: int,
    **changes: Any,
) -> Plan:
    """Even stages; `micro_batches` of a full batch."""
    num_layers = len(chain_of(build_model(job)).layers)
    return even_plan(
        [1.0] * num_layers,
        num_stages=stages,
        replicas=replicas,
        micro_batch_size=math.ceil(job.batch_size / micro_batches),
        **changes,
    )


def make_spec(job: Job, plan: Plan, store: Metered, *, steps: int | None = None) -> RunSpec:
    """Store the model as the driver does; the run's specification."""
    chain = chain_of(build_model(job))
    num_train = len(build_data(job))
    spec = RunSpec(
        root="runs/test",
        attempt=1,
        control_version=1,
        plan=plan,
        trains=tuple(
            any(
                p.requires_grad
                for layer in chain.layers[s.first_layer : s.stop_layer]
                for p in layer.module.parameters()
            )
            for s in plan.stages
        ),
        entry="",
        digest="",
        num_train=num_train,
        num_eval=0 if job.eval_data is None else len(build_data(job, evaluation=True)),
        num_steps=total_steps(job, num_train=num_train, steps=steps),
        store=StoreSpec(url="memory:test"),
        if_absent=True,
    )
    store_model(job, chain, store, spec.run)
    return spec


def train_inline(job: Job, plan: Plan, *, steps: int | None = None, order_seed: int = 0) -> Trained:
    """Run the whole plan over a memory store; every replica's weights are compared on the way."""
    store = Metered(MemoryStore())
    spec = make_spec(job, plan, store, steps=steps)
    gradients: dict[str, Tensor | None] = {}

    def watch(worker: InlineWorker) -> None:
        """Note the first step's gradients as the optimiser sees them."""
        optimizer = worker.built.stage.optimizer
        if optimizer is None:
            gradients.update(_gradients(worker))
        elif worker.invocation.replica == 0:

            def note(*_: object) -> None:
                for name, gradient in _gradients(worker).items():
                    gradients.setdefault(name, gradient)

            optimizer.register_step_pre_hook(note)

    workers = run_inline(spec, job, store, order_seed=order_seed, made=watch)
    first = {w.invocation.stage: state_of(w.built.stage.layers) for w in reversed(workers)}
    differ = [
        f"{name} of stage {w.invocation.stage} replica {w.invocation.replica}"
        for w in workers
        for name, tensor in state_of(w.built.stage.layers).items()
        if not _same_bits(tensor, first[w.invocation.stage][name])
    ]
    losses, metrics = _reported(spec, store, mean=job.loss_reduction == "mean")
    return Trained(
        state_dict={name: t.clone() for state in first.values() for name, t in state.items()},
        losses=losses,
        metrics=metrics,
        gradients=gradients,
        replicas_differ=differ,
        store=store,
        spec=spec,
        workers=workers,
    )


def _gradients(worker: InlineWorker) -> dict[str, Tensor | None]:
    found: dict[str, Tensor | None] = {}
    for layer in worker.built.stage.layers:
        for name, parameter in layer.module.named_parameters():
            grad = parameter.grad
            found[f"{layer.name}.{name}"] = None if grad is None else grad.clone()
    return found


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return one.numpy().tobytes() == other.numpy().tobytes()


def _reported(spec: RunSpec, store: Metered, *, mean: bool) -> tuple[list[float], dict[str, float]]:
    losses: dict[int, dict[int, float]] = {}
    sums: dict[int, Any] = {}
    for entry in reports(spec, store):
        if entry["trains"]:
            losses.setdefault(entry["step"], {}).update(dict(entry["losses"]))
        else:
            sums |= dict(entry["sums"])
    steps = [math.fsum(losses[step].values()) for step in sorted(losses)]
    return steps, combine([sums[k] for k in sorted(sums)], mean=mean) if sums else {}
