"""What others would choose, judged by the same performance model.

Each baseline gets the bounds of the space and the benefit of the doubt: what its paper leaves to
the user (the number of stages, the degree, the micro-batch size, one memory size for all) is the
best there is, by the goal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from funcpipe.errors import PlanError
from funcpipe.partitioner.backend import Problem
from funcpipe.partitioner.baselines_choice import Baseline
from funcpipe.partitioner.baselines_cuts import RULES, chosen_by
from funcpipe.partitioner.baselines_search import bayesian, random
from funcpipe.partitioner.baselines_whole import ParameterServer, hybrid_ps, lambdaml
from funcpipe.partitioner.figures import near
from funcpipe.partitioner.objective import Goal

__all__ = ["BASELINES", "Baseline", "ParameterServer", "compare"]

BASELINES: dict[str, Callable[[Problem, Goal, int], Baseline]] = {
    **{name: partial(chosen_by, name) for name in RULES},
    "random": random,
    "bayesian": bayesian,
    "lambdaml": lambdaml,
    "hybrid-ps": hybrid_ps,
}
"""The last argument is the seed of those that draw at random: the same gives the same plan."""


def compare(
    problem: Problem, goal: Goal, *, seed: int = 0, only: Iterable[str] | None = None
) -> list[Baseline]:
    """What each baseline chooses, in the order of `BASELINES`. only: their names."""
    names = set(BASELINES if only is None else only)
    for name in sorted(names):
        if name not in BASELINES:
            raise PlanError(f"there is no baseline {name!r}{near(name, BASELINES)}")
    return [choose(problem, goal, seed) for name, choose in BASELINES.items() if name in names]
