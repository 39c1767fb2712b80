"""A table's rows as the search walks them, and what completions of a plan take at least."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from funcpipe.partitioner.table import Table

__all__ = ["Floats", "Ints", "Least", "Rows"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Rows:
    """The rows that stop at cut c are ``begin[c]`` to ``begin[c + 1] - 1``.

    fill: seconds forward and backward. wait: seconds of waits that a row causes by itself.
    counts, ratios, class_of: the degrees that rows may have, as `waits.counts_of` needs them.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self.num_layers = table.num_layers
        self.begin = np.searchsorted(table.stop, np.arange(table.num_layers + 2))
        self.counts = np.array(table.counts, dtype=np.float64)
        self.ratios = [high / low for low, high in pairwise(table.combination.degrees)]
        self.class_of = table.class_of()
        self.fill = table.fill_f + table.fill_b
        self.busy = -(-table.num_micro_batches // table.degree) * table.lane_both
        if table.combination.schedule == "gpipe":
            self.wait = self._weights()[self.class_of] * (table.lane_f + table.lane_b)
        else:
            self.wait = np.zeros(len(table))

    def _weights(self) -> Floats:
        """Seconds of waits for each second of the busiest lane, by the class of its degree."""
        weights = []
        for place in range(len(self.counts)):
            total, block = float(self.counts[place]), 1.0
            for ratio, count in zip(self.ratios[place:], self.counts[place + 1 :], strict=True):
                block *= ratio
                total += count * block
            weights.append(total)
        return np.array(weights)

    def at(self, cut: int) -> slice:
        """The rows that stop there."""
        return slice(int(self.begin[cut]), int(self.begin[cut + 1]))


@dataclass(frozen=True)
class Least:
    """What stages for the layers before a cut take at least, by cut; infinite if there are none.

    fill_f, fill: sums of seconds of fills, forward and both ways. per_s, per_step: sums of dollars.
    wait: the largest wait of a row. lane_f: the largest lane forward. tail: of the first stage.
    behind: sums of fills of stages for the layers after the cut. next_end, next_lane_b: of the
    stage that stops at the cut, `fill_b + tail` and the lane backward.
    """

    fill_f: Floats
    fill: Floats
    per_s: Floats
    per_step: Floats
    wait: Floats
    lane_f: Floats
    tail: Floats
    behind: Floats
    next_end: Floats
    next_lane_b: Floats

    @staticmethod
    def of(rows: Rows) -> Least:
        table, num = rows.table, rows.num_layers
        own = np.stack([table.fill_f, rows.fill, table.per_s, table.per_step])
        worst = np.stack([rows.wait, table.lane_f])
        sums, most = np.full((4, num + 1), np.inf), np.full((2, num + 1), np.inf)
        next_end, next_lane, tail = (np.full(num + 1, np.inf) for _ in range(3))
        sums[:, 0], most[:, 0] = 0.0, 0.0
        first = np.where(table.start == 0, table.tail, np.inf)
        for cut in range(1, num + 1):
            here = rows.at(cut)
            tail[cut] = min(tail[cut - 1], first[here].min(initial=np.inf))
            if here.start == here.stop:
                continue
            start = table.start[here]
            sums[:, cut] = (sums[:, start] + own[:, here]).min(axis=1)
            most[:, cut] = np.maximum(most[:, start], worst[:, here]).min(axis=1)
            next_end[cut] = (table.fill_b + table.tail)[here].min()
            next_lane[cut] = table.lane_b[here].min()
        behind = np.full(num + 1, np.inf)
        behind[num] = 0.0
        for cut in range(num, 0, -1):
            here = rows.at(cut)
            np.minimum.at(behind, table.start[here], behind[cut] + rows.fill[here])
        fill_f, fill, per_s, per_step = sums
        wait, lane_f = most
        return Least(fill_f, fill, per_s, per_step, wait, lane_f, tail, behind, next_end, next_lane)

    @property
    def possible(self) -> bool:
        """Whether there is any plan at all, as far as memory goes."""
        return bool(np.isfinite(self.fill[-1]))
