"""Whether any plan fits in memory, and with how few functions: exact, without a solver."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from funcpipe.partitioner.backend import Problem
from funcpipe.partitioner.space import Combination
from funcpipe.partitioner.table import Table

__all__ = ["fewest_from", "fewest_functions", "plan_fits", "within_bounds"]

Floats = NDArray[np.float64]


def fewest_from(problem: Problem, combination: Combination) -> Floats:
    """The fewest functions with which exactly s stages hold layers i to the end, by (s, i).

    Infinite where nothing fits. Bounds on stages and functions are not looked at.
    """
    table = problem.table(combination)
    num_layers = table.num_layers
    reached = np.full((num_layers + 1, num_layers + 1), np.inf)
    reached[0, num_layers] = 0.0
    degrees = _least_degrees(table, 1)
    for from_end in range(1, num_layers + 1):
        if combination.schedule == "1f1b":
            degrees = _least_degrees(table, from_end)
        reached[from_end, :num_layers] = (degrees + reached[from_end - 1]).min(axis=1)
    return reached


def _least_degrees(table: Table, from_end: int) -> Floats:
    """Of the stages that fit there, by (start, stop)."""
    least = np.full((table.num_layers, table.num_layers + 1), np.inf)
    fits = table.fits(from_end)
    np.minimum.at(least, (table.start[fits], table.stop[fits]), table.degree[fits])
    return least


def fewest_functions(problem: Problem) -> Floats:
    """Of all plans of s stages that fit in memory, for s = 0, 1, ...; infinite where none does."""
    fewest = np.full(problem.setting.profile.num_layers + 1, np.inf)
    for combination in problem.combinations():
        fewest = np.minimum(fewest, fewest_from(problem, combination)[:, 0])
    return fewest


def within_bounds(problem: Problem, fewest: Floats) -> bool:
    """Whether the bounds on stages and functions leave one of the plans of `fewest_functions`."""
    most = np.inf if problem.max_functions is None else problem.max_functions
    return bool((fewest[problem.min_stages : problem.max_stages + 1] <= most).any())


def plan_fits(problem: Problem) -> bool:
    """Whether there is a plan but for the goal's bounds."""
    return within_bounds(problem, fewest_functions(problem))
