"""From a job to a run that is ready to start, without a function or a server."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from funcpipe.control import Control
from funcpipe.driver.options import RunOptions
from funcpipe.driver.prepare import Prepared, choose_plan, layers_text, prepare, upload
from funcpipe.errors import JobError, ModelError, PlanError, UserCodeError
from funcpipe.invocation import RunSpec
from funcpipe.keys import Run
from funcpipe.locate import load_job
from funcpipe.partitioner.plan import Plan, StagePlan, even_plan
from funcpipe.store.memory import MemoryStore
from funcpipe.store.meter import DELETE, GET, LIST, PUT, Metered
from funcpipe.store.open import StoreSpec

JOB = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import funcpipe as fp


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, 4)

    def forward(self, value):
        return torch.relu(self.linear(value))


class Keeping(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = torch.zeros(4).mean().item()

    def forward(self, value):
        return value


def data(count):
    return TensorDataset(torch.ones(count, 4), torch.zeros(count, dtype=torch.long))


def make(layers, **changes):
    fields = dict(
        model=lambda: nn.Sequential(*layers()),
        loss=F.cross_entropy,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        train_data=lambda: data(10),
        eval_data=lambda: data(3),
        batch_size=8,
        epochs=2,
    )
    return fp.Job(**(fields | changes))


def frozen():
    return nn.Linear(4, 4).requires_grad_(False)


job = make(lambda: [frozen(), Block(4), nn.Flatten(), nn.Linear(4, 2)])
narrow = make(lambda: [Block(4), Block(5), nn.Linear(4, 2)])
keeping = make(lambda: [Keeping(), nn.Linear(4, 2)])
empty = make(lambda: [Block(4)], eval_data=lambda: data(0))
whole = make(lambda: [], model=lambda: Block(4))
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine" / "job.py"
    path.parent.mkdir()
    path.write_text(JOB)
    return path


def prepared_of(file: Path, name: str = "job", **options: Any) -> Prepared:
    return prepare(load_job(f"{file}:{name}"), RunOptions.of(options))


WEIGHTS = [1.0, 1.0, 2.0, 4.0]


def chosen(batch_size: int = 64, weights: list[float] = WEIGHTS, **options: Any) -> Plan:
    job: Any = SimpleNamespace(batch_size=batch_size)
    return choose_plan(job, RunOptions.of(options), weights)


def test_without_a_word_there_are_two_stages_of_alike_weight_and_four_micro_batches() -> None:
    assert chosen() == Plan(
        stages=(StagePlan(first_layer=0, stop_layer=3), StagePlan(first_layer=3, stop_layer=4)),
        micro_batch_size=16,
    )
    assert chosen(batch_size=5).micro_batch_size == 2
    assert chosen(batch_size=3).micro_batch_size == 1
    assert chosen(weights=[1.0]).degrees == (1,)


def test_what_the_user_says_is_what_runs() -> None:
    plan = chosen(
        stages=3,
        replicas=(2, 1, 3),
        micro_batch_size=10,
        schedule="1f1b",
        in_flight=4,
        sync="three-phase",
    )
    assert plan.degrees == (2, 1, 3)
    assert (plan.micro_batch_size, plan.schedule) == (10, "1f1b")
    assert (plan.in_flight, plan.sync) == (4, "three-phase")
    assert chosen(replicas=2).degrees == (2, 2)
    # a micro-batch is never more than a batch
    assert chosen(batch_size=8, micro_batch_size=100).micro_batch_size == 8


def test_a_plan_is_taken_as_it_is_if_it_fits_the_model() -> None:
    plan = even_plan(WEIGHTS, num_stages=2, replicas=(3,), micro_batch_size=7)
    assert chosen(plan=plan) is plan
    with pytest.raises(PlanError, match=r"covers 4 layers, the model has 3; plan again"):
        chosen(plan=plan, weights=WEIGHTS[:3])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": 5}, r"5 stages were asked for, but the model has 4 layers; use at most 4"),
        ({"stages": 3, "replicas": (1, 2)}, r"2 replica counts for 3 stages"),
        ({"schedule": "gpip"}, r"schedule is 'gpip'; known: gpipe, 1f1b"),
        ({"sync": "ring"}, r"sync is 'ring'; known: pipelined, three-phase"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        chosen(**options)


def test_a_job_is_measured_and_planned(file: Path) -> None:
    one = prepared_of(file, stages=2, steps=3)
    assert [(layer.index, layer.name) for layer in one.chain.layers] == [
        (0, "0"), (1, "1"), (2, "2"), (3, "3"),
    ]  # fmt: skip
    assert (one.num_train, one.num_eval, one.num_steps) == (10, 3, 3)
    assert prepared_of(file).num_steps == 4
    assert one.packed.files == ("job.py",)
    # the first stage is the frozen layer alone, or has the block beside it
    plan = Plan(
        stages=(StagePlan(first_layer=0, stop_layer=1), StagePlan(first_layer=1, stop_layer=4)),
        micro_batch_size=2,
    )
    assert prepared_of(file, plan=plan).trains == (False, True)
    assert prepared_of(file, stages=1).trains == (True,)
    assert [layers_text(plan, stage) for stage in (0, 1)] == ["0-0", "1-3"]


def test_shapes_that_do_not_fit_name_the_layer_and_the_user_s_own_line(file: Path) -> None:
    with pytest.raises(UserCodeError) as caught:
        prepared_of(file, "narrow")
    line = next(n for n, text in enumerate(JOB.splitlines(), 1) if "torch.relu" in text)
    assert caught.value.where == (
        f"job.py:{line} in forward: return torch.relu(self.linear(value))"
    )
    assert "in layer 1 (1: Block)" in caught.value.message
    assert "tried on 2 samples" in caught.value.message


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("empty", JobError, r"job.eval_data\(\) is empty"),
        ("whole", ModelError, "only torch.nn.Sequential models"),
    ],
)
def test_other_mistakes_are_told_before_anything_is_stored(
    file: Path, name: str, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        prepared_of(file, name)


def uploaded(one: Prepared) -> tuple[Metered, RunSpec, list[str]]:
    store, notes = Metered(MemoryStore()), []
    spec = upload(
        one,
        store,
        root="runs/r1",
        spec=StoreSpec(url="memory:test"),
        if_absent=False,
        report_every=5,
        note=notes.append,
    )
    return store, spec, notes


def test_control_object_bundle_layers_and_manifest_are_stored_once_each(file: Path) -> None:
    one = prepared_of(file, stages=2, replicas=(2, 1))
    store, spec, notes = uploaded(one)
    usage, run = store.counts(), Run("runs/r1")
    layers = [run.layer(index) for index in range(4)]
    assert sorted(store.list("")) == sorted(
        [run.control(1), run.bundle(one.packed.digest), run.manifest(), *layers]
    )
    assert [usage.total(operation) for operation in (PUT, GET, DELETE, LIST)] == [7, 0, 0, 0]
    assert Control.decode(store.get(run.control(1))) == spec.control
    assert bytes(store.get(run.bundle(one.packed.digest))) == one.packed.data
    manifest = json.loads(bytes(store.get(run.manifest())))
    assert [entry["num_bytes"] for entry in manifest["layers"]] == [
        len(store.get(key)) for key in layers
    ]
    assert (manifest["build"], notes) == ("meta", [])


def test_functions_are_told_what_was_prepared(file: Path) -> None:
    one = prepared_of(file, stages=2, replicas=(2, 1), steps=3)
    _, spec, _ = uploaded(one)
    assert spec.plan == one.plan
    assert (spec.num_train, spec.num_eval, spec.num_steps) == (10, 3, 3)
    assert (spec.entry, spec.digest) == (one.packed.entry, one.packed.digest)
    assert (spec.if_absent, spec.report_every, spec.trains) == (False, 5, one.trains)
    assert spec.shape.degrees == (2, 1)


def planned_for(**predicted: Any) -> Plan:
    stage = StagePlan(first_layer=0, stop_layer=4, memory_mb=1769)
    return Plan(stages=(stage,), micro_batch_size=2, predicted=predicted)


def test_functions_are_not_told_what_was_predicted(file: Path) -> None:
    one = prepared_of(file, plan=planned_for(step_s=1.5))
    _, spec, _ = uploaded(one)
    assert one.plan.predicted == {"step_s": 1.5}
    assert spec.plan.predicted is None


@pytest.mark.parametrize(
    ("predicted", "options", "told"),
    [
        ({"platform": "aws-lambda", "batch_size": 8}, {}, []),
        ({}, {}, []),
        ({"platform": "aliyun-fc"}, {}, ["made for aliyun-fc, and aws-lambda is emulated"]),
        ({"batch_size": 64}, {}, ["made for batches of 64 samples, and the job has 8"]),
        ({"platform": "aliyun-fc"}, {"emulate": "none"}, ["memory sizes do nothing here"]),
    ],
)
def test_what_a_plan_was_not_made_for_is_told(
    file: Path, predicted: dict[str, Any], options: dict[str, Any], told: list[str]
) -> None:
    found = prepared_of(file, plan=planned_for(**predicted), **options).caveats
    assert len(found) == len(told)
    assert all(part in text for part, text in zip(told, found, strict=True))


def test_a_plan_that_recomputes_is_taken_as_it_is() -> None:
    plan = planned_for()
    again = replace(plan, stages=(replace(plan.stages[0], recompute=True), *plan.stages[1:]))
    assert RunOptions(plan=again).plan is again
    with pytest.raises(PlanError, match="a plan was given, and recompute beside it"):
        RunOptions(plan=again, recompute="none")


@pytest.mark.parametrize(
    ("recompute", "again"),
    [
        (None, [False] * 3),
        ("none", [False] * 3),
        ("all", [True] * 3),
        ((2, 0), [True, False, True]),
        (1, [False, True, False]),
    ],
)
def test_stages_recompute_as_the_user_says(recompute: object, again: list[bool]) -> None:
    plan = chosen(stages=3, recompute=recompute)
    assert [stage.recompute for stage in plan.stages] == again
    assert [stage.stop_layer for stage in plan.stages] == [
        stage.stop_layer for stage in chosen(stages=3).stages
    ]


@pytest.mark.parametrize(
    ("stages", "told"), [(2, "the plan has stages 0 to 1"), (1, "the plan has stage 0 alone")]
)
def test_a_stage_that_is_not_there_cannot_recompute(stages: int, told: str) -> None:
    with pytest.raises(PlanError, match=f"recompute names stage 2, but {told}; .* 'all'"):
        chosen(stages=stages, recompute=(0, 2))


def test_a_model_that_must_be_built_whole_is_said_so(file: Path) -> None:
    _, _, notes = uploaded(prepared_of(file, "keeping"))
    assert len(notes) == 1
    assert "every function holds all of it for a moment" in notes[0]
    assert "job.model() fails on the meta device" in notes[0]
