"""Discrete-event execution of a plan."""

from __future__ import annotations

from collections.abc import Sequence

from funcpipe.partitioner.lanes import StageTimes

__all__ = ["simulated_step_s"]


def simulated_step_s(
    times: Sequence[StageTimes],
    *,
    num_micro_batches: int,
    schedule: str,
    in_flight: int | None = None,
    sync: str = "pipelined",
) -> float:
    raise NotImplementedError
