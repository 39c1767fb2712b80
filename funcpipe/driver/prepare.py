"""From a job to a run that is ready to start: checked, planned, cut and stored."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from funcpipe import bundle
from funcpipe.control import Control, publish
from funcpipe.driver.options import RunOptions
from funcpipe.driver.platform import plan_caveats, platform_of, sized
from funcpipe.errors import JobError, PlanError
from funcpipe.invocation import RunSpec, shape_of
from funcpipe.job import Job
from funcpipe.keys import Run
from funcpipe.locate import LoadedJob
from funcpipe.model import rng
from funcpipe.model.build import build_data, build_model
from funcpipe.model.caveats import caveats
from funcpipe.model.chain import Chain, chain_of, parameters_of
from funcpipe.model.optimizer import make_optimizer
from funcpipe.model.preview import weigh_layers
from funcpipe.model.sampling import Fetcher
from funcpipe.model.values import tensors_in
from funcpipe.model.weights import make_manifest, pack_layer
from funcpipe.partitioner.plan import Plan, StagePlan, even_plan
from funcpipe.partitioner.platform import PlatformSpec
from funcpipe.passes import distinct_sizes, total_steps
from funcpipe.sameness import data_fingerprint, group_options, job_settings, optimizer_settings
from funcpipe.schedule.validate import validate
from funcpipe.store.base import ObjectStore
from funcpipe.store.open import StoreSpec
from funcpipe.usercode import user_code

if TYPE_CHECKING:
    from torch.optim import Optimizer

__all__ = [
    "ONE_AT_A_TIME",
    "Prepared",
    "choose_plan",
    "layers_text",
    "prepare",
    "store_model",
    "upload",
]

# Models are built and tried under seeds of the process's own random generators.
ONE_AT_A_TIME = threading.Lock()
DEFAULT_STAGES = 2
DEFAULT_MICRO_BATCHES = 4


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A job that has been looked at from all sides and planned; nothing is stored yet.

    largest: bytes of the largest object that a function of each stage moves in a step. costs: of
    each layer, relative ones. shapes: of a sample's input and target, as text.
    """

    loaded: LoadedJob
    chain: Chain
    plan: Plan
    packed: bundle.Bundle
    trains: tuple[bool, ...]
    num_train: int
    num_eval: int
    num_steps: int
    settings: Mapping[str, Any]
    platform: PlatformSpec
    largest: tuple[float, ...] = ()
    caveats: tuple[str, ...] = ()
    costs: tuple[float, ...] = ()
    shapes: str = ""


