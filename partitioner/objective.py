"""What a plan is to be best at."""

from __future__ import annotations

import math
from dataclasses import dataclass

from funcpipe.errors import PlanError
from funcpipe.partitioner.limits import is_number, read_number, shown, written

__all__ = ["KINDS", "Goal", "Objective"]

MOST_BOUND = 10**12  # seconds or dollars of a step
KINDS = ("min-time", "min-cost", "weighted", "raw")


@dataclass(frozen=True, kw_only=True)
class Goal:
    """Minimise time_weight x seconds + cost_weight x dollars of a step, within bounds.

    What every back-end solves: all objectives come down to one or a few of these.
    """

    time_weight: float
    cost_weight: float
    max_time_s: float = math.inf
    max_cost: float = math.inf

    def value(self, time_s: float, dollars: float) -> float:
        return self.time_weight * time_s + self.cost_weight * dollars

    def allows(self, time_s: float, dollars: float) -> bool:
        """Whether the bounds hold, with room for the last digits of a sum."""
        slack = 1 + 1e-9
        return time_s <= self.max_time_s * slack and dollars <= self.max_cost * slack


@dataclass(frozen=True, kw_only=True)
class Objective:
    """`min-time`, `min-cost`, `weighted` (alpha x dollars / least dollars + (1 - alpha) x time /
    least time, so that units cancel) or `raw` (alpha x dollars + (1 - alpha) x seconds, as in
    FuncPipe section 4.3). max_time_s, max_cost: bounds for a step.
    """

    kind: str = "min-cost"
    alpha: float = 0.5
    max_time_s: float | None = None
    max_cost: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise PlanError(
                f"unknown objective {shown(self.kind)}; known: min-time, min-cost, weighted:ALPHA "
                "and raw:ALPHA with ALPHA from 0 (time) to 1 (dollars)"
            )
        if not is_number(self.alpha) or not 0 <= self.alpha <= 1:
            raise PlanError(
                f"alpha is {shown(self.alpha)}; expected a number from 0 (time) to 1 (cost)"
            )
        for name in ("max_time_s", "max_cost"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and 0 < value <= MOST_BOUND):
                raise PlanError(
                    f"{name} is {shown(value)}; expected a number above 0, at most "
                    f"{written(MOST_BOUND)}"
                )

    @staticmethod
    def parse(
        text: str, *, max_time_s: float | None = None, max_cost: float | None = None
    ) -> Objective:
        """From ``min-cost`` or ``weighted:0.3``; PlanError for anything else."""
        kind, colon, number = text.partition(":")
        alpha = 0.5
        if colon:
            try:
                alpha = read_number(number)
            except ValueError:
                alpha = math.nan
        if colon and (kind not in ("weighted", "raw") or not 0 <= alpha <= 1):
            raise PlanError(
                f"unknown objective {shown(text)}; only weighted and raw take a number, from 0 "
                "(time) to 1 (dollars): weighted:0.3"
            )
        return Objective(kind=kind, alpha=alpha, max_time_s=max_time_s, max_cost=max_cost)

    def __str__(self) -> str:
        return f"{self.kind}:{self.alpha:g}" if self.kind in ("weighted", "raw") else self.kind

    @property
    def bounds(self) -> dict[str, float]:
        """As fields of a `Goal`."""
        return {
            "max_time_s": math.inf if self.max_time_s is None else self.max_time_s,
            "max_cost": math.inf if self.max_cost is None else self.max_cost,
        }

    @property
    def needs_leasts(self) -> bool:
        """Whether the least time and the least dollars must be found first."""
        return self.kind == "weighted"

    def goal(self, least_time_s: float = 1.0, least_cost: float = 1.0) -> Goal:
        """PlanError for a least of 0, which is no unit."""
        if least_time_s <= 0 or least_cost <= 0:
            raise PlanError(
                f"a step takes {least_time_s:g} s and costs {least_cost:g} dollars at least: "
                "weighted needs units above 0; choose min-time, min-cost or raw"
            )
        weights = {
            "min-time": (1.0, 0.0),
            "min-cost": (0.0, 1.0),
            "weighted": ((1 - self.alpha) / least_time_s, self.alpha / least_cost),
            "raw": (1 - self.alpha, self.alpha),
        }
        time_weight, cost_weight = weights[self.kind]
        return Goal(time_weight=time_weight, cost_weight=cost_weight, **self.bounds)
