"""Which bound of a goal cannot be kept, and the nearest that can, by what a solver finds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from funcpipe.errors import SolverError
from funcpipe.partitioner.backend import Outcome, Status
from funcpipe.partitioner.objective import Goal

__all__ = ["goal_missed"]

Solve = Callable[[Goal], Outcome]

# As in `Goal.allows`.
SLACK = 1 + 1e-9


@dataclass(frozen=True, kw_only=True)
class _Measure:
    """Seconds or dollars, in words."""

    takes: str
    best: str
    unit: str
    money: str = ""

    def up(self, value: float) -> str:
        """Four digits, so rounded that it can be reached."""
        return self._text(value, math.ceil, 1 - 1e-12)

    def down(self, value: float) -> str:
        """Four digits, so rounded that nothing is below it."""
        return self._text(value, math.floor, 1 + 1e-12)

    def plain(self, value: float) -> str:
        return f"{self.money}{value:.10g}{self.unit}"

    def _text(self, value: float, rounding: Callable[[float], int], room: float) -> str:
        if value <= 0:
            return self.plain(0.0)
        digits = 3 - math.floor(math.log10(value))
        scaled = value * 10.0**digits if digits >= 0 else value / 10.0**-digits
        whole = rounding(scaled * room)
        return self.plain(whole / 10.0**digits if digits >= 0 else whole * 10.0**-digits)

    def least(self, outcome: Outcome) -> str:
        """`at least` so much, as far as it is proven."""
        if outcome.status is Status.OPTIMAL:
            return f"at least {self.up(outcome.value)}"
        proven = f"at least {self.down(outcome.bound)}"
        if outcome.plan is None:
            return f"{proven} (no plan was found in time)"
        return f"{proven} (the {self.best} plan found: {self.up(outcome.value)})"

    def missed(self, outcome: Outcome, asked: float) -> str | None:
        """Why a bound is not kept; None if it can be."""
        if outcome.plan is not None and outcome.value <= asked * SLACK:
            return None
        text = f"a step {self.takes} {self.least(outcome)}; {self.plain(asked)} was asked for"
        if _proven(outcome) > asked * SLACK:
            return text
        rest = "and more time may find it" if outcome.plan is None else "which is not ruled out"
        return f"{text}, {rest}"


_TIME = _Measure(takes="takes", best="fastest", unit=" s")
_COST = _Measure(takes="costs", best="cheapest", unit="", money="$")


def goal_missed(goal: Goal, solve: Solve | None) -> str:
    """For a problem that has plans but for the goal's bounds. SolverError if none is found."""
    timed, priced = math.isfinite(goal.max_time_s), math.isfinite(goal.max_cost)
    if not timed and not priced:
        return "a plan fits in memory and keeps to all bounds"
    if solve is None:
        return (
            f"plans fit in memory, but none is known to keep to {_asked(goal)}; a solver can tell "
            "what a step takes at least"
        )
    missed = []
    if timed:
        fastest = _solved(solve, Goal(time_weight=1.0, cost_weight=0.0))
        missed.append(_TIME.missed(fastest, goal.max_time_s))
    if priced:
        cheapest = _solved(solve, Goal(time_weight=0.0, cost_weight=1.0))
        missed.append(_COST.missed(cheapest, goal.max_cost))
    told = [text for text in missed if text is not None]
    if told:
        return "; and ".join(told)
    return _both(goal, solve) if timed and priced else f"a plan keeps to {_asked(goal)}"


def _both(goal: Goal, solve: Solve) -> str:
    """Each bound can be kept alone."""
    cheapest = solve(Goal(time_weight=0.0, cost_weight=1.0, max_time_s=goal.max_time_s))
    if cheapest.plan is not None and cheapest.value <= goal.max_cost * SLACK:
        return f"a plan keeps to {_asked(goal)}"
    fastest = solve(Goal(time_weight=1.0, cost_weight=0.0, max_cost=goal.max_cost))
    if fastest.plan is not None and fastest.value <= goal.max_time_s * SLACK:
        return f"a plan keeps to {_asked(goal)}"
    apart = _proven(cheapest) > goal.max_cost * SLACK or _proven(fastest) > goal.max_time_s * SLACK
    text = "each bound can be kept, but not both" if apart else (
        "each bound can be kept, and no plan was found that keeps to both"
    )  # fmt: skip
    within, within_cost = _TIME.plain(goal.max_time_s), _COST.plain(goal.max_cost)
    return (
        f"{text}: within {within} a step costs {_COST.least(cheapest)} ({within_cost} was asked "
        f"for), and within {within_cost} it takes {_TIME.least(fastest)} ({within} was asked for)"
    )


def _solved(solve: Solve, goal: Goal) -> Outcome:
    outcome = solve(goal)
    if outcome.status is Status.INFEASIBLE:
        raise SolverError(
            f"{outcome.solver} finds no plan, though one fits in memory and has no bounds to keep "
            "to; try another solver"
        )
    return outcome


def _proven(outcome: Outcome) -> float:
    return outcome.value if outcome.status is Status.OPTIMAL else outcome.bound


def _asked(goal: Goal) -> str:
    bounds = [(_TIME, goal.max_time_s), (_COST, goal.max_cost)]
    return " and ".join(one.plain(value) for one, value in bounds if math.isfinite(value))
