"""Recomputation is a matter of memory and time: no bit of a run depends on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jobs
import pytest
import torch
from cluster import Trained, plan_of, train_inline
from safetensors.torch import load_file

import funcpipe as fp
from funcpipe.job import Job
from funcpipe.partitioner.plan import Plan

REAL_JOBS = Path(__file__).parent / "real_jobs.py"
MAKE: dict[str, Callable[[], Job]] = {
    "dropout": partial(jobs.job, jobs.with_dropout),
    "batch norm": partial(jobs.job, jobs.with_batch_norm),
    "in place": partial(jobs.job, jobs.with_bare_ends),
    "nested values": partial(jobs.job, jobs.with_nested_values),
    "frozen first": partial(jobs.job, jobs.with_frozen_first),
    "untouched": partial(jobs.job, jobs.with_untouched),
    "rare branch": partial(jobs.job, jobs.with_rare_branch),
    "ignored labels": partial(
        jobs.job, jobs.plain, loss=jobs.ignoring_loss, loss_weight=jobs.counted_labels
    ),
    "evaluated": partial(
        jobs.job, jobs.with_batch_norm, eval_data=partial(jobs.data, 11), eval_every=2
    ),
}
PLANS: dict[str, dict[str, Any]] = {
    "one": {"stages": 1, "replicas": (1,), "micro_batches": 4},
    "gpipe": {"stages": 2, "replicas": (1, 1), "micro_batches": 4},
    "1f1b": {"stages": 3, "replicas": (1, 1, 1), "micro_batches": 4, "schedule": "1f1b"},
    "replicas": {"stages": 2, "replicas": (2, 3), "micro_batches": 4, "schedule": "1f1b"},
    "each": {"stages": 4, "replicas": (1, 2, 1, 1), "micro_batches": 4},
}


def recomputing(plan: Plan, *stages: int) -> Plan:
    """`plan` in which those stages recompute; all, if none is named."""
    again = stages or range(len(plan.stages))
    chosen = [replace(stage, recompute=k in again) for k, stage in enumerate(plan.stages)]
    return replace(plan, stages=tuple(chosen))


def bits(trained: Trained) -> dict[str, Any]:
    def of(tensors: dict[str, Any]) -> dict[str, Any]:
        return {k: None if t is None else t.numpy().tobytes() for k, t in tensors.items()}

    return {
        "weights": of(trained.state_dict),
        "gradients": of(trained.gradients),
        "losses": trained.losses,
        "metrics": trained.metrics,
    }


@cache
def kept(name: str, kind: str) -> tuple[Job, Plan, dict[str, Any]]:
    job = MAKE[name]()
    plan = plan_of(job, **PLANS[kind])
    return job, plan, bits(train_inline(job, plan, steps=4))


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("kind", PLANS)
def test_a_run_that_recomputes_has_the_same_bits(name: str, kind: str) -> None:
    # Given a run that keeps its activations
    job, plan, want = kept(name, kind)
    # When every stage recomputes, or the first, or the last alone
    for stages in ((), (0,), (len(plan.stages) - 1,)):
        got = train_inline(job, recomputing(plan, *stages), steps=4, order_seed=1)
        # Then weights, buffers, gradients, losses and metrics are the same, and so are replicas
        assert bits(got) == want
        assert got.replicas_differ == [] or name in ("batch norm", "evaluated")


def test_buffers_are_updated_once_for_each_micro_batch() -> None:
    job, plan, _ = kept("batch norm", "gpipe")
    got = train_inline(job, recomputing(plan), steps=3)
    counted = [t for name, t in got.state_dict.items() if name.endswith("num_batches_tracked")]
    assert [int(count) for count in counted] == [3 * 4, 3 * 4]


def test_each_stage_is_told_by_the_plan() -> None:
    job, plan, _ = kept("dropout", "1f1b")
    ran: dict[int, int] = {}

    def counted(module: torch.nn.Module, _inputs: Any, _output: Any) -> None:
        if isinstance(module, torch.nn.Linear):
            ran[module.out_features] = ran.get(module.out_features, 0) + 1

    handle = torch.nn.modules.module.register_module_forward_hook(counted)
    try:
        train_inline(job, plan, steps=1)
        once = dict(ran)
        ran.clear()
        train_inline(job, recomputing(plan, 2), steps=1)
    finally:
        handle.remove()
    # Only the last layer, of 3 outputs, runs again: the last stage's
    assert ran[jobs.CLASSES] == 2 * once[jobs.CLASSES] > 0
    assert ran[jobs.WIDTH] == once[jobs.WIDTH] > 0


@pytest.mark.server
@pytest.mark.timeout(180)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_processes_that_recompute_give_the_same_bits(schedule: str, tmp_path: Path) -> None:
    # Given stages with dropout, batch normalisation, and a layer in place at a stage's start
    options: dict[str, Any] = {
        "stages": 3, "replicas": (1, 2, 1), "micro_batch_size": 2, "schedule": schedule,
        "steps": 3, "emulate": "none", "store": str(tmp_path / "store"), "threads": 1,
    }  # fmt: skip
    (tmp_path / "store").mkdir()
    # When it is trained with and without recomputation
    runs = [
        fp.train(f"{REAL_JOBS}:normalised", run_dir=tmp_path / str(k), recompute=again, **options)
        for k, again in enumerate(("none", (0, 1, 2)))
    ]
    # Then models and losses are the same, and the summary tells which plan it was
    one, other = (load_file(str(run.model_path)) for run in runs)
    assert {k: t.numpy().tobytes() for k, t in one.items()} == {
        k: t.numpy().tobytes() for k, t in other.items()
    }
    assert runs[0].losses == runs[1].losses
    assert [[s["recompute"] for s in run.plan["stages"]] for run in runs] == [
        [False] * 3,
        [True] * 3,
    ]
