"""Problems for tests of solvers: random layers on Lambda's memory sizes."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from funcpipe.partitioner.backend import Deadline, Problem
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.platform import load_platform
from funcpipe.partitioner.profile import LayerProfile, ModelProfile
from funcpipe.partitioner.setting import Setting
from funcpipe.partitioner.space import Space

MIB = 2**20
MIN_TIME = Goal(time_weight=1.0, cost_weight=0.0)
MIN_COST = Goal(time_weight=0.0, cost_weight=1.0)
BOTH = Goal(time_weight=0.05, cost_weight=50.0)


def problem(
    num_layers: int = 4,
    *,
    seed: int = 0,
    batch_size: int = 8,
    tiers_mb: tuple[int, ...] = (1024, 2048, 4096),
    plain: bool = False,
    **space: Any,
) -> Problem:
    """One micro-batch size and one degree unless `space` says otherwise. plain: transfers without
    CPU time, no workspaces.
    """
    chance = random.Random(seed)

    def layer(number: int) -> LayerProfile:
        forward = chance.uniform(0.05, 0.6)
        return LayerProfile(
            name=f"layer{number}",
            forward_s=((forward,),),
            backward_s=((2 * forward,),),
            parameter_bytes=chance.uniform(1, 20) * MIB,
            optimizer_factor=1,
            activation_bytes=chance.uniform(0.1, 10) * MIB,
            output_bytes=chance.uniform(0.2, 8) * MIB,
        )

    def with_workspaces(one: LayerProfile) -> LayerProfile:
        return replace(
            one,
            workspace_bytes=chance.choice([0.0, chance.uniform(1, 30) * MIB]),
            fixed_workspace_bytes=chance.choice([0.0, chance.uniform(1, 30) * MIB]),
            step_workspace_bytes=chance.choice([0.0, chance.uniform(1, 90) * MIB]),
        )

    profile = ModelProfile(name="any", layers=tuple(layer(number) for number in range(num_layers)))
    if not plain:
        profile = replace(
            profile,
            layers=tuple(with_workspaces(one) for one in profile.layers),
            data_bytes=chance.uniform(0, 60) * MIB,
            late_s=chance.choice([0.0, chance.uniform(0.0, 0.1)]),
            **{f"{way}_cpu_s": chance.uniform(0, 0.1) for way in ("put", "get")},
            **{f"{way}_byte_cpu_s": chance.uniform(0, 1e-8) for way in ("put", "get")},
        )
    chosen = {"micro_batch_sizes": (2,), "degrees": (2,), "tiers_mb": tiers_mb, **space}
    return Problem(
        setting=Setting(
            profile=profile,
            platform=load_platform("aws-lambda"),
            batch_size=batch_size,
        ),
        space=Space(**chosen),
    )


def hard_problem(num_layers: int = 18) -> Problem:
    """A single combination that a mixed-integer solver needs seconds for, under `BOTH`."""
    tiers = (1024, 2048, 3072, 4096, 6144, 8192)
    return problem(num_layers, batch_size=64, micro_batch_sizes=(4,), tiers_mb=tiers, plain=True)


def over() -> Deadline:
    """A deadline that has passed."""
    readings = iter([0.0])
    return Deadline(1.0, clock=lambda: next(readings, 5.0))
