"""The mixed-integer program of one combination under `gpipe`, as plain data for any solver.

Variables: z of each row, whether it is chosen; T, the step's time; F, the end of the forward; for
each degree the slowest forward lane, and for each layer the slowest backward lane and the sum of
backward fills from it on. Chosen rows form a path from layer 0 to the last. Exactly one row covers
a layer, so sums over the rows that cover it stand for "the stage of this layer":

    lane_f >= sum lane_f z          for every layer; with several degrees see `waits.counts_of`
    F      >= sum fill_f z + waits
    T      >= F + sum fill_b z of the rows that end behind the layer + their waits + sum tail z

Dollars are T x sum per_s z + sum per_step z. The product is left to the solver (`quadratic`), or
made linear with w = T z for each row: the w form a path of flow T, and 0 <= w <= U z where U is
what a useful plan can take at most. That is exact for whole z.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from funcpipe.partitioner.columns import Bools, Floats, Ints
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.rowbounds import Limits, RowBounds
from funcpipe.partitioner.table import Table

__all__ = ["BOUND_SLACK", "CUT", "Program", "make_program"]

# A better plan is one that is better by this share: no solver is exact beyond it.
CUT = 1e-7

# Solvers get bounds on time and dollars this much wider; plans that then break one are excluded.
# A bound that the best plan meets exactly has made CBC lose it.
BOUND_SLACK = 1e-7


@dataclass(frozen=True, kw_only=True)
class Program:
    """Minimise objective x + sum of value x[i] x[j] over the products, with row_lower <= A x <=
    row_upper and lower <= x <= upper, some x whole.

    choices: the table's rows that x[0], x[1], ... stand for. A is given by triplets (at_row,
    at_column, coefficient), products by (left, right, factor). Numbers are scaled to lie near 1:
    `unit` is the goal's value where the objective is 1. cutoff: an objective above it is of no use.
    """

    table: Table
    choices: Ints
    lower: Floats
    upper: Floats
    whole: Bools
    objective: Floats
    left: Ints
    right: Ints
    factor: Floats
    at_row: Ints
    at_column: Ints
    coefficient: Floats
    row_lower: Floats
    row_upper: Floats
    unit: float
    cutoff: float

    @property
    def num_variables(self) -> int:
        return len(self.lower)

    @property
    def num_constraints(self) -> int:
        return len(self.row_lower)

    @property
    def is_quadratic(self) -> bool:
        return len(self.left) > 0

    def by_row(self) -> list[tuple[Ints, Floats]]:
        """The columns and coefficients of each constraint."""
        order = np.argsort(self.at_row, kind="stable")
        edges = np.searchsorted(self.at_row[order], np.arange(1, self.num_constraints))
        columns = np.split(self.at_column[order], edges)
        return list(zip(columns, np.split(self.coefficient[order], edges), strict=True))

    def path(self, values: Sequence[float]) -> list[int] | None:
        """The table's rows that a solver chose; None if they are no path. values: of x."""
        chosen = np.flatnonzero(np.asarray(values[: len(self.choices)]) > 0.5)
        rows = [int(row) for row in self.choices[chosen]]
        rows.sort(key=lambda row: int(self.table.start[row]))
        ends = [0, *(int(self.table.stop[row]) for row in rows)]
        starts = [*(int(self.table.start[row]) for row in rows), self.table.num_layers]
        return rows if ends == starts else None


def make_program(
    bounds: RowBounds,
    goal: Goal,
    limits: Limits,
    *,
    quadratic: bool = False,
    excluded: Sequence[Sequence[int]] = (),
) -> Program:
    """bounds: of the table's rows; those that no useful plan can have are left out.

    quadratic: keep the product of time and dollars per second in the objective; not for goals with
    a bound on dollars. excluded: paths that the solver must not choose.
    """
    return _Maker(bounds, goal, limits).make(quadratic=quadratic, excluded=excluded)


