"""What one of four stages of a model of 400 MB takes, as JSON on standard output.

Run as a script, in a process of its own for every part: ``URL ENDPOINT LAYERS store`` stores
the model as the driver does; the same with a stage's number in place of ``store`` builds that
stage and runs it forward, as a function does. Credentials come through the AWS variables.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from funcpipe.driver.prepare import store_model
from funcpipe.invocation import Invocation, RunSpec
from funcpipe.keys import Run
from funcpipe.model.build import build_model
from funcpipe.model.chain import chain_of
from funcpipe.partitioner.plan import even_plan
from funcpipe.passes import Pass
from funcpipe.store.open import StoreSpec
from funcpipe.worker.build import build_stage
from funcpipe.worker.memory import base_bytes, peak_bytes, resident_bytes

NUM_STAGES = 4
MODEL_BYTES = 416_000_000
BATCH = 8


def width_of(num_layers: int) -> int:
    """Of square layers in float32 that take `MODEL_BYTES` together."""
    return int((MODEL_BYTES / 4 / num_layers) ** 0.5)


def make_job(num_layers: int) -> Any:
    """Trainable, with an optimiser that keeps two numbers per weight; data of one sample."""
    width = width_of(num_layers)
    sample = (torch.zeros(width), torch.zeros(width))
    return SimpleNamespace(
        model=lambda: nn.Sequential(*(nn.Linear(width, width) for _ in range(num_layers))),
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.1),
        lr_scheduler=None,
        train_data=lambda: [sample],
        eval_data=lambda: [sample],
        collate=None,
        loss_reduction="mean",
        loss_weight=None,
        metrics={},
        seed=0,
    )


def make_spec(url: str, endpoint: str | None, num_layers: int) -> RunSpec:
    return RunSpec(
        root="runs/memory",
        attempt=1,
        control_version=1,
        plan=even_plan(
            [1.0] * num_layers, num_stages=NUM_STAGES, replicas=(1,), micro_batch_size=BATCH
        ),
        trains=(True,) * NUM_STAGES,
        entry="",
        digest="",
        num_train=1,
        num_eval=1,
        num_steps=1,
        store=StoreSpec(url=url, endpoint=endpoint, region="us-east-1" if endpoint else None),
        if_absent=True,
    )


def store_all(spec: RunSpec, num_layers: int) -> dict[str, Any]:
    store = spec.store.open()
    job = make_job(num_layers)
    base = resident_bytes()
    chain = chain_of(build_model(job))
    model = sum(p.nbytes for layer in chain.layers for p in layer.module.parameters())
    manifest = store_model(job, chain, store, Run(spec.root))
    store.close()
    return {"model_bytes": model, "over_base": peak_bytes() - base, "build": manifest["build"]}


def run_stage(spec: RunSpec, num_layers: int, stage: int) -> dict[str, Any]:
    store = spec.store.open()
    base = base_bytes()
    place = Invocation(spec=spec, stage=stage, replica=0, token="t")
    built = build_stage(place, make_job(num_layers), store, roots=())
    loaded = peak_bytes() - base
    one = Pass(0, False, 1, (tuple(range(BATCH)),))
    value = torch.randn(BATCH, width_of(num_layers))
    target = torch.zeros(BATCH, width_of(num_layers)) if place.is_last else None
    built.evaluate(one, 0, value, target)
    store.close()
    stage_bytes = sum(p.nbytes for layer in built.stage.layers for p in layer.module.parameters())
    return {"stage_bytes": stage_bytes, "loaded": loaded, "over_base": peak_bytes() - base}


def main() -> None:
    url, endpoint, num_layers, part = (
        sys.argv[1],
        sys.argv[2] or None,
        int(sys.argv[3]),
        sys.argv[4],
    )
    spec = make_spec(url, endpoint, num_layers)
    if part == "store":
        print(json.dumps(store_all(spec, num_layers)))
    else:
        print(json.dumps(run_stage(spec, num_layers, int(part))))


if __name__ == "__main__":
    main()
