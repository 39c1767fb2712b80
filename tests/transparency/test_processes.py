"""A sample of the plans over real processes and a real S3 server: still equal to plain PyTorch.

Functions take seconds to start, so that each run here has several things to show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from compare import EXACT, EXACT_ADAM, assert_equal_tensors
from safetensors.torch import load_file

import funcpipe as fp
from funcpipe.emulator.server import start_server
from funcpipe.locate import load_job
from funcpipe.model.build import build_data
from funcpipe.partitioner.plan import Plan, StagePlan
from funcpipe.passes import passes
from funcpipe.report.summary import Summary
from funcpipe.schedule.count import requests_per_evaluation, requests_per_step
from funcpipe.schedule.program import Shape

JOBS = Path(__file__).parent / "real_jobs.py"
STEPS = 5
TRAVELLING = ("act", "grad", "part", "sum", "report")

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


@dataclass(frozen=True)
class Case:
    """A plan as (layers, replicas) of each stage, and whether each has something to train."""

    job: str
    stages: tuple[tuple[int, int], ...]
    micro_batch_size: int
    tolerance: float
    schedule: str = "gpipe"
    sync: str = "pipelined"
    trains: tuple[bool, ...] | None = None

    @property
    def ref(self) -> str:
        return f"{JOBS}:{self.job}"

    @property
    def plan(self) -> Plan:
        stages, first = [], 0
        for num_layers, replicas in self.stages:
            stop = first + num_layers
            stages.append(StagePlan(first_layer=first, stop_layer=stop, replicas=replicas))
            first = stop
        return Plan(
            stages=tuple(stages),
            micro_batch_size=self.micro_batch_size,
            schedule=self.schedule,
            sync=self.sync,
        )

    @property
    def shape(self) -> Shape:
        plan = self.plan
        return Shape(
            degrees=plan.degrees,
            trains=self.trains or (True,) * len(self.stages),
            schedule=plan.schedule,
            sync=plan.sync,
        )


Trainer = Callable[[Case], Summary]


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    """Runs a case over one server that all share, as one would over any S3 store."""
    with (
        start_server("seaweedfs", folder=tmp_path_factory.mktemp("store")) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in server.credentials.to_environment().items():
            patch.setenv(name, value)

        def run(case: Case) -> Summary:
            return fp.train(
                case.ref,
                plan=case.plan,
                steps=STEPS,
                store=server.url,
                emulate="none",
                endpoint=server.endpoint,
                region=server.region,
                run_dir=tmp_path_factory.mktemp(case.job),
            )

        yield run


@pytest.fixture(scope="module")
def first_run(train: Trainer) -> Trainer:
    """The same, but a case that has been run is not run again."""
    return cache(train)


# Batches of 8, 8 and 3 samples make 4, 4 and 2 micro-batches.
DROPPED = Case("dropped", ((3, 2), (2, 2)), 2, EXACT)
# The values that cross both cuts are nested, and hold masks, numbers and None.
NESTED = Case("nested", ((2, 1), (1, 2), (2, 1)), 3, EXACT_ADAM, "1f1b", "three-phase")
# One micro-batch a step leaves a replica of the last stage without work; stage 0 is frozen.
FROZEN = Case("frozen", ((2, 1), (3, 2)), 8, EXACT, trains=(False, True))


@pytest.mark.parametrize("case", [DROPPED, NESTED, FROZEN], ids=lambda case: case.job)
def test_a_run_equals_plain_pytorch(case: Case, first_run: Trainer) -> None:
    summary = first_run(case)
    want = fp.reference(case.ref, case.micro_batch_size, steps=STEPS)
    model = load_job(case.ref).job.model()
    model.load_state_dict(load_file(str(summary.model_path)), strict=True)
    assert_equal_tensors(model.state_dict(), want.state_dict, case.tolerance)
    assert summary.losses == pytest.approx(want.losses, rel=1e-11)
    assert summary.metrics == pytest.approx(want.metrics, rel=1e-11)


@pytest.mark.parametrize("case", [DROPPED, NESTED, FROZEN], ids=lambda case: case.job)
def test_a_run_makes_the_requests_of_the_formula(case: Case, first_run: Trainer) -> None:
    summary = first_run(case)
    assert [(one.stage, one.replica) for one in summary.functions] == case.shape.workers()
    assert requests_of_functions(summary) == expected_requests(case)
    assert "LIST" not in summary.requests
    assert summary.requests["GET_MISSED"] == sum(
        count for name, count in summary.requests_by_kind.items() if name.startswith("GET_MISSED ")
    )


def test_the_same_plan_twice_gives_the_same_bits(train: Trainer, first_run: Trainer) -> None:
    files = [Path(str(run(DROPPED).model_path)).read_bytes() for run in (first_run, train)]
    assert files[0] == files[1]


def requests_of_functions(summary: Summary) -> dict[str, int]:
    """By operation and kind; DELETEs in all, since one may remove objects of several kinds."""
    counts: Counter[str] = Counter()
    for name, number in summary.requests_by_kind.items():
        operation, kind = name.split()
        if operation == "DELETE":
            counts["DELETE"] += number
        elif operation != "GET_MISSED":
            counts[f"{operation} {'*' if kind in TRAVELLING else kind}"] += number
    return counts


def expected_requests(case: Case) -> dict[str, int]:
    job, plan, shape = load_job(case.ref).job, case.plan, case.shape
    total: Counter[str] = Counter()
    for one in passes(
        job,
        num_train=len(build_data(job)),
        num_eval=len(build_data(job, evaluation=True)) if job.eval_data else 0,
        num_steps=STEPS,
        micro_batch_size=case.micro_batch_size,
    ):
        formula = requests_per_step if one.trains else requests_per_evaluation
        total.update(formula(shape, num_micro_batches=len(one.micro_batches)))
    functions = plan.num_functions
    layers_read = sum((s.stop_layer - s.first_layer) * s.replicas for s in plan.stages)
    return {
        "PUT *": total["PUT"],
        "GET *": total["GET"],
        "DELETE": total["DELETE"],
        "PUT lease": functions,
        "GET bundle": functions,
        "GET model": functions + layers_read,
        "PUT final": plan.num_layers,
    }
