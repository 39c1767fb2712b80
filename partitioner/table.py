"""All stages that there could be, as arrays: what every back-end chooses from.

A row is one possible stage: a run of consecutive layers on a memory size with a degree, and with or
without recomputation. Rows that do not fit in their memory are left out. A plan is a path of rows,
each beginning where the one before it ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from funcpipe.errors import PlanError
from funcpipe.partitioner.columns import Bools, Choice, Columns, Floats, Ints
from funcpipe.partitioner.plan import Plan, StagePlan
from funcpipe.partitioner.setting import Setting
from funcpipe.partitioner.space import Combination
from funcpipe.partitioner.waits import counts_of

__all__ = ["Table", "make_table"]

MB = 2**20
MOST_ROWS = 1_500_000


@dataclass(frozen=True, kw_only=True)
class Table:
    """Arrays of one entry a row.

    start, stop: layers. memory_mb, degree, recompute: the choice. fill_f, fill_b, lane_f, lane_b:
    seconds, as in `StageTimes`; lane_both: the busiest lane, forward and backward added. compute:
    of that lane; entry: of an activation's way in and its gradient's way out. tail: `cost.tail_s`.
    synchronises: whether there is a gradient to synchronise. per_s, per_step: dollars of all
    replicas, as in `StageFees`. memory_fixed, memory_each: bytes, and bytes for each micro-batch
    that is held; memory_step: bytes when gradients are synchronised and the optimiser steps. Rows
    are ordered by stop, then start.
    """

    combination: Combination
    num_layers: int
    num_micro_batches: int
    start: Ints
    stop: Ints
    memory_mb: Ints
    degree: Ints
    recompute: Bools
    fill_f: Floats
    fill_b: Floats
    lane_f: Floats
    lane_b: Floats
    lane_both: Floats
    compute: Floats
    entry: Floats
    tail: Floats
    synchronises: Bools
    per_s: Floats
    per_step: Floats
    memory_fixed: Floats
    memory_each: Floats
    memory_step: Floats

    def __len__(self) -> int:
        return len(self.start)

    def fits(self, from_end: int) -> Bools:
        """Which rows fit in their memory as the last stage but (from_end - 1)."""
        held = -(-self.num_micro_batches // self.degree)
        if self.combination.schedule == "1f1b":
            held = np.minimum(held, -(-self.combination.depth * from_end // self.degree))
        return self.need(held) <= self.memory_mb * float(MB)

    def need(self, held: Ints) -> Floats:
        """Bytes of each row with so many micro-batches between forward and backward."""
        return np.maximum(self.memory_fixed + held * self.memory_each, self.memory_step)

    @property
    def counts(self) -> tuple[int, ...]:
        """How often the block of each degree occurs in a chain of waits: `waits.counts_of`."""
        return counts_of(self.combination.degrees, self.num_micro_batches - 1)

    def class_of(self) -> Ints:
        """Which of the combination's degrees each row has."""
        return np.searchsorted(np.array(self.combination.degrees), self.degree)

    def plan(self, rows: list[int]) -> Plan:
        """The plan that consists of these rows, in order."""
        chosen = self.combination
        stages = tuple(
            StagePlan(
                first_layer=int(self.start[row]),
                stop_layer=int(self.stop[row]),
                replicas=int(self.degree[row]),
                memory_mb=int(self.memory_mb[row]),
                recompute=bool(self.recompute[row]),
            )
            for row in rows
        )
        in_flight = chosen.depth * len(stages) if chosen.schedule == "1f1b" else None
        return Plan(
            stages=stages,
            micro_batch_size=chosen.micro_batch_size,
            schedule=chosen.schedule,
            in_flight=in_flight,
            sync=chosen.sync,
        )


def make_table(
    setting: Setting,
    combination: Combination,
    *,
    tiers_mb: tuple[int, ...],
    recompute: str = "never",
) -> Table:
    """All rows that fit, in any place of a plan that suits them best."""
    num_layers = setting.profile.num_layers
    per_span = len(tiers_mb) * len(combination.degrees) * (2 if recompute == "choose" else 1)
    num_rows = num_layers * (num_layers + 1) // 2 * per_span
    if num_rows > MOST_ROWS:
        raise PlanError(
            f"{num_layers} layers have {num_rows:,} possible stages, and {MOST_ROWS:,} can be told "
            "apart; put neighbouring layers together (--merge 100), or give fewer memory sizes or "
            "degrees to choose from"
        )
    first, last = np.triu_indices(num_layers)
    again = {"never": (False,), "always": (True,), "choose": (False, True)}[recompute]
    grids = np.meshgrid(
        np.arange(len(first)),
        np.arange(len(tiers_mb)),
        np.array(combination.degrees),
        np.array(again),
        indexing="ij",
    )
    span, tier, degree, recomputes = (grid.ravel() for grid in grids)
    start, stop = first[span], last[span] + 1
    choice = Choice(start=start, stop=stop, tier=tier, degree=degree, recompute=recomputes)
    columns = Columns(setting, combination, tiers_mb, choice).all()
    table = Table(
        combination=combination,
        num_layers=num_layers,
        num_micro_batches=setting.num_micro_batches(combination.micro_batch_size),
        start=start,
        stop=stop,
        memory_mb=np.array(tiers_mb)[tier],
        degree=degree,
        recompute=recomputes,
        **columns,
    )
    order = np.lexsort((start, stop))
    order = order[table.fits(1)[order]]
    names = ("start", "stop", "memory_mb", "degree", "recompute", *columns)
    return replace(table, **{name: getattr(table, name)[order] for name in names})
