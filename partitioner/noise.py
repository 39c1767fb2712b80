"""How real functions differ from a model's figures: noise on every action, and slow workers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from funcpipe.errors import PlanError
from funcpipe.schedule.action import Kind, Lane

__all__ = ["Floats", "Noise"]

Floats = NDArray[np.float64]

BUSY_LANES = (Lane.DOWN, Lane.COMPUTE, Lane.UP)
_KINDS = tuple(Kind)
_SLOW = len(_KINDS)  # a stream of its own beside those of the kinds


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Factors on the seconds of actions, the same for a seed in whichever order they are asked for.

    spread: standard deviation of the logarithm of a factor; their mean is 1. slow_share of all
    workers, rounded, take slow_factor times as long on slow_lanes. They are the same ones in
    every step.
    """

    seed: int = 0
    spread: float = 0.0
    slow_share: float = 0.0
    slow_factor: float = 2.0
    slow_lanes: tuple[Lane, ...] = BUSY_LANES

    def __post_init__(self) -> None:
        if not isinstance(self.seed, int) or isinstance(self.seed, bool) or self.seed < 0:
            raise PlanError(f"noise: seed is {self.seed!r}; a whole number from 0 is needed")
        for name, least, most in (
            ("spread", 0.0, 5.0),
            ("slow_share", 0.0, 1.0),
            ("slow_factor", 1.0, 1e6),
        ):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not least <= value <= most:
                raise PlanError(
                    f"noise: {name} is {value!r}; expected a number from {least:g} to {most:g}"
                )
        if any(lane not in BUSY_LANES for lane in self.slow_lanes):
            known = ", ".join(lane.value for lane in BUSY_LANES)
            raise PlanError(f"noise: slow_lanes is {self.slow_lanes!r}; known: {known}")

    def factors(
        self, step: int, stage: int, kind: Kind, count: int, *, turn: int = 0
    ) -> Floats | float:
        """Of all actions of a kind in a step and stage: by micro-batch, or else by replica.

        turn: of a share or sum of a collective, how far round the ring its other end is.
        """
        if self.spread == 0:
            return 1.0
        stream = self._stream(step, stage, _KINDS.index(kind), turn)
        return np.exp(self.spread * stream.standard_normal(count) - self.spread**2 / 2)

    def slow_workers(self, degrees: Sequence[int]) -> list[NDArray[np.bool_]]:
        """For each stage, which of its replicas are slow."""
        total = sum(degrees)
        slow = np.zeros(total, dtype=np.bool_)
        chosen = math.floor(self.slow_share * total + 0.5)
        if chosen:
            slow[self._stream(0, 0, _SLOW, 0).permutation(total)[:chosen]] = True
        return np.split(slow, np.cumsum(degrees)[:-1])

    def slowness(self, slow: NDArray[np.bool_], lane: Lane) -> Floats:
        """A factor for each replica of a stage, on one lane."""
        return np.where(slow & (lane in self.slow_lanes), float(self.slow_factor), 1.0)

    def _stream(self, *place: int) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence((self.seed, *place))))
