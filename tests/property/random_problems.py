"""Random small problems of every kind, and all of their plans."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np

from funcpipe.errors import PlanError
from funcpipe.partitioner.backend import Problem
from funcpipe.partitioner.cost import evaluate
from funcpipe.partitioner.exhaustive import count_plans
from funcpipe.partitioner.objective import Goal, Objective
from funcpipe.partitioner.platform import load_platform
from funcpipe.partitioner.profile import LayerProfile, ModelProfile
from funcpipe.partitioner.setting import Setting
from funcpipe.partitioner.space import Space
from funcpipe.partitioner.table import Table

MB = 2**20
MOST_PLANS = 700
MOST_OF_ANY_LENGTH = 10_000
"""Also of more stages than may be: tests look at all of them."""


def random_profile(rng: np.random.Generator) -> ModelProfile:
    """2 to 5 layers from tiny to heavy, some without parameters, measured on 1 or 2 vCPU counts."""
    slow = 10.0 ** rng.uniform(-3, 1)
    fast = float(rng.uniform(0.4, 1.0))

    def layer(number: int) -> LayerProfile:
        own = slow * 10.0 ** rng.uniform(-2, 0)
        forward, backward = own, own * rng.uniform(1, 3)
        parameters = float(rng.uniform(1, 150) * MB) if rng.random() < 0.8 else 0.0
        return LayerProfile(
            name=f"layer{number}",
            forward_s=((forward,), (forward * fast,)),
            backward_s=((backward,), (backward * fast,)),
            step_s=(0.01 * slow, 0.01 * slow * fast) if rng.random() < 0.5 else (),
            parameter_bytes=parameters,
            trained_bytes=parameters * float(rng.choice([0.0, 0.5, 1.0])),
            optimizer_factor=float(rng.choice([0, 1, 2])),
            activation_bytes=float(rng.uniform(0.1, 30) * MB),
            output_bytes=float(10.0 ** rng.uniform(3, 7.3)),
            **workspaces(rng),
        )

    return ModelProfile(
        name="random",
        layers=tuple(layer(number) for number in range(rng.integers(2, 6))),
        vcpus=(0.5, 2.0),
        micro_batch_sizes=(1,),
        input_bytes=float(10.0 ** rng.uniform(2, 6)),
        **transport(rng, slow),
    )


def workspaces(rng: np.random.Generator) -> dict[str, float]:
    """Of a layer, each sometimes none and sometimes most of what it needs."""
    each = float(10.0 ** rng.uniform(5, 8)) * (rng.random() < 0.6)
    return {
        "workspace_bytes": each,
        "fixed_workspace_bytes": each * (int(each) % 3),
        "step_workspace_bytes": float(10.0 ** rng.uniform(6, 9)) * (rng.random() < 0.6),
    }


def transport(rng: np.random.Generator, slow: float) -> dict[str, float]:
    """Of a profile whose layers take about `slow` seconds: nothing, or from a ten-thousandth to
    as much for each message; late ones, and data that most memory sizes have room for.
    """
    seconds = [float(slow * 10.0 ** rng.uniform(-4, 0)) * (rng.random() < 0.5) for _ in range(3)]
    per_byte = [float(slow * 10.0 ** rng.uniform(-9, -6)) * (rng.random() < 0.5) for _ in range(2)]
    names = ("put_cpu_s", "get_cpu_s", "late_s", "put_byte_cpu_s", "get_byte_cpu_s")
    drawn = dict(zip(names, [*seconds, *per_byte], strict=True))
    return {**drawn, "data_bytes": float(rng.uniform(0, 400) * MB) * (rng.random() < 0.5)}


def random_problem(rng: np.random.Generator) -> Problem:
    """Prices from far below to far above those of Lambda; a link that may be the bottleneck."""
    price = 10.0 ** rng.uniform(-5, 7)
    bandwidth = 10.0 ** rng.uniform(6, 8.5)
    platform = load_platform("aws-lambda").changed(
        {
            "price.gb_s": repr(1.7e-5 * price),
            "price.put": repr(5e-6 * price * float(rng.choice([0, 1, 10]))),
            "price.get_gb": repr(0.02 * price * float(rng.choice([0, 1]))),
            "network.up_bytes_per_s": repr(bandwidth),
            "network.down_bytes_per_s": repr(bandwidth * float(rng.uniform(0.5, 2))),
            "network.latency_s": repr(float(rng.choice([0.0, 0.03, 0.2]))),
        }
    )
    batch = int(rng.integers(1, 33))
    chains: list[tuple[int, ...]] = [(1,), (2,), (1, 2), (1, 2, 4), (1, 3), (2, 4)]
    tiers = rng.choice([512, 1024, 2048, 4096, 8192], size=rng.integers(2, 4), replace=False)
    sizes = [None, (1,), (min(3, batch),), (1, min(4, batch))]
    stages = int(rng.integers(1, 3))
    space = Space(
        micro_batch_sizes=sizes[rng.integers(len(sizes))],
        degrees=chains[rng.integers(len(chains))],
        per_stage=bool(rng.random() < 0.7),
        recompute=str(rng.choice(["never", "never", "always", "choose"])),
        sync=tuple(rng.permutation(["pipelined", "three-phase"])[: rng.integers(1, 3)].tolist()),
        tiers_mb=tuple(int(tier) for tier in tiers),
        max_functions=int(rng.integers(2, 9)) if rng.random() < 0.3 else None,
        min_stages=stages if rng.random() < 0.3 else 1,
        max_stages=stages + int(rng.integers(0, 3)) if rng.random() < 0.3 else None,
    )
    setting = Setting(
        profile=random_profile(rng),
        platform=platform,
        batch_size=batch,
        num_steps=int(rng.integers(1, 1000)) if rng.random() < 0.5 else None,
        latency_on_lane=bool(rng.random() < 0.5),
    )
    return Problem(setting=setting, space=space)


def random_plan(problem: Problem, rng: np.random.Generator) -> tuple[float, float] | None:
    """Seconds and dollars of some plan that fits in memory, if one is found."""
    combinations = problem.combinations()
    table = problem.table(combinations[rng.integers(len(combinations))])
    rows, layer = [], 0
    while layer < table.num_layers:
        next_rows = np.flatnonzero(table.start == layer)
        if not len(next_rows):
            return None
        rows.append(int(rng.choice(next_rows)))
        layer = int(table.stop[rows[-1]])
    estimate = evaluate(problem.setting, table.plan(rows))
    return estimate.step_s, estimate.dollars


def random_goal(problem: Problem, rng: np.random.Generator) -> Goal:
    """Bounds, if any, near what some plan takes: exactly that, a little more, or too little."""
    time_s, dollars = random_plan(problem, rng) or (1.0, 1.0)
    factors = (0.5, 0.9, 1.0, 1.0, 1.2)
    objective = Objective(
        kind=str(rng.choice(["min-time", "min-cost", "weighted", "raw"])),
        alpha=float(rng.choice([0.0, 0.3, 0.7, 1.0])),
        max_time_s=time_s * float(rng.choice(factors)) if rng.random() < 0.35 else None,
        max_cost=dollars * float(rng.choice(factors)) if rng.random() < 0.35 else None,
    )
    return objective.goal(time_s, dollars)


def number_of_plans(problem: Problem, *, of_any_length: bool = False) -> int:
    """of_any_length: also those of more stages than may be."""
    tables = [problem.table(combination) for combination in problem.combinations()]
    most = max(table.num_layers for table in tables) if of_any_length else problem.max_stages
    return sum(count_plans(table, most) for table in tables)


def has_few_plans(problem: Problem) -> bool:
    return (
        number_of_plans(problem) <= MOST_PLANS
        and number_of_plans(problem, of_any_length=True) <= MOST_OF_ANY_LENGTH
    )


@cache
def problem_and_goal(seed: int) -> tuple[Problem, Goal]:
    rng = np.random.default_rng(seed)
    while True:
        try:
            problem = random_problem(rng)
            if problem.combinations() and has_few_plans(problem):
                return problem, random_goal(problem, rng)
        except PlanError:  # what was drawn contradicts itself, such as more stages than layers
            continue


def paths(table: Table, behind: tuple[int, ...] = ()) -> Iterator[list[int]]:
    """The rows of all plans of a table, whatever else they break."""
    reached = int(table.start[behind[0]]) if behind else table.num_layers
    if reached == 0:
        yield list(behind)
        return
    for row in np.flatnonzero(table.stop == reached):
        yield from paths(table, (int(row), *behind))
