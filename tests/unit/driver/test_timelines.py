"""The timelines' file holds what one needs to tell whose the time of a step was."""

from __future__ import annotations

import json
from pathlib import Path

from funcpipe.driver.timelines import timelines, write_timelines
from funcpipe.invocation import RunSpec
from funcpipe.partitioner.plan import Plan, StagePlan
from funcpipe.store.open import StoreSpec

PLAN = Plan(
    stages=(
        StagePlan(first_layer=0, stop_layer=2, replicas=2),
        StagePlan(first_layer=2, stop_layer=3),
    ),
    micro_batch_size=4,
    schedule="1f1b",
    in_flight=3,
)
SPEC = RunSpec(
    root="runs/x",
    attempt=1,
    control_version=1,
    plan=PLAN,
    trains=(True, False),
    entry="job:job",
    digest="0" * 64,
    num_train=100,
    num_eval=10,
    num_steps=7,
    store=StoreSpec(url="s3://bucket", endpoint="http://127.0.0.1:1"),
    if_absent=True,
    report_every=2,
)


def test_the_file_says_who_did_what_and_under_which_plan(tmp_path: Path) -> None:
    # given the results of two functions, in any order
    row = [0, "0F0", 0.5, 1.5, 1.0, 0.0, 0.0, 0]
    results = {
        (1, 0): {"began_at": 20.0, "timeline": [], "usage": {}},
        (0, 1): {"began_at": 10.0, "timeline": [row], "usage": {}},
    }
    path = tmp_path / "timeline.json"
    write_timelines(path, timelines(SPEC, results, batch_size=20))
    # then the file holds the rows by function, and the plan and the passes they belong to
    assert json.loads(path.read_text(encoding="utf-8")) == {
        "format": 1,
        "shape": {
            "degrees": [2, 1],
            "trains": [True, False],
            "schedule": "1f1b",
            "in_flight": 3,
            "sync": "pipelined",
        },
        "run": {
            "num_train": 100,
            "num_eval": 10,
            "num_steps": 7,
            "batch_size": 20,
            "micro_batch_size": 4,
            "report_every": 2,
        },
        "workers": [
            {"stage": 0, "replica": 1, "began_at": 10.0, "rows": [row]},
            {"stage": 1, "replica": 0, "began_at": 20.0, "rows": []},
        ],
    }
