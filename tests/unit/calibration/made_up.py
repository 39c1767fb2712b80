"""Timelines made by hand or from a simulation, and what they are of."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from funcpipe.partitioner.plan import Plan, StagePlan
from funcpipe.partitioner.platform import PlatformSpec, load_platform
from funcpipe.partitioner.profile import LayerProfile, ModelProfile
from funcpipe.partitioner.setting import Setting
from funcpipe.partitioner.simulate import simulate_plan

MB = 2**20

PLAN = Plan(
    stages=(
        StagePlan(first_layer=0, stop_layer=1, memory_mb=1769),
        StagePlan(first_layer=1, stop_layer=2, memory_mb=1769),
    ),
    micro_batch_size=4,
)


def platform(**changes: str) -> PlatformSpec:
    """AWS Lambda where 1,769 MB have one vCPU, with latencies of 10 ms."""
    return load_platform("aws-lambda", changes={"network.latency_s": "0.01", **changes})


def layer(name: str, forward_s: float, backward_s: float, **fields: Any) -> LayerProfile:
    """Of micro-batches of 4 samples."""
    sizes = {"parameter_bytes": 4 * MB, "output_bytes": MB, "activation_bytes": MB}
    return LayerProfile(
        name=name, forward_s=((forward_s,),), backward_s=((backward_s,),), **(sizes | fields)
    )


def profile(*layers: LayerProfile, **fields: Any) -> ModelProfile:
    chosen = {"micro_batch_sizes": (4,), "batch_size": 8, "base_memory_bytes": 300 * MB} | fields
    own = layers or (
        layer("first", 0.1, 0.2, step_s=(0.02,)),
        layer("second", 0.3, 0.4, step_s=(0.01,)),
    )
    return ModelProfile(name="two", layers=own, **chosen)


def setting(model: ModelProfile, *, batch_size: int = 8, **changes: str) -> Setting:
    return Setting(profile=model, platform=platform(**changes), batch_size=batch_size)


def row(index: int, token: str, start: float, end: float, **known: float) -> list[Any]:
    """A row as workers write it: pass, token, start, end, user, transfer, wait, misses."""
    spent = [known.get(name, 0.0) for name in ("user", "transfer", "wait")]
    return [index, token, start, end, *spent, int(known.get("misses", 0))]


def timeline(*workers: dict[str, Any], **run: int) -> dict[str, Any]:
    """By default 80 samples in batches of 8, of which micro-batches have 4."""
    about = {"num_train": 80, "num_eval": 0, "num_steps": 6, "batch_size": 8,
             "micro_batch_size": 4, "report_every": 1}  # fmt: skip
    return {"format": 1, "shape": {}, "run": about | run, "workers": list(workers)}


def worker(stage: int, replica: int, began_at: float, rows: list[list[Any]]) -> dict[str, Any]:
    return {"stage": stage, "replica": replica, "began_at": began_at, "rows": rows}


def simulated(truth: Setting, plan: Plan, *, num_steps: int = 6) -> dict[str, Any]:
    """What workers would write down of steps that the simulator has run."""
    spans = simulate_plan(truth, plan, num_steps=num_steps, timeline=True).timeline
    assert spans is not None
    rows: dict[tuple[int, int], list[list[Any]]] = defaultdict(list)
    for one in spans:
        rows[one.stage, one.replica].append(row(one.step, one.action, one.start_s, one.end_s))
    return timeline(
        *(worker(s, r, 0.0, found) for (s, r), found in sorted(rows.items())),
        num_steps=num_steps,
        batch_size=truth.batch_size,
        micro_batch_size=plan.micro_batch_size,
    )