class _Maker:
    def __init__(self, bounds: RowBounds, goal: Goal, limits: Limits) -> None:
        table = bounds.table
        self._table, self._bounds, self._goal, self._limits = table, bounds, goal, limits
        self._rows = np.flatnonzero(bounds.alive)
        self._second = _unit(bounds.time_s, bounds.latest_s)
        self._dollar = _unit(bounds.dollars, 1.0)
        weights = goal.time_weight * self._second + goal.cost_weight * self._dollar
        self._unit = _unit(limits.value, weights)
        self._columns: list[tuple[Floats, Floats, bool]] = []
        self._num_columns = 0
        self._triplets: list[tuple[Ints, Ints, Floats]] = []
        self._row_lower: list[float] = []
        self._row_upper: list[float] = []
        self._start, self._stop = table.start[self._rows], table.stop[self._rows]

    def make(self, *, quadratic: bool, excluded: Sequence[Sequence[int]]) -> Program:
        bounds, goal, second = self._bounds, self._goal, self._second
        z = self._variables(np.zeros(len(self._rows)), 1.0, whole=True)
        earliest = max(0.0, bounds.time_s) / second * (1 - BOUND_SLACK)
        latest = bounds.latest_s / second * (1 + BOUND_SLACK)
        time = self._variables([earliest], max(earliest, latest))
        self._path(z)
        self._counts(z, excluded)
        self._step(z, time)
        per_s = self._table.per_s[self._rows] * (second / self._dollar)
        per_step = self._table.per_step[self._rows] / self._dollar
        prices = goal.cost_weight * self._dollar / self._unit
        bounded = math.isfinite(goal.max_cost)
        products = quadratic and not bounded and goal.cost_weight > 0
        linear = not products and (bounded or goal.cost_weight > 0)
        flow = self._flow(z, time) if linear else z
        objective = np.zeros(self._num_columns)
        objective[time] = goal.time_weight * second / self._unit
        objective[z] = prices * per_step
        if linear:
            objective[flow] += prices * per_s
        if bounded:
            most = goal.max_cost / self._dollar * (1 + BOUND_SLACK)
            both = np.concatenate([z, flow])
            self._constrain(both, np.concatenate([per_step, per_s]), most=most)
        kept = z if products else z[:0]
        return self._program(objective, kept, np.repeat(time, len(kept)), prices * per_s)

    def _program(self, objective: Floats, left: Ints, right: Ints, factors: Floats) -> Program:
        at_row, at_column, coefficient = (
            np.concatenate(part) for part in zip(*self._triplets, strict=True)
        )
        kept = coefficient != 0.0
        lower, upper = (np.concatenate([column[i] for column in self._columns]) for i in (0, 1))
        whole = np.concatenate([np.full(len(c[0]), c[2]) for c in self._columns])
        return Program(
            table=self._table,
            choices=self._rows,
            lower=lower,
            upper=upper,
            whole=whole,
            objective=objective,
            left=left,
            right=right,
            factor=factors[: len(left)],
            at_row=at_row[kept],
            at_column=at_column[kept],
            coefficient=coefficient[kept],
            row_lower=np.array(self._row_lower),
            row_upper=np.array(self._row_upper),
            unit=self._unit,
            cutoff=self._limits.value / self._unit * (1 - CUT),
        )

    # -- constraints -----------------------------------------------------------------------------

    def _path(self, z: Ints) -> None:
        """One stage begins at layer 0; at every other layer as many begin as end."""
        self._constrain(z[self._start == 0], least=1.0, most=1.0)
        self._balance(z)

    def _balance(self, flow: Ints) -> None:
        for layer in range(1, self._table.num_layers):
            ends, begins = flow[self._stop == layer], flow[self._start == layer]
            signs = np.concatenate([np.ones(len(ends)), -np.ones(len(begins))])
            self._constrain(np.concatenate([ends, begins]), signs, least=0.0, most=0.0)

    def _counts(self, z: Ints, excluded: Sequence[Sequence[int]]) -> None:
        limits, layers = self._limits, self._table.num_layers
        most = layers if limits.max_stages is None else limits.max_stages
        if limits.min_stages > 1 or most < layers:
            self._constrain(z, least=float(limits.min_stages), most=float(most))
        degree = self._table.degree[self._rows].astype(np.float64)
        if limits.max_functions is not None:
            self._constrain(z, degree, most=float(limits.max_functions))
        for path in excluded:
            self._constrain(z[np.isin(self._rows, path)], most=len(path) - 1.0)

    def _step(self, z: Ints, time: Ints) -> None:
        """T is at least the end of every stage."""
        table, layers, second = self._table, self._table.num_layers, self._second
        fill_f, fill_b, lane_f, lane_b, tail = (
            column[self._rows] / second
            for column in (table.fill_f, table.fill_b, table.lane_f, table.lane_b, table.tail)
        )
        kinds = [(i, float(count)) for i, count in enumerate(table.counts) if count]
        counts = np.array([count for _, count in kinds])
        forward = self._variables([0.0], math.inf)
        behind = self._variables(np.zeros(layers), math.inf)
        slowest_f = self._variables(np.zeros(len(kinds)), math.inf)
        slowest_b = self._variables(np.zeros(layers * len(kinds)), math.inf)
        slowest_b = slowest_b.reshape(layers, len(kinds))
        self._at_least(forward, [(z, fill_f), (slowest_f, counts)])
        for layer in range(layers):
            covers = (self._start <= layer) & (self._stop > layer)
            last = self._stop == layer + 1
            rest = [] if layer + 1 == layers else [(behind[layer + 1 :][:1], np.ones(1))]
            self._at_least(behind[layer : layer + 1], [(z[last], fill_b[last]), *rest])
            for number, (kind, _) in enumerate(kinds):
                ratio = self._ratios(kind)
                mine = covers & (ratio > 0)
                self._at_least(slowest_f[number : number + 1], [(z[mine], (ratio * lane_f)[mine])])
                own = slowest_b[layer, number : number + 1]
                self._at_least(own, [(z[mine], (ratio * lane_b)[mine])])
                if layer + 1 < layers:
                    self._at_least(own, [(slowest_b[layer + 1, number : number + 1], np.ones(1))])
            ends = [(forward, np.ones(1)), (behind[layer : layer + 1], np.ones(1))]
            waits = (slowest_b[layer], counts)
            self._at_least(time, [*ends, waits, (z[covers], tail[covers])])

    def _ratios(self, kind: int) -> Floats:
        """How often a block of this degree holds one of each row's degree; 0 if that is larger."""
        degree = self._table.combination.degrees[kind]
        return (degree // self._table.degree[self._rows]).astype(np.float64)

    def _flow(self, z: Ints, time: Ints) -> Ints:
        """w = T z, by the least and the most that T can be with each row."""
        least = np.maximum(self._bounds.least_s[self._rows], 0.0) / self._second
        most = np.maximum(self._bounds.most_s[self._rows] / self._second, least)
        least, most = least * (1 - BOUND_SLACK), most * (1 + BOUND_SLACK)
        flow = self._variables(np.zeros(len(z)), most)
        self._constrain(
            np.concatenate([flow[self._start == 0], time]),
            np.append(np.ones(int((self._start == 0).sum())), -1.0),
            least=0.0,
            most=0.0,
        )
        self._balance(flow)
        for own, chosen, low, high in zip(flow, z, least, most, strict=True):
            pair = np.array([own, chosen])
            self._constrain(pair, np.array([1.0, -high]), most=0.0)
            self._constrain(pair, np.array([1.0, -low]), least=0.0)
        return flow

    # -- parts -----------------------------------------------------------------------------------

    def _variables(
        self, lower: Sequence[float] | Floats, upper: float | Floats, *, whole: bool = False
    ) -> Ints:
        low = np.asarray(lower, dtype=np.float64)
        self._columns.append((low, np.broadcast_to(upper, low.shape).astype(np.float64), whole))
        self._num_columns += len(low)
        return np.arange(self._num_columns - len(low), self._num_columns)

    def _at_least(self, variable: Ints, terms: list[tuple[Ints, Floats]]) -> None:
        columns = np.concatenate([variable, *(term[0] for term in terms)])
        self._constrain(columns, np.concatenate([np.ones(1), *(-term[1] for term in terms)]),
                        least=0.0)  # fmt: skip

    def _constrain(
        self,
        columns: Ints,
        coefficients: Floats | None = None,
        *,
        least: float = -math.inf,
        most: float = math.inf,
    ) -> None:
        values = np.ones(len(columns)) if coefficients is None else coefficients
        self._triplets.append((np.full(len(columns), len(self._row_lower)), columns, values))
        self._row_lower.append(least)
        self._row_upper.append(most)


def _unit(value: float, otherwise: float) -> float:
    """A number to divide by: `value`, or the next best one that is neither 0 nor infinite."""
    for one in (value, otherwise):
        if 0 < one < math.inf:
            return one
    return 1.0
