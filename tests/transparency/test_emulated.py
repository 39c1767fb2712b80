"""A sample of the plans on emulated platforms: no limit and no dilation changes a result."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from compare import EXACT, EXACT_ADAM, assert_equal_tensors
from safetensors.torch import load_file

import funcpipe as fp
from funcpipe.locate import load_job
from funcpipe.partitioner.plan import Plan, StagePlan

JOBS = Path(__file__).parent / "real_jobs.py"
STEPS = 5

pytestmark = pytest.mark.timeout(180)


@dataclass(frozen=True)
class Case:
    """A plan as (layers, replicas, memory in MB) of each stage, and the platform that runs it."""

    job: str
    stages: tuple[tuple[int, int, int], ...]
    micro_batch_size: int
    tolerance: float
    emulate: str
    dilation: float
    figures: dict[str, str] = field(default_factory=dict)
    schedule: str = "gpipe"
    sync: str = "pipelined"

    @property
    def ref(self) -> str:
        return f"{JOBS}:{self.job}"

    @property
    def plan(self) -> Plan:
        stages, first = [], 0
        for num_layers, replicas, memory_mb in self.stages:
            stop = first + num_layers
            stages.append(
                StagePlan(
                    first_layer=first, stop_layer=stop, replicas=replicas, memory_mb=memory_mb
                )
            )
            first = stop
        return Plan(
            stages=tuple(stages),
            micro_batch_size=self.micro_batch_size,
            schedule=self.schedule,
            sync=self.sync,
        )


QUICK = {"time.cold_start_s": "0", "network.latency_s": "0.005"}
# The least memory in which a function with this PyTorch starts and trains, and its share of CPU.
TINY_MB = 384
CASES = {
    # Replicas with dropout; batches of 8, 8 and 3 samples. Links with bursts, that arrive twice.
    "bursts": Case(
        "dropped",
        ((3, 2, 1769), (2, 2, 512)),
        2,
        EXACT,
        "aws-lambda",
        1.0,
        QUICK
        | {
            "network.burst_bytes": "20000",
            "network.burst_bytes_per_s": "1000000",
            "network.up_bytes_per_s": "200000",
            "invocation.duplicate_rate": "0.5",
        },
    ),
    # The least memory, and a third of the speed.
    "tiny": Case("dropped", ((3, 1, TINY_MB), (2, 2, TINY_MB)), 2, EXACT, "aws-lambda", 3.0, QUICK),
    # Nested values with masks cross both cuts; another platform, with its own cold start.
    "aliyun": Case(
        "nested",
        ((2, 1, 512), (1, 2, 1024), (2, 1, 512)),
        3,
        EXACT_ADAM,
        "aliyun-fc",
        1.0,
        {},
        "1f1b",
        "three-phase",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_limited_run_equals_plain_pytorch(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    summary = fp.train(
        case.ref,
        plan=case.plan,
        steps=STEPS,
        store=str(tmp_path / "objects"),
        emulate=case.emulate,
        dilation=case.dilation,
        set=case.figures,
        emulate_seed=1,
        run_dir=tmp_path / "run",
    )
    want = fp.reference(case.ref, case.micro_batch_size, steps=STEPS)
    model = load_job(case.ref).job.model()
    model.load_state_dict(load_file(str(summary.model_path)), strict=True)
    assert_equal_tensors(model.state_dict(), want.state_dict, case.tolerance)
    assert summary.losses == pytest.approx(want.losses, rel=1e-11)
    assert summary.metrics == pytest.approx(want.metrics, rel=1e-11)
    assert summary.emulation is not None
    assert summary.emulation["platform"] == case.emulate
    assert summary.emulation["dilation"] == case.dilation
    sizes = [size for _, replicas, size in case.stages for _ in range(replicas)]
    assert [one.memory_mb for one in summary.functions] == sizes
