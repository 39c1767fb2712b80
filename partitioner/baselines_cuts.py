"""Baselines that cut the layers by a rule or a dynamic program, with one memory size for all.

Whoever uses one of them would still try numbers of stages, degrees, micro-batch sizes and memory
sizes; so each gets the best of these, by the goal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from funcpipe.partitioner.backend import Problem
from funcpipe.partitioner.baselines_choice import Baseline, Choice, Grid, grids, stage_counts
from funcpipe.partitioner.memory import held_micro_batches
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.plan import balanced_cuts
from funcpipe.partitioner.space import Combination
from funcpipe.partitioner.table import Table

__all__ = ["RULES", "Propose", "chosen_by"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
CutsOf = Callable[[Combination, int, int], Sequence[Sequence[int]]]
Propose = Callable[[Grid], Iterator[Ints]]

# PipeDream is told how many workers there are; with a degree for each stage, up to so many.
MOST_WORKERS = 64


def even_layers(problem: Problem) -> Propose:
    """Stages of equally many layers, give or take one; GPipe's users often begin like this."""
    num_layers, num_tiers = problem.setting.profile.num_layers, len(_tiers(problem))

    def cuts_of(combination: Combination, degree: int, num_stages: int) -> list[list[int]]:
        del combination, degree
        return [[k * num_layers // num_stages for k in range(num_stages + 1)]] * num_tiers

    return _by_rule(problem, cuts_of)


def balanced_time(problem: Problem) -> Propose:
    """The slowest stage's forward + backward as short as can be, transfers left out.

    That is what torchgpipe's `balance_by_time` does (Kim et al. 2020, section 4).
    """
    profile, platform = problem.setting.profile, problem.setting.platform

    @cache
    def weights(memory_mb: int, size: int) -> list[float]:
        at = {"vcpu": platform.vcpu(memory_mb), "micro_batch_size": size}
        return [
            profile.forward_s(i, **at) + profile.backward_s(i, **at)  # type: ignore[arg-type]
            for i in range(profile.num_layers)
        ]

    def cuts_of(combination: Combination, degree: int, num_stages: int) -> list[tuple[int, ...]]:
        del degree
        size = combination.micro_batch_size
        return [_cuts(_shares(weights(tier, size)), num_stages) for tier in _tiers(problem)]

    return _by_rule(problem, cuts_of)


def balanced_memory(problem: Problem) -> Propose:
    """The fullest stage's weights, optimiser and activations as small as can be.

    That is what torchgpipe's `balance_by_size` does (Kim et al. 2020, section 4).
    """
    layers, num_tiers = problem.setting.profile.layers, len(_tiers(problem))
    state = [one.parameter_bytes + one.trained * (1 + one.optimizer_factor) for one in layers]

    def cuts_of(combination: Combination, degree: int, num_stages: int) -> list[tuple[int, ...]]:
        size = combination.micro_batch_size
        # Under 1f1b early stages hold more: the one in the middle stands for all.
        held = held_micro_batches(
            schedule=combination.schedule, stage=num_stages // 2, num_stages=num_stages,
            degree=degree, num_micro_batches=problem.setting.num_micro_batches(size),
            in_flight=combination.depth * num_stages,
        )  # fmt: skip
        kept = size * (1 if problem.space.recompute == "always" else held)
        weights = [
            fixed + kept * one.activation_bytes for fixed, one in zip(state, layers, strict=True)
        ]
        return [_cuts(_shares(weights), num_stages)] * num_tiers

    return _by_rule(problem, cuts_of)


def _by_rule(problem: Problem, cuts_of: CutsOf) -> Propose:
    def propose(grid: Grid) -> Iterator[Ints]:
        combination = grid.table.combination
        for number, degree in enumerate(combination.degrees):
            for num_stages in stage_counts(problem, degree):
                cuts = np.array(cuts_of(combination, degree, num_stages))
                yield grid.uniform(number, cuts)

    return propose


def _tiers(problem: Problem) -> tuple[int, ...]:
    return problem.space.tiers(problem.setting)


def _shares(weights: Sequence[float]) -> tuple[float, ...]:
    """Of the sum: those of a memory size that is twice as fast are the same, and cut alike."""
    total = sum(weights) or 1.0
    return tuple(round(weight / total, 12) for weight in weights)


@lru_cache(maxsize=1 << 14)
def _cuts(shares: tuple[float, ...], num_stages: int) -> tuple[int, ...]:
    return tuple(balanced_cuts(shares, num_stages))


# -- the slowest stage as fast as can be -------------------------------------------------------


def pipedream(problem: Problem) -> Propose:
    """PipeDream's partitioning (Narayanan et al., SOSP 2019, section 3.1), on one memory size.

    The slowest stage is as fast as can be: A(i..L, m) = min over j and the replicas m' of the stage
    i..j of max(its time with m', A(j..L, m - m')), for every number of workers m (up to 64 where
    stages may differ in degree). Compute and transfers overlap, so a stage's time is that of its
    share of micro-batches on the busiest lane, forward and backward, and of its synchronisation.
    """

    def load(table: Table) -> Floats:
        return _share(table) * (table.lane_f + table.lane_b) + np.maximum(table.tail, 0.0)

    return _by_program(problem, load, differ=problem.space.per_stage)


def tarnawski(problem: Problem) -> Propose:
    """The least load of the busiest device (Tarnawski et al., NeurIPS 2020), on one memory size.

    Their dynamic program for throughput on a chain; a device's load is its compute and its
    transfers, one after the other, for its share of micro-batches, and its synchronisation. The
    paper leaves resources to the user: FuncPipe (Liu et al. 2022, section 5) compares against it,
    as TPDMP, with the best of all uniform ones, as here.
    """

    def load(table: Table) -> Floats:
        return _share(table) * (table.fill_f + table.fill_b) + np.maximum(table.tail, 0.0)

    return _by_program(problem, load, differ=False)


def _share(table: Table) -> Ints:
    return -(-table.num_micro_batches // table.degree)


def _by_program(problem: Problem, load_of: Callable[[Table], Floats], *, differ: bool) -> Propose:
    def propose(grid: Grid) -> Iterator[Ints]:
        load = load_of(grid.table)
        for number, degree in enumerate(grid.table.combination.degrees):
            counts = stage_counts(problem, degree)
            yield from least_slowest(grid, load, (number,), stages=counts)
        if differ and len(grid.table.combination.degrees) > 1:
            yield from _differing(problem, grid, load)

    return propose


def _differing(problem: Problem, grid: Grid, load: Floats) -> Iterator[Ints]:
    combination, layers = grid.table.combination, grid.table.num_layers
    counts = stage_counts(problem, combination.degrees[0])
    bound = combination.schedule == "1f1b" or (counts.start, counts.stop) != (1, layers + 1)
    most = min(problem.max_functions or MOST_WORKERS, MOST_WORKERS)
    numbers = tuple(i for i, degree in enumerate(combination.degrees) if degree <= most)
    return least_slowest(grid, load, numbers, stages=counts if bound else None, workers=most)


def least_slowest(
    grid: Grid, load: Floats, numbers: tuple[int, ...], *, stages: range | None,
    workers: int | None = None,
) -> Iterator[Ints]:  # fmt: skip
    """Rows of plans whose largest load is the least there is, one plan a line.

    load: seconds of each row of the grid's table. numbers: degrees to choose from, as numbers. One
    plan for each tier, each number of stages in `stages` (None: whatever suits) and each number of
    functions up to `workers` (None: whatever suits). Among equals, the later stages' sum of squares
    decides.
    """
    if stages is not None and not len(stages):
        return
    rows = _placed_rows(grid, numbers, stages)
    loads = np.where(rows >= 0, np.append(load, np.inf)[rows], np.inf)
    degrees = [grid.table.combination.degrees[number] for number in numbers]
    steps = (0 if stages is None else 1, [0 if workers is None else d for d in degrees])
    best, chosen = _program(loads, steps, (stages[-1] if stages else 0, workers or 0))
    ends = np.argwhere(np.isfinite(best))
    if stages is not None:
        ends = ends[ends[:, 1] >= stages.start]
    lines = _walk(rows, chosen, steps, ends)
    lengths = (lines >= 0).sum(axis=1)
    for length in np.unique(lengths):
        yield lines[lengths == length][:, :length]


def _placed_rows(grid: Grid, numbers: tuple[int, ...], stages: range | None) -> Ints:
    """(place from the end, degree, tier, start, stop); one place where all are alike."""
    simulated = grid.table.combination.schedule == "1f1b"
    places = range(1, stages[-1] + 1) if simulated and stages else range(1, 2)
    return np.stack([grid.stages(from_end)[list(numbers)] for from_end in places])


def _program(
    loads: Floats, steps: tuple[int, list[int]], most: tuple[int, int]
) -> tuple[Floats, Ints]:
    """From the last layer to the first: the least slowest stage of layers i to the end.

    By (tier, number of stages, number of functions), where these are counted. Returns it for i = 0,
    and for every i which choice leads there, as degree x (L - i) + stop - i - 1.
    """
    places, num_degrees, num_tiers, num_layers, _ = loads.shape
    shape = (num_layers + 1, num_tiers, most[0] + 1, most[1] + 1)
    best, squares = np.full(shape, np.inf), np.full(shape, np.inf)
    chosen = np.zeros(shape, dtype=np.int64)
    best[num_layers, :, 0, 0] = squares[num_layers, :, 0, 0] = 0.0
    one, many = steps
    for i in reversed(range(num_layers)):
        slowest, sums = [], []
        for d in range(num_degrees):
            into = (slice(None), slice(None), slice(one, None), slice(many[d], None))
            source = (slice(i + 1, None), slice(None), slice(most[0] + 1 - one))
            later, later_squares = np.full((2, num_layers - i, *shape[1:]), np.inf)
            later[into] = best[(*source, slice(most[1] + 1 - many[d]))]
            later_squares[into] = squares[(*source, slice(most[1] + 1 - many[d]))]
            own = loads[:, d, :, i, i + 1 :].transpose(2, 1, 0)[..., None]
            if places > 1:
                own = np.concatenate([np.full_like(own[:, :, :1], np.inf), own], axis=2)
            slowest.append(np.maximum(own, later))
            sums.append(own * own + later_squares)
        values, sums_of = np.concatenate(slowest), np.concatenate(sums)
        best[i] = values.min(axis=0)
        # Where many plans share the slowest stage, the others should not be slow for nothing.
        sums_of[values > best[i] * (1 + 1e-12)] = np.inf
        chosen[i] = sums_of.argmin(axis=0)
        squares[i] = sums_of.min(axis=0)
    return best[0], chosen


def _walk(rows: Ints, chosen: Ints, steps: tuple[int, list[int]], ends: Ints) -> Ints:
    """Rows of the paths to `ends` (tier, stages, functions), -1 behind their last stage."""
    num_layers = rows.shape[3]
    lines: Ints = np.full((len(ends), num_layers), -1)
    tier, stages, functions = ends.T.copy()
    at = np.zeros(len(ends), dtype=np.int64)
    many = np.array(steps[1])
    for k in range(num_layers):
        (active,) = np.nonzero(at < num_layers)
        i, t, s, n = at[active], tier[active], stages[active], functions[active]
        degree, ahead = np.divmod(chosen[i, t, s, n], num_layers - i)
        place = s - 1 if rows.shape[0] > 1 else np.zeros_like(s)
        lines[active, k] = rows[place, degree, t, i, i + 1 + ahead]
        at[active] = i + 1 + ahead
        stages[active] -= steps[0]
        functions[active] -= many[degree]
    return lines


RULES: dict[str, Callable[[Problem], Propose]] = {
    "even-layers": even_layers,
    "balanced-time": balanced_time,
    "balanced-memory": balanced_memory,
    "pipedream": pipedream,
    "tarnawski": tarnawski,
}
"""Each gives the plans that it proposes of a grid: rows that fit, one plan a line."""


def chosen_by(name: str, problem: Problem, goal: Goal, seed: int = 0) -> Baseline:
    """What the rule `name` comes to."""
    del seed  # nothing is drawn
    choice, propose = Choice(problem, goal), RULES[name](problem)
    for grid in grids(problem):
        for rows in propose(grid):
            choice.add(grid.table, rows)
    return choice.result(name)
