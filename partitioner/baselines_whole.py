"""Baselines whose functions each hold the whole model: data parallelism, no pipeline."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from funcpipe.partitioner.backend import Problem
from funcpipe.partitioner.baselines_choice import Baseline, outside
from funcpipe.partitioner.cost import MB, evaluate
from funcpipe.partitioner.fees import stage_fees
from funcpipe.partitioner.lanes import stage_times
from funcpipe.partitioner.memory import memory_use
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.plan import Plan, StagePlan
from funcpipe.partitioner.verify import faults

__all__ = ["ParameterServer", "hybrid_ps", "lambdaml"]


@dataclass(frozen=True, kw_only=True)
class ParameterServer:
    """A virtual machine. bytes_per_s: of its network in each direction, shared by all workers.

    The defaults are an assumption: 10 Gbit/s and the list price of a c5.9xlarge, on demand in
    us-east-1. Nothing of this project has been measured on one.
    """

    bytes_per_s: float = 1.25e9
    dollars_per_hour: float = 1.53


def lambdaml(problem: Problem, goal: Goal, seed: int = 0) -> Baseline:
    """LambdaML (Jiang et al., SIGMOD 2021): one stage, whose replicas synchronise by three-phase
    scatter-reduce, whatever methods the space has.

    Activations of a whole share of the batch do not fit for most models, so gradients may be
    accumulated, as FuncPipe (Liu et al. 2022, section 5) lets it: `1f1b` with one in flight.
    """
    del seed
    setting, best = problem.setting, Baseline(name="lambdaml", why=_NO_FIT)
    least_s = least_dollars = math.inf
    for size, stage in _stages(problem):
        plan = Plan(stages=(stage,), micro_batch_size=size, sync="three-phase")
        estimate = evaluate(setting, plan)  # with one stage both schedules take equally long
        if not estimate.fits or "gpipe" not in problem.space.schedules:
            alone = memory_use(setting.profile, stage, num_samples=size, held=1, is_last=True)
            if alone.total > stage_bytes(stage):
                continue
            plan = replace(plan, schedule="1f1b", in_flight=1)
        least_s = min(least_s, estimate.step_s)
        least_dollars = min(least_dollars, estimate.dollars)
        value = goal.value(estimate.step_s, estimate.dollars)
        if goal.allows(estimate.step_s, estimate.dollars) and value < best.value:
            best = Baseline(name="lambdaml", plan=plan, value=value)
    if best.plan is None:
        found = math.isfinite(least_s)
        return replace(best, why=outside(goal, least_s, least_dollars) if found else _NO_FIT)
    estimate = evaluate(setting, best.plan)
    beyond = faults(problem, goal, best.plan, estimate)
    return Baseline(
        name="lambdaml", plan=best.plan, time_s=estimate.step_s, dollars=estimate.dollars,
        value=goal.value(estimate.step_s, estimate.dollars),
        why=f"by its nature: {'; '.join(beyond)}" if beyond else "",
    )  # fmt: skip


_NO_FIT = "the whole model fits in no memory size that may be chosen, or no degree is allowed"


def _stages(problem: Problem) -> Iterator[tuple[int, StagePlan]]:
    """Micro-batch sizes, and the one stage in all ways that the space has."""
    setting, space = problem.setting, problem.space
    ways = {"never": (False,), "always": (True,), "choose": (False, True)}[space.recompute]
    for size in space.sizes(setting):
        for degree in space.degrees:
            if degree > min(setting.num_micro_batches(size), problem.max_functions or degree):
                continue
            for memory_mb in space.tiers(setting):
                for recompute in ways:
                    yield size, StagePlan(
                        first_layer=0, stop_layer=setting.profile.num_layers, replicas=degree,
                        memory_mb=memory_mb, recompute=recompute,
                    )  # fmt: skip


def stage_bytes(stage: StagePlan) -> float:
    return (stage.memory_mb or 0) * float(MB)


_VM = ParameterServer()


def hybrid_ps(
    problem: Problem, goal: Goal, seed: int = 0, *, server: ParameterServer = _VM
) -> Baseline:
    """A parameter server beside the functions (Cirrus, Carreira et al. 2019; HybridPS in FuncPipe,
    Liu et al. 2022, section 5): an estimate, without a plan, for this runtime has no server.

    n workers hold the whole model and accumulate the gradients of their micro-batches. Then each
    sends s bytes to the server and gets s bytes: max(s / its own link, n s / the server's link)
    each way and one latency. The server keeps the optimiser's state, its step takes as long as a
    function's, and it is paid for by the second. Only the report of a step goes through the store.
    """
    del seed
    best = Baseline(name="hybrid-ps", why=_NO_FIT)
    least_s = least_dollars = math.inf
    for size, stage in _stages(problem):
        if _worker_bytes(problem, stage, size) > stage_bytes(stage):
            continue
        time_s, dollars = _with_server(problem, stage, size, server)
        least_s, least_dollars = min(least_s, time_s), min(least_dollars, dollars)
        value = goal.value(time_s, dollars)
        if goal.allows(time_s, dollars) and value < best.value:
            best = Baseline(
                name="hybrid-ps", time_s=time_s, dollars=dollars, value=value,
                why=f"an estimate: {stage.replicas} functions of {stage.memory_mb} MB with "
                f"micro-batches of {size} and a parameter server, which this runtime has not",
            )  # fmt: skip
    if not best.found and math.isfinite(least_s):
        return replace(best, why=outside(goal, least_s, least_dollars))
    return best


def _worker_bytes(problem: Problem, stage: StagePlan, size: int) -> float:
    profile = problem.setting.profile
    alone = replace(stage, replicas=1)  # no parts of others' gradients
    use = memory_use(profile, alone, num_samples=size, held=1, is_last=True)
    # The step is the server's, and so is what it needs.
    use = replace(use, step_workspace=0.0)
    return use.total - sum(one.trained * one.optimizer_factor for one in profile.layers)


def _with_server(
    problem: Problem, stage: StagePlan, size: int, server: ParameterServer
) -> tuple[float, float]:
    """Seconds and dollars of a step."""
    setting, platform, n = problem.setting, problem.setting.platform, stage.replicas
    memory_mb, num = stage.memory_mb or 0, setting.num_micro_batches(size)
    times = stage_times(setting, stage, num_samples=size, is_last=True)
    fees = stage_fees(setting, stage, num_micro_batches=num, is_last=True)
    alone = stage_fees(setting, replace(stage, replicas=1), num_micro_batches=num, is_last=True)
    trained = sum(one.trained for one in setting.profile.layers)
    links = (platform.up_bytes_per_s(memory_mb), platform.down_bytes_per_s(memory_mb))
    ways = [max(trained / link, n * trained / server.bytes_per_s) for link in links]
    moved_s = sum(ways) + 2 * platform.network.latency_s if trained else 0.0
    share = -(-num // n)
    time_s = share * (times.compute_f + times.compute_b) + moved_s + times.step_s
    per_s = fees.per_s + server.dollars_per_hour / 3600
    return time_s, time_s * per_s + alone.requests + fees.starts
