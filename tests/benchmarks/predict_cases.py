"""The plans whose predictions are put to the test: shapes, and how a shape becomes a plan."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from funcpipe.errors import Infeasible
from funcpipe.partitioner.cost import evaluate
from funcpipe.partitioner.objective import Objective
from funcpipe.partitioner.plan import Plan
from funcpipe.partitioner.planner import plan_for
from funcpipe.partitioner.setting import Setting
from funcpipe.partitioner.space import Space

ROOT = Path(__file__).resolve().parents[2]
JOBS = {
    "digits": ROOT / "examples" / "digits" / "job.py",
    "charlm": ROOT / "examples" / "charlm" / "job.py",
    "wide": Path(__file__).parent / "wide_job.py",
}
PLATFORM = "aws-lambda"
MB = 2**20


@dataclass(frozen=True, kw_only=True)
class Case:
    """A shape of which the planner chooses the cuts. steps: of its run."""

    job: str
    stages: int
    degree: int
    micro_batch: int
    memory_mb: int = 1769
    schedule: str = "gpipe"
    steps: int = 12

    @property
    def name(self) -> str:
        schedule = "" if self.schedule == "gpipe" else f" {self.schedule}"
        return f"{self.job} {self.stages}x{self.degree} at {self.memory_mb} MB{schedule}"


CASES = (
    Case(job="digits", stages=1, degree=1, micro_batch=32),
    Case(job="digits", stages=2, degree=1, micro_batch=32),
    Case(job="digits", stages=1, degree=2, micro_batch=32),
    Case(job="digits", stages=2, degree=2, micro_batch=16),
    Case(job="digits", stages=4, degree=1, micro_batch=16, schedule="1f1b"),
    Case(job="digits", stages=4, degree=4, micro_batch=8, memory_mb=1024, steps=8),
    Case(job="charlm", stages=1, degree=1, micro_batch=8, memory_mb=3538),
    Case(job="charlm", stages=2, degree=1, micro_batch=4),
    Case(job="charlm", stages=2, degree=2, micro_batch=4),
    Case(job="charlm", stages=4, degree=1, micro_batch=4, memory_mb=1024, schedule="1f1b"),
    Case(job="charlm", stages=3, degree=2, micro_batch=4, memory_mb=2560, steps=8),
    Case(job="wide", stages=1, degree=1, micro_batch=16, steps=8),
    Case(job="wide", stages=2, degree=1, micro_batch=16, steps=8),
    Case(job="wide", stages=4, degree=1, micro_batch=16, memory_mb=1024, steps=8),
    Case(job="wide", stages=2, degree=2, micro_batch=16, steps=7),
    Case(job="wide", stages=4, degree=4, micro_batch=4, memory_mb=1024, steps=6),
)


def plan_of(case: Case, setting: Setting) -> Plan:
    space = Space(
        micro_batch_sizes=(case.micro_batch,),
        degrees=(case.degree,),
        schedules=(case.schedule,),
        tiers_mb=(case.memory_mb,),
        min_stages=case.stages,
        max_stages=case.stages,
    )
    return plan_for(setting, objective=Objective(kind="min-time"), space=space).plan


def at_the_edge(plan: Plan, setting: Setting) -> Plan:
    """The same with as few MB for each stage as its planned memory fits into."""
    stages = tuple(
        replace(stage, memory_mb=math.ceil(told.memory.total / MB))
        for stage, told in zip(plan.stages, evaluate(setting, plan).stages, strict=True)
    )
    return replace(plan, stages=stages)


def is_refused_below(plan: Plan, setting: Setting) -> bool:
    """Whether the planner finds none like it, of one stage, with 1 MB less than it has."""
    (stage,) = plan.stages
    space = Space(
        micro_batch_sizes=(plan.micro_batch_size,),
        degrees=plan.degrees,
        schedules=(plan.schedule,),
        tiers_mb=((stage.memory_mb or 0) - 1,),
        max_stages=1,
    )
    try:
        plan_for(setting, objective=Objective(kind="min-time"), space=space)
    except Infeasible:
        return True
    return False