def prepare(loaded: LoadedJob, options: RunOptions) -> Prepared:
    """Build the model once, try it on two samples, choose or check the plan, prove its schedule.

    Raises whatever is wrong with the job, the model, the data or the plan.
    """
    job, roots = loaded.job, (loaded.root,)
    platform = platform_of(options)
    packed = bundle.pack(loaded)
    with user_code("building the model", roots=roots):
        model = build_model(job)
    chain = chain_of(model)
    num_train, num_eval, sample = _look_at_data(loaded, options)
    with user_code(
        f"the model or the loss, tried on {sample.size} samples,", roots=roots, loss=job.loss
    ):
        weights = weigh_layers(job, chain, sample.inputs, sample.target)
    plan = choose_plan(job, options, [one.cost for one in weights])
    plan = sized(plan, platform, options.memory_mb)
    with user_code("making the optimiser", roots=roots), rng.preserved():
        optimizers = _try_optimizers(job, chain, plan)
    trains = tuple(_trains(chain, stage) for stage in plan.stages)
    num_steps = total_steps(job, num_train=num_train, steps=options.steps)
    size = plan.micro_batch_size
    sizes = distinct_sizes(job, num_train=num_train, num_steps=num_steps, micro_batch_size=size)
    validate(shape_of(plan, trains), num_micro_batches=sizes, evaluation=-(-num_eval // size))
    return Prepared(
        loaded=loaded,
        chain=chain,
        plan=plan,
        packed=packed,
        trains=trains,
        num_train=num_train,
        num_eval=num_eval,
        num_steps=num_steps,
        settings={"job": job_settings(job), "optimizers": optimizers, "data": sample.prints},
        platform=platform,
        largest=largest_objects(plan, chain, [one.output_bytes / sample.size for one in weights]),
        caveats=(*caveats(chain), *plan_caveats(options, platform, job.batch_size)),
        costs=tuple(one.cost for one in weights),
        shapes=f"{_shapes(sample.inputs)} -> {_shapes(sample.target)}",
    )


@dataclass(frozen=True, kw_only=True)
class _Sample:
    size: int
    inputs: Any
    target: Any
    prints: Sequence[str]


def _shapes(value: Any) -> str:
    """Of one sample: ``float32[1, 8, 8]``, those of several tensors joined."""
    return ", ".join(
        f"{str(one.dtype).removeprefix('torch.')}{list(one.shape[1:])}" for one in tensors_in(value)
    )


def _look_at_data(loaded: LoadedJob, options: RunOptions) -> tuple[int, int, _Sample]:
    """Sizes of the training and the held-out data, and a few samples to try the model on."""
    job = loaded.job
    with user_code("loading the data", roots=(loaded.root,)):
        train = build_data(job)
        held_out = None if job.eval_data is None else build_data(job, evaluation=True)
        tried = _tried_samples(job, options, len(train))
        fetcher = Fetcher(train, collate=job.collate, seed=job.seed)
        inputs, target = fetcher.load(tried, step=0, micro_batch=0)
        prints = [data_fingerprint(fetcher)]
        if held_out is not None:
            held = Fetcher(held_out, collate=job.collate, seed=job.seed)
            prints.append(data_fingerprint(held))
    num_eval = 0 if held_out is None else len(held_out)
    sample = _Sample(size=len(tried), inputs=inputs, target=target, prints=prints)
    return len(train), num_eval, sample


def _try_optimizers(job: Job, chain: Chain, plan: Plan) -> list[Any]:
    """Make each stage's optimiser, and one of the whole model, which must treat all alike."""
    everything = parameters_of(chain.layers)
    whole = _options_by_parameter(_optimizer_of(job, everything), everything)
    settings = []
    for stage in plan.stages:
        named = parameters_of(chain.layers[stage.first_layer : stage.stop_layer])
        optimizer = _optimizer_of(job, named)
        settings.append(optimizer_settings(optimizer))
        if optimizer is None:
            continue
        for name, options in _options_by_parameter(optimizer, named).items():
            if whole[name] != options:
                raise JobError(
                    f"job.optimizer(params) treats {name} otherwise when it is given one stage's "
                    f"parameters: {options or 'left out'} instead of {whole[name] or 'left out'}. "
                    "Every stage makes its own optimiser, so what params are must not be told by "
                    "their place in the list; freeze what is not to be trained, and use one group"
                )
    return settings


def _optimizer_of(job: Job, named: Sequence[tuple[str, Any]]) -> Optimizer | None:
    return make_optimizer(job, [parameter for _, parameter in named])[0]


def _options_by_parameter(
    optimizer: Optimizer | None, named: Sequence[tuple[str, Any]]
) -> dict[str, str]:
    found: dict[int, str] = {}
    for group in optimizer.param_groups if optimizer is not None else ():
        found |= {id(parameter): group_options(group) for parameter in group["params"]}
    return {name: found.get(id(parameter), "") for name, parameter in named}


def largest_objects(plan: Plan, chain: Chain, output_bytes: Sequence[float]) -> tuple[float, ...]:
    """By stage. output_bytes: of each layer, for one sample."""
    size = plan.micro_batch_size
    largest = []
    for number, stage in enumerate(plan.stages):
        objects = [0.0]
        if number > 0:
            objects.append(output_bytes[stage.first_layer - 1] * size)
        if number < len(plan.stages) - 1:
            objects.append(output_bytes[stage.stop_layer - 1] * size)
        if stage.replicas > 1:
            layers = chain.layers[stage.first_layer : stage.stop_layer]
            trained = [p for _, p in parameters_of(layers) if p.requires_grad]
            whole = sum(p.numel() * p.element_size() for p in trained)
            objects.append(whole / stage.replicas)
        largest.append(max(objects))
    return tuple(largest)


def _trains(chain: Chain, stage: StagePlan) -> bool:
    layers = chain.layers[stage.first_layer : stage.stop_layer]
    return any(p.requires_grad for layer in layers for p in layer.module.parameters())


def choose_plan(job: Job, options: RunOptions, weights: list[float]) -> Plan:
    """The user's plan, checked against the model, or stages balanced by `weights`."""
    num_layers = len(weights)
    if options.plan is not None:
        if options.plan.num_layers != num_layers:
            raise PlanError(
                f"the plan covers {options.plan.num_layers} layers, the model has {num_layers}; "
                "plan again for this model"
            )
        return options.plan
    num_stages = options.stages or min(DEFAULT_STAGES, num_layers)
    plan = even_plan(
        weights,
        num_stages=num_stages,
        replicas=options.replicas or (1,),
        micro_batch_size=_micro_batch_size(job, options),
        schedule=options.schedule or "gpipe",
        in_flight=options.in_flight,
        sync=options.sync or "pipelined",
    )
    again = _recomputing(options.recompute, num_stages)
    stages = [replace(stage, recompute=k in again) for k, stage in enumerate(plan.stages)]
    return replace(plan, stages=tuple(stages))


def _recomputing(chosen: str | tuple[int, ...] | None, num_stages: int) -> set[int]:
    """The numbers of the stages that recompute."""
    if chosen is None or chosen == "none":
        return set()
    known = set(range(num_stages))
    if isinstance(chosen, str):
        return known
    if unknown := sorted(set(chosen) - known):
        stages = "stage 0 alone" if num_stages == 1 else f"stages 0 to {num_stages - 1}"
        raise PlanError(
            f"recompute names stage {unknown[0]}, but the plan has {stages}; name those that are "
            "to recompute, or say 'all'"
        )
    return set(chosen)


def _micro_batch_size(job: Job, options: RunOptions) -> int:
    size = options.micro_batch_size or -(-job.batch_size // DEFAULT_MICRO_BATCHES)
    return min(size, job.batch_size)


def _tried_samples(job: Job, options: RunOptions, num_train: int) -> list[int]:
    """Two, since a loss of one number per sample looks right on one; one if none meets another."""
    chosen = options.plan.micro_batch_size if options.plan else _micro_batch_size(job, options)
    return list(range(min(2, chosen, num_train)))


def upload(
    prepared: Prepared,
    store: ObjectStore,
    *,
    root: str,
    spec: StoreSpec,
    if_absent: bool,
    report_every: int,
    note: Callable[[str], None],
) -> RunSpec:
    """Store the control object, the bundle and each layer's weights."""
    plan, job, run = prepared.plan, prepared.loaded.job, Run(root)
    run_spec = RunSpec(
        root=root,
        attempt=1,
        control_version=1,
        plan=replace(plan, predicted=None),  # of no use to functions
        trains=prepared.trains,
        entry=prepared.packed.entry,
        digest=prepared.packed.digest,
        num_train=prepared.num_train,
        num_eval=prepared.num_eval,
        num_steps=prepared.num_steps,
        store=spec,
        if_absent=if_absent,
        settings=prepared.settings,
        report_every=report_every,
    )
    publish(store, run, Control(version=1, attempt=1))
    store.put(run.bundle(prepared.packed.digest), prepared.packed.data)
    with user_code("building the model without memory", roots=(prepared.loaded.root,)):
        manifest = store_model(job, prepared.chain, store, run)
    if manifest["build"] == "full":
        note(
            "this model cannot be built without memory, so every function holds all of it for a "
            f"moment when it starts: {manifest['reason']}"
        )
    return run_spec


def store_model(job: Job, chain: Chain, store: ObjectStore, run: Run) -> dict[str, Any]:
    """Store each layer's weights, and the manifest, which is returned."""
    entries = []
    for layer in chain.layers:
        data, entry = pack_layer(layer)
        store.put(run.layer(layer.index), data)
        del data  # or the next layer's bytes come beside this one's
        entries.append(entry)
    manifest = make_manifest(job, chain, entries)
    store.put(run.manifest(), json.dumps(manifest).encode())
    return manifest


def layers_text(plan: Plan, stage: int) -> str:
    """``3-7`` for a stage of layers 3 to 7."""
    place = plan.stages[stage]
    return f"{place.first_layer}-{place.stop_layer - 1}"
