"""The platform that a local run emulates: sizes of its functions, its speed, its host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from funcpipe.driver.options import RunOptions
from funcpipe.driver.place import Place
from funcpipe.emulator.dilation import (
    Demand,
    Dilation,
    Machine,
    choose_dilation,
    store_cost,
    sustained,
)
from funcpipe.emulator.host import LocalHost
from funcpipe.emulator.resources import usable_cpus
from funcpipe.errors import PlanError
from funcpipe.partitioner.plan import Plan
from funcpipe.partitioner.platform import PlatformSpec, load_platform

__all__ = ["dilation_for", "host_for", "plan_caveats", "platform_of", "sized"]


def platform_of(options: RunOptions) -> PlatformSpec:
    """The platform file that the user chose, with the figures that the user set."""
    return load_platform(options.emulate, changes=options.set)


def sized(plan: Plan, platform: PlatformSpec, memory_mb: Sequence[int] | None) -> Plan:
    """The plan with a memory size for every stage, all of which the platform has.

    memory_mb: the user's choice, one for all stages or one for each.
    """
    sizes = list(memory_mb or ())
    if len(sizes) not in (0, 1, len(plan.stages)):
        raise PlanError(
            f"{len(sizes)} memory sizes for {len(plan.stages)} stages; give one for all stages or "
            f"{len(plan.stages)} separated by commas"
        )
    default = platform.memory.default_mb if platform.limited else None
    chosen: list[int | None] = [stage.memory_mb or default for stage in plan.stages]
    if sizes:
        chosen = list(sizes * len(plan.stages) if len(sizes) == 1 else sizes)
    for number, size in enumerate(chosen):
        if size is not None:
            platform.check_memory(size, f"stage {number}")
    limit = platform.invocation.concurrency
    if limit is not None and plan.num_functions > limit:
        raise PlanError(
            f"the plan needs {plan.num_functions} functions at once; {platform.title} runs {limit} "
            "for this account (invocation.concurrency): use fewer stages or replicas"
        )
    stages = zip(plan.stages, chosen, strict=True)
    return replace(plan, stages=tuple(replace(stage, memory_mb=size) for stage, size in stages))


def plan_caveats(options: RunOptions, platform: PlatformSpec, batch_size: int) -> Iterator[str]:
    """In what this run differs from the one that the user's plan was made for.

    batch_size: the job's.
    """
    if options.plan is None:
        return
    sizes = [stage.memory_mb for stage in options.plan.stages if stage.memory_mb is not None]
    if sizes and not platform.limited:
        yield "the plan's memory sizes do nothing here: no platform is emulated"
    told = options.plan.predicted or {}
    if platform.limited and told.get("platform", platform.name) != platform.name:
        yield (
            f"the plan was made for {told['platform']}, and {platform.name} is emulated: it may "
            "not be the best one there"
        )
    if told.get("batch_size", batch_size) != batch_size:
        yield (
            f"the plan was made for batches of {told['batch_size']} samples, and the job has "
            f"{batch_size}: it may not be the best one"
        )


def dilation_for(
    plan: Plan,
    platform: PlatformSpec,
    options: RunOptions,
    *,
    store: str,
    largest: Sequence[float],
) -> Dilation:
    """How much slower than real time this machine must run it, or the user wants it to.

    store: the kind of store, which shares this machine with the functions. largest: bytes of the
    largest object that each stage moves in a step.
    """
    if not platform.limited:
        return Dilation(factor=1.0, why="no platform is emulated")
    demands = [
        demand
        for stage, num_bytes in zip(plan.stages, largest, strict=True)
        for demand in [_demand(platform, stage.memory_mb, num_bytes)] * stage.replicas
    ]
    needed = choose_dilation(demands, Machine(cores=usable_cpus()), store_cost(store))
    if options.dilation is None:
        return needed
    why = "fixed by the user"
    if options.dilation < needed.factor:
        why += f", though this machine needs {needed.factor:g}: {needed.why}"
    return Dilation(factor=float(options.dilation), why=why)


def _demand(platform: PlatformSpec, memory_mb: int | None, num_bytes: float) -> Demand:
    memory_mb = memory_mb or platform.memory.default_mb
    latency_s = platform.network.latency_s
    up, sent = sustained(num_bytes, platform.up_bytes_per_s(memory_mb), latency_s)
    down, received = sustained(num_bytes, platform.down_bytes_per_s(memory_mb), latency_s)
    return Demand(
        vcpu=platform.vcpu(memory_mb),
        up_bytes_per_s=up,
        down_bytes_per_s=down,
        requests_per_s=sent + received,
    )


def host_for(
    options: RunOptions,
    platform: PlatformSpec,
    dilation: Dilation,
    place: Place,
    log_folder: Path | None,
) -> LocalHost:
    """What runs the functions. log_folder: None keeps no logs behind their end."""
    return LocalHost(
        platform=platform,
        dilation=dilation.factor,
        seed=options.emulate_seed,
        log_folder=log_folder,
        environment=place.function_environment,
        credentials=place.credentials,
        threads=options.threads,
        writable=place.folders,
    )
