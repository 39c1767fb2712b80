"""Problems so small that all of their plans can be looked at, and the look at all of them."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from funcpipe.partitioner.backend import Outcome, Problem, Status
from funcpipe.partitioner.cost import Estimate, evaluate
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.plan import Plan, StagePlan
from funcpipe.partitioner.platform import PlatformSpec, load_platform
from funcpipe.partitioner.profile import LayerProfile, ModelProfile
from funcpipe.partitioner.setting import Setting
from funcpipe.partitioner.space import Combination, Space
from funcpipe.partitioner.verify import faults

MB = 2**20
CHEAPEST = Goal(time_weight=0.0, cost_weight=1.0)
FASTEST = Goal(time_weight=1.0, cost_weight=0.0)
SIZES = ("activation", "output", "workspace", "step_workspace")


def platform(**changes: Any) -> PlatformSpec:
    """AWS Lambda with three memory sizes."""
    figures = {"memory.tiers_mb": "[1024, 1769, 3538]"}
    return load_platform("aws-lambda", changes={**figures, **changes})


def layer(name: str = "layer", *, seconds: float = 1.0, **fields: Any) -> LayerProfile:
    """Sizes in MB: `parameters` and `SIZES`. The backward takes twice the forward."""
    sizes = {f"{key}_bytes": fields.pop(key, 0) * MB for key in SIZES}
    return LayerProfile(
        name=name, forward_s=((seconds,),),
        backward_s=((fields.pop("backward", 2 * seconds),),),
        parameter_bytes=fields.pop("parameters", 0) * MB, **sizes, **fields,
    )  # fmt: skip


def problem(
    *layers: LayerProfile, batch: int = 8, changes: Any = None, model_fields: Any = None,
    **space: Any,
) -> Problem:  # fmt: skip
    """Of functions that need no memory of their own."""
    fields = {"base_memory_bytes": 0, **(model_fields or {})}
    model = ModelProfile(name="small", layers=layers, **fields)
    place = platform(**(changes or {}))
    setting = Setting(profile=model, platform=place, batch_size=batch)
    return Problem(setting=setting, space=Space(**{"degrees": (1, 2), **space}))


def made_up_layers(source: random.Random, count: int) -> list[LayerProfile]:
    return [
        layer(
            f"layer{number}",
            seconds=source.uniform(0.05, 1.0),
            backward=source.uniform(0.1, 2.0),
            parameters=source.randint(1, 250),
            activation=source.randint(1, 60),
            output=source.randint(1, 30),
            optimizer_factor=1,
            step_s=(source.uniform(0.0, 0.1),),
            workspace=source.choice([0, source.randint(1, 60)]),
            step_workspace=source.choice([0, source.randint(1, 500)]),
        )
        for number in range(count)
    ]


def made_up_model(source: random.Random) -> dict[str, float]:
    """Fields of a model's profile: transfers that take CPU time, late messages, and data."""
    return {
        "data_bytes": source.choice([0, source.randint(1, 300) * MB]),
        "put_cpu_s": source.uniform(0.0, 0.05),
        "get_cpu_s": source.uniform(0.0, 0.05),
        "put_byte_cpu_s": source.uniform(0.0, 1e-8),
        "get_byte_cpu_s": source.uniform(0.0, 1e-8),
        "late_s": source.choice([0.0, source.uniform(0.0, 0.1)]),
    }


def made_up_problem(source: random.Random, *, layers: int = 4, **space: Any) -> Problem:
    made = made_up_layers(source, layers)
    return problem(*made, model_fields=made_up_model(source), **space)


def all_plans(problem: Problem) -> Iterator[Plan]:
    """Of the whole space, within the bounds on stages and functions or not, fitting or not."""
    for combination in problem.combinations():
        layers = problem.setting.profile.num_layers
        for count in range(1, layers + 1):
            for inner in itertools.combinations(range(1, layers), count - 1):
                yield from _with_cuts(problem, combination, (0, *inner, layers))


def _with_cuts(problem: Problem, combination: Combination, cuts: tuple[int, ...]) -> Iterator[Plan]:
    ways = {"never": [False], "always": [True], "choose": [False, True]}
    options = itertools.product(
        combination.degrees, problem.space.tiers(problem.setting), ways[problem.space.recompute]
    )
    count = len(cuts) - 1
    for chosen in itertools.product(list(options), repeat=count):
        stages = tuple(
            StagePlan(first_layer=a, stop_layer=b, replicas=d, memory_mb=tier, recompute=again)
            for a, b, (d, tier, again) in zip(cuts, cuts[1:], chosen, strict=False)
        )
        yield Plan(
            stages=stages,
            micro_batch_size=combination.micro_batch_size,
            schedule=combination.schedule,
            in_flight=combination.depth * count if combination.schedule == "1f1b" else None,
            sync=combination.sync,
        )


def allowed(problem: Problem, goal: Goal = CHEAPEST) -> list[tuple[Plan, Estimate]]:
    """All plans that break nothing, with what they take."""
    return [
        (plan, told) for plan, told in _judged(problem) if not faults(problem, goal, plan, told)
    ]


@lru_cache(maxsize=8)
def _judged(problem: Problem) -> list[tuple[Plan, Estimate]]:
    return [(plan, evaluate(problem.setting, plan)) for plan in all_plans(problem)]


def brute_force(problem: Problem, goal: Goal) -> Outcome:
    """The best of all plans, as a solver would give it."""
    best: Plan | None = None
    estimate: Estimate | None = None
    value = math.inf
    for plan, told in allowed(problem, goal):
        if goal.value(told.step_s, told.dollars) < value:
            best, estimate, value = plan, told, goal.value(told.step_s, told.dollars)
    status = Status.INFEASIBLE if best is None else Status.OPTIMAL
    return Outcome(
        plan=best, estimate=estimate, value=value, bound=value, status=status, seconds=0.0,
        solver="brute force",
    )  # fmt: skip
