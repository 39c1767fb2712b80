"""Baselines that try plans: at random, and where a Gaussian process expects the most."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from funcpipe.partitioner.backend import Problem
from funcpipe.partitioner.baselines_choice import Baseline, Choice, Grid, outside
from funcpipe.partitioner.cost import Estimate, evaluate
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.plan import METHODS, SCHEDULES, Plan, StagePlan
from funcpipe.partitioner.space import Combination
from funcpipe.partitioner.verify import faults

__all__ = ["bayesian", "random"]

Floats = NDArray[np.float64]
_Option = TypeVar("_Option", int, bool)

# Of random search, which costs little for each; of Bayesian search; of it at the beginning, at
# random; plans weighed before each further one, half of them changes of the best so far.
SAMPLES = 2000
EVALUATIONS = 200
FIRST = 20
WEIGHED = 120
LENGTHS = (0.25, 0.5, 1.0, 2.0)
NOISE = 1e-4


@dataclass(frozen=True)
class _Draw:
    """A plan as its choices. cuts: from 0 to the number of layers. tiers: counted from 0."""

    combination: Combination
    cuts: tuple[int, ...]
    tiers: tuple[int, ...]
    degrees: tuple[int, ...]
    recompute: tuple[bool, ...]

    @property
    def num_stages(self) -> int:
        return len(self.tiers)


class _Source:
    """Draws within the bounds on stages and functions, whether they fit in memory or not."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self.problem = problem
        self.rng = np.random.default_rng(seed)
        self.tiers_mb = problem.space.tiers(problem.setting)
        self.num_layers = problem.setting.profile.num_layers
        self._recompute = {"never": (False,), "always": (True,), "choose": (False, True)}[
            problem.space.recompute
        ]
        # Without a stage too many for the functions even if each has the least degree.
        self.combinations = [
            one for one in problem.combinations() if self._most(one) >= problem.min_stages
        ]

    def _most(self, combination: Combination) -> int:
        most, functions = self.problem.max_stages, self.problem.max_functions
        return most if functions is None else min(most, functions // combination.degrees[0])

    def draw(self) -> _Draw:
        """At random; there must be combinations."""
        rng = self.rng
        combination = self.combinations[rng.integers(len(self.combinations))]
        least, most = self.problem.min_stages, self._most(combination)
        # Evenly by its logarithm: few stages are as likely as many.
        num_stages = int(least * ((most + 1) / least) ** rng.random())
        inner = 1 + rng.permutation(self.num_layers - 1)[: num_stages - 1]
        return self._within(
            _Draw(
                combination=combination,
                cuts=(0, *sorted(map(int, inner)), self.num_layers),
                tiers=tuple(map(int, rng.integers(len(self.tiers_mb), size=num_stages))),
                degrees=tuple(self._chosen(combination.degrees, num_stages)),
                recompute=tuple(self._chosen(self._recompute, num_stages)),
            )
        )

    def near(self, draw: _Draw) -> _Draw:
        """With one to three changes."""
        for _ in range(1 + int(self.rng.integers(3))):
            draw = self.changed(draw)
        return draw

    def changed(self, draw: _Draw) -> _Draw:
        """One choice made anew: the combination, a stage's tier, degree or recomputation, a cut."""
        rng, kind = self.rng, self.rng.integers(5)
        stage = int(rng.integers(draw.num_stages))
        if kind == 0:
            combination = self.combinations[rng.integers(len(self.combinations))]
            return self._within(
                replace(
                    draw,
                    combination=combination,
                    degrees=tuple(self._chosen(combination.degrees, draw.num_stages)),
                )
            )
        if kind == 1:
            tiers = list(draw.tiers)
            tiers[stage] = int(rng.integers(len(self.tiers_mb)))
            return replace(draw, tiers=tuple(tiers))
        if kind == 2:
            degrees, recompute = list(draw.degrees), list(draw.recompute)
            (degrees[stage],) = self._chosen(draw.combination.degrees, 1)
            (recompute[stage],) = self._chosen(self._recompute, 1)
            return self._within(replace(draw, degrees=tuple(degrees), recompute=tuple(recompute)))
        if kind == 3:
            tier = int(rng.integers(len(self.tiers_mb)))
            return replace(draw, tiers=(tier,) * draw.num_stages)
        return self._cut_anew(draw, stage)

    def _cut_anew(self, draw: _Draw, stage: int) -> _Draw:
        """A cut moved, taken away or added; the draw itself where that cannot be."""
        place = 1 + int(self.rng.integers(self.num_layers - 1)) if self.num_layers > 1 else 0
        cuts = list(draw.cuts)
        if place in cuts[1:-1]:
            cuts.remove(place)
        elif stage and self.rng.integers(2):
            cuts[stage] = place
        elif place:
            cuts.append(place)
        cuts.sort()
        # What the stages had that the new ones begin in.
        old = [int(np.searchsorted(draw.cuts, start, side="right")) - 1 for start in cuts[:-1]]
        made = replace(
            draw,
            cuts=tuple(cuts),
            tiers=tuple(draw.tiers[k] for k in old),
            degrees=tuple(draw.degrees[k] for k in old),
            recompute=tuple(draw.recompute[k] for k in old),
        )
        return self._within(made) if self._allows(made) else draw

    def _allows(self, draw: _Draw) -> bool:
        return self.problem.min_stages <= draw.num_stages <= self._most(draw.combination)

    def _chosen(self, options: Sequence[_Option], count: int) -> list[_Option]:
        if len(options) == 1:
            return [options[0]] * count
        return [options[k] for k in self.rng.integers(len(options), size=count)]

    def _within(self, draw: _Draw) -> _Draw:
        """With lower degrees while there are too many functions; a fresh one if that is no help."""
        if not self._allows(draw):
            return self.draw()
        most, degrees = self.problem.max_functions, list(draw.degrees)
        choices = draw.combination.degrees
        while most is not None and sum(degrees) > most:
            stage = max(range(len(degrees)), key=lambda k: degrees[k])
            degrees[stage] = choices[choices.index(degrees[stage]) - 1]
        return replace(draw, degrees=tuple(degrees))

    def plan(self, draw: _Draw) -> Plan:
        chosen = draw.combination
        bounds = zip(draw.cuts, draw.cuts[1:], strict=False)
        stages = tuple(
            StagePlan(
                first_layer=start, stop_layer=stop, replicas=draw.degrees[k],
                memory_mb=self.tiers_mb[draw.tiers[k]], recompute=draw.recompute[k],
            )
            for k, (start, stop) in enumerate(bounds)
        )  # fmt: skip
        return Plan(
            stages=stages,
            micro_batch_size=chosen.micro_batch_size,
            schedule=chosen.schedule,
            in_flight=chosen.depth * len(stages) if chosen.schedule == "1f1b" else None,
            sync=chosen.sync,
        )


def random(problem: Problem, goal: Goal, seed: int = 0, *, num_samples: int = SAMPLES) -> Baseline:
    """The best of plans drawn at random: combination and number of stages first, then the rest."""
    source = _Source(problem, seed)
    if not source.combinations:
        return Baseline(name="random", why=_NONE)
    grids: dict[Combination, Grid] = {}
    found: dict[tuple[Combination, int], list[list[int]]] = defaultdict(list)
    for _ in range(num_samples):
        draw = source.draw()
        combination = draw.combination
        if combination not in grids:
            grids[combination] = Grid(problem, combination)
        rows = _rows(grids[combination], draw)
        if min(rows) >= 0:
            found[combination, draw.num_stages].append(rows)
    choice = Choice(problem, goal)
    for (combination, _), lines in found.items():
        choice.add(grids[combination].table, np.array(lines))
    result = choice.result("random")
    return result if found else replace(result, why=f"none of {num_samples} draws fits in memory")


_NONE = "the bounds leave no combination of stages, degrees and micro-batches to draw from"


def _rows(grid: Grid, draw: _Draw) -> list[int]:
    return [
        grid.row(
            from_end=draw.num_stages - k, start=draw.cuts[k], stop=draw.cuts[k + 1],
            tier=draw.tiers[k], degree=draw.degrees[k], recompute=draw.recompute[k],
        )
        for k in range(draw.num_stages)
    ]  # fmt: skip


# -- Bayesian search ---------------------------------------------------------------------------


def bayesian(
    problem: Problem, goal: Goal, seed: int = 0, *, num_evaluations: int = EVALUATIONS
) -> Baseline:
    """Bayesian search, as FuncPipe (Liu et al. 2022, section 5) compares against.

    A Gaussian process (Matern 5/2, its length scale by likelihood) models the logarithm of the
    goal's value; the next plan is the one of largest expected improvement (Jones et al. 1998) among
    some drawn at random and some changes of the best. Plans that fit in no memory or keep to no
    bound count as worse than all others, by how much they exceed it.
    """
    source = _Source(problem, seed)
    if not source.combinations:
        return Baseline(name="bayesian", why=_NONE)
    tried = _Tried(source, goal)
    for number in range(num_evaluations):
        if number < FIRST:
            tried.add(source.draw())
            continue
        best = tried.best(4)
        fresh = [source.draw() for _ in range(WEIGHED // 2)]
        near = [source.near(best[k % len(best)]) for k in range(WEIGHED // 2)]
        tried.add(_most_promising(tried, [*fresh, *near]))
    return tried.result()


class _Tried:
    """What has been evaluated: features and scores of all draws, and the best plan."""

    def __init__(self, source: _Source, goal: Goal) -> None:
        self.source, self.goal = source, goal
        self.draws: list[_Draw] = []
        self.features: list[Floats] = []
        self._values: list[float] = []
        self._over: list[float] = []
        self._best: Baseline | None = None
        self._fitting: list[Estimate] = []
        self.length = 1.0

    def add(self, draw: _Draw) -> None:
        plan = self.source.plan(draw)
        estimate = evaluate(self.source.problem.setting, plan)
        value = self.goal.value(estimate.step_s, estimate.dollars)
        self.draws.append(draw)
        self.features.append(_features(self.source, draw))
        self._values.append(math.log(max(value, 1e-300)))
        self._over.append(_excess(self.goal, estimate))
        if estimate.fits:
            self._fitting.append(estimate)
        if faults(self.source.problem, self.goal, plan, estimate):
            return
        if self._best is None or value < self._best.value:
            self._best = Baseline(
                name="bayesian", plan=plan, time_s=estimate.step_s, dollars=estimate.dollars,
                value=value,
            )  # fmt: skip

    @property
    def scores(self) -> Floats:
        """Logarithms of values; above all of them for what is not allowed."""
        values, over = np.array(self._values), np.array(self._over)
        fine = over == 0
        top = values[fine].max() if fine.any() else 0.0
        return np.where(fine, values, top + over)

    def best(self, count: int) -> list[_Draw]:
        return [self.draws[k] for k in np.argsort(self.scores, kind="stable")[:count]]

    def result(self) -> Baseline:
        if self._best is not None:
            return self._best
        if not self._fitting:
            why = f"none of {len(self.draws)} plans that it tried fits in memory"
        else:
            least_s = min(one.step_s for one in self._fitting)
            why = outside(self.goal, least_s, min(one.dollars for one in self._fitting))
        return Baseline(name="bayesian", why=why)


def _excess(goal: Goal, estimate: Estimate) -> float:
    """By how much a plan exceeds memory and bounds, as a sum of logarithms; 0 if by nothing."""
    over = sum(
        math.log(stage.memory.total / (stage.memory_mb * 2**20))
        for stage in estimate.stages
        if not stage.fits
    )
    if not goal.allows(estimate.step_s, estimate.dollars):
        for what, bound in ((estimate.step_s, goal.max_time_s), (estimate.dollars, goal.max_cost)):
            over += max(0.0, math.log(what / bound)) if math.isfinite(bound) else 0.0
    return over


def _features(source: _Source, draw: _Draw) -> Floats:
    """A point in the unit cube, and each layer's stage and its choices, together as long as it."""
    setting, chosen = source.problem.setting, draw.combination
    layers = np.searchsorted(np.array(draw.cuts), np.arange(source.num_layers), side="right") - 1
    top = math.log2(max(source.problem.space.degrees)) or 1.0
    degrees = np.log2(draw.degrees) / top
    each = [
        layers / source.num_layers,
        np.array(draw.tiers)[layers] / max(1, len(source.tiers_mb) - 1),
        degrees[layers],
        np.array(draw.recompute)[layers],
    ]
    whole = [
        math.log2(chosen.micro_batch_size) / (math.log2(setting.batch_size) or 1.0),
        degrees.mean(),
        SCHEDULES.index(chosen.schedule),
        METHODS.index(chosen.sync),
        chosen.depth / max(source.problem.space.depths),
        draw.num_stages / source.num_layers,
    ]
    return np.concatenate([whole, *(one / math.sqrt(source.num_layers) for one in each)])


def _most_promising(tried: _Tried, candidates: Sequence[_Draw]) -> _Draw:
    known, scores = np.array(tried.features), tried.scores
    spread = scores.std() or 1.0
    heights = (scores - scores.mean()) / spread
    if len(scores) % 10 == 0:
        tried.length = max(LENGTHS, key=lambda one: _likelihood(known, heights, one))
    factor = np.linalg.cholesky(_matern(known, known, tried.length) + NOISE * np.eye(len(known)))
    cross = _matern(known, np.array([_features(tried.source, c) for c in candidates]), tried.length)
    halfway = np.linalg.solve(factor, np.column_stack([heights, cross]))
    mean = halfway[:, 1:].T @ halfway[:, 0]
    deviation = np.sqrt(np.maximum(1 - (halfway[:, 1:] ** 2).sum(axis=0), 1e-12))
    ahead = (heights.min() - mean) / deviation
    density = np.exp(-(ahead**2) / 2) / math.sqrt(2 * math.pi)
    below = np.array([math.erf(one / math.sqrt(2)) / 2 + 0.5 for one in ahead])
    return candidates[int(np.argmax(deviation * (ahead * below + density)))]


def _matern(left: Floats, right: Floats, length: float) -> Floats:
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1) - 2 * left @ right.T
    scaled: Floats = np.sqrt(5 * np.maximum(squares, 0.0)) / length
    return (1 + scaled + scaled**2 / 3) * np.exp(-scaled)


def _likelihood(points: Floats, heights: Floats, length: float) -> float:
    """Logarithm of the marginal likelihood, but for a constant."""
    factor = np.linalg.cholesky(_matern(points, points, length) + NOISE * np.eye(len(points)))
    half = np.linalg.solve(factor, heights)
    return float(-half @ half / 2 - np.log(np.diag(factor)).sum())
