"""The planner: how fast it proves a plan, against other solvers, and what the plan is worth.

cbc_over_search    the seconds of CBC (of HiGHS: highs_over_search) over those of the search, for
                   one combination of 14 layers and 6 memory sizes; medians of their runs
search_s           a model like BERT-large: 26 layers, 8 memory sizes, degrees 1 to 16, all
                   micro-batch sizes, gpipe; the slowest of three objectives, each proven
search_1f1b_s      the same with 1f1b as well; search_1f1b_gap: what is not proven of it
search100_s        100 layers, 10 memory sizes, the same freedom, within 60 s; search100_gap: how
                   much better a plan could be, at most
pareto_s           all Pareto-optimal plans for the 26 layers, to 1 % of the dollars
published          every published profile: by how much each baseline is above the plan, in the
                   objective; never_worse says whether none is below

The last line is JSON. Nothing fails for being slow.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from funcpipe.partitioner.backend import Deadline, Outcome, Problem, Status
from funcpipe.partitioner.baselines import compare
from funcpipe.partitioner.importers import load_profile
from funcpipe.partitioner.merge import merge
from funcpipe.partitioner.objective import Goal, Objective
from funcpipe.partitioner.planner import make_setting, pareto_front, plan_for
from funcpipe.partitioner.profile import LayerProfile, ModelProfile
from funcpipe.partitioner.setting import Setting
from funcpipe.partitioner.solvers import solve
from funcpipe.partitioner.space import Space

PROFILES = Path(__file__).resolve().parents[1] / "profiles"
TIERS_6 = (1769, 2560, 3538, 5307, 7076, 10240)
TIERS_8 = (1024, 1769, 2560, 3538, 5307, 7076, 8845, 10240)
TIERS_10 = (1024, 1769, 2560, 3538, 4422, 5307, 6192, 7076, 8845, 10240)
DEGREES = (1, 2, 4, 8, 16)
OBJECTIVES = ("min-time", "min-cost", "weighted:0.5")
LIMIT_S = 60.0
MOST_LAYERS = 40


def main() -> None:
    options = _options()
    told: dict[str, Any] = {}
    if "solvers" in options.parts:
        told |= against_solvers(options.repeats)
    if "search" in options.parts:
        told |= search_times()
    if "published" in options.parts:
        told |= published()
    print(json.dumps(told))


def _options() -> argparse.Namespace:
    parts = ("solvers", "search", "published")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--repeats", type=int, default=3, help="runs of the search and of HiGHS")
    return parser.parse_args()


def transformer(num_layers: int, *, seed: int = 0) -> ModelProfile:
    """A chain like BERT-large's: embedding, encoders of hidden size 1,024 for 128 tokens, head.

    Seconds follow from 6.9 GFLOP forward per encoder and sample at 100 GFLOP/s a vCPU, 95 % of it
    parallel, times a random factor within 5 %: layers that are exactly alike would make many plans
    equal. Bytes are those of float32.
    """
    chance = random.Random(seed)
    boundary = 128 * 1024 * 4

    def layer(
        name: str, seconds: float, parameters: float, kept: float, out: float
    ) -> LayerProfile:
        one = seconds * chance.uniform(0.95, 1.05)
        grid = tuple(
            tuple(one * size * (0.05 + 0.95 / vcpu) for size in (1, 8)) for vcpu in (1, 2, 4, 6)
        )
        return LayerProfile(
            name=name,
            forward_s=grid,
            backward_s=tuple(tuple(2 * time for time in row) for row in grid),
            parameter_bytes=parameters,
            optimizer_factor=2,
            activation_bytes=kept,
            output_bytes=out,
        )

    encoders = [
        layer(f"encoder{i}", 0.069, 50.4e6, 11.5e6 * chance.uniform(0.98, 1.02), boundary)
        for i in range(num_layers - 2)
    ]
    layers = (
        layer("embedding", 0.002, 125e6, 2e6, boundary),
        *encoders,
        layer("head", 0.08, 4.2e6, 32e6, 4),
    )
    return ModelProfile(
        name=f"transformer{num_layers}",
        layers=layers,
        vcpus=(1, 2, 4, 6),
        micro_batch_sizes=(1, 8),
        batch_size=64,
    )


def setting_of(profile: ModelProfile) -> Setting:
    return make_setting(profile, "aws-lambda")


def against_solvers(repeats: int) -> dict[str, Any]:
    """One combination, the weighted goal in fixed units, solved by all."""
    setting = setting_of(transformer(14))
    space = Space(micro_batch_sizes=(4,), degrees=(2,), tiers_mb=TIERS_6)
    goal = Goal(time_weight=1 / 20, cost_weight=1 / 0.01)

    def run(solver: str) -> Outcome:
        problem = Problem(setting=setting, space=space)  # its tables are made anew
        found = solve(problem, goal, solver=solver, deadline=Deadline(600))
        print(f"  14 layers x 6 sizes, {solver}: {found.seconds:.3f} s, {found.status}, "
              f"{found.value:.9g}", flush=True)  # fmt: skip
        return found

    runs = {"search": repeats, "highs": repeats, "cbc": 1}
    found = {solver: [run(solver) for _ in range(times)] for solver, times in runs.items()}
    seconds = {
        solver: statistics.median(one.seconds for one in all_) for solver, all_ in found.items()
    }
    values = [one.value for all_ in found.values() for one in all_]
    return {
        "cbc_over_search": round(seconds["cbc"] / seconds["search"], 1),
        "highs_over_search": round(seconds["highs"] / seconds["search"], 1),
        "search14_s": round(seconds["search"], 4),
        "same_optimum": max(values) - min(values) <= 1e-6 * min(values),
    }


def search_times() -> dict[str, Any]:
    setting = setting_of(transformer(26))
    space = Space(degrees=DEGREES, tiers_mb=TIERS_8)
    seconds, gap = planned("26 layers x 8 sizes", setting, space)
    if gap > 0:
        sys.exit(f"not proven: gap {gap}")
    both = replace(space, schedules=("gpipe", "1f1b"))
    seconds_both, gap_both = planned("26 layers x 8 sizes, 1f1b too", setting, both)
    front = pareto_front(setting, space=space, time_limit_s=None)
    print(f"  26 layers x 8 sizes, Pareto front: {front.seconds:.2f} s, "
          f"{len(front.answers)} plans, complete: {front.complete}", flush=True)  # fmt: skip
    setting, space = setting_of(transformer(100)), replace(space, tiers_mb=TIERS_10)
    seconds_100, gap_100 = planned("100 layers x 10 sizes", setting, space)
    return {
        "search_s": round(seconds, 3),
        "search_1f1b_s": round(seconds_both, 3),
        "search_1f1b_gap": round(gap_both, 4),
        "pareto_s": round(front.seconds, 2),
        "pareto_plans": len(front.answers),
        "pareto_complete": front.complete,
        "search100_s": round(seconds_100, 2),
        "search100_gap": round(gap_100, 6),
    }


def planned(title: str, setting: Setting, space: Space) -> tuple[float, float]:
    """The most seconds and the largest gap of all objectives."""
    seconds = gap = 0.0
    for text in OBJECTIVES:
        objective = Objective.parse(text)
        answer = plan_for(setting, objective=objective, space=space, time_limit_s=LIMIT_S)
        told = f"{answer.estimate.step_s:.4g} s, ${answer.estimate.dollars:.4g}"
        print(f"  {title}, {text}: {answer.seconds:.2f} s, {answer.status}, gap {answer.gap:.5f}; "
              f"{told}", flush=True)  # fmt: skip
        seconds, gap = max(seconds, answer.seconds), max(gap, answer.gap)
    return seconds, gap


def published() -> dict[str, Any]:
    """Every published profile, scaled to Lambda as docs/profiles.md says, for two objectives.

    Chains of more than `MOST_LAYERS` are merged to as many, for the plan and the baselines alike.
    """
    space = Space(schedules=("gpipe", "1f1b"))
    files = sorted(path for path in PROFILES.rglob("*") if path.suffix in (".txt", ".json"))
    least, never_worse, proven = math.inf, True, True
    for path in files:
        profile = load_profile(path)
        if profile.num_layers > MOST_LAYERS:
            profile = merge(profile, MOST_LAYERS).profile
        setting = setting_of(profile)
        for text in ("min-cost", "min-time"):
            answer = plan_for(
                setting, objective=Objective.parse(text), space=space, time_limit_s=LIMIT_S / 3
            )
            problem = Problem(setting=setting, space=space)
            goal = answer.objective.goal()
            proven &= answer.status is Status.OPTIMAL
            print(f"  {path.parent.name}/{path.name}, {setting.profile.num_layers} layers, {text}: "
                  f"{answer.value:.4g} in {answer.seconds:.1f} s, {answer.status}")  # fmt: skip
            for row in compare(problem, goal):
                if row.value is None or not math.isfinite(row.value):
                    print(f"      {row.name:16} nothing: {row.why}")
                    continue
                ratio = row.value / answer.value
                told = f"{row.value:.4g}, {ratio:.3f} of the plan's"
                if row.plan is None or row.why:  # not among the plans that may be chosen
                    print(f"      {row.name:16} {told}; {row.why}", flush=True)
                    continue
                print(f"      {row.name:16} {told}", flush=True)
                never_worse &= ratio >= 1 - 1e-9
                least = min(least, ratio)
    return {
        "profiles": len(files),
        "never_worse": never_worse,
        "least_ratio": round(least, 6),
        "all_proven": proven,
    }


if __name__ == "__main__":
    main()
