"""What plans under `1f1b` take at least. The schedule has no closed form: only plans are simulated.

The bound is that of three kinds of chains which every such step contains. A stage's lanes are busy
for all of its micro-batches. And what a worker does next waits for what comes back: the forward of
micro-batch k at stage s is followed, at a later stage e, by the backward of k - w_e + 1 (w: the
window, how many micro-batches a stage may hold), and that one, back at s, by the forward of
k - w_e + 1 + w_s. So every w_s - w_e + 1 micro-batches cost the round trip from s to e and back.
"""

from __future__ import annotations

import numpy as np

from funcpipe.partitioner.labels import Gpipe, Pipeline
from funcpipe.partitioner.rows import Floats, Ints, Least, Rows

__all__ = ["OneForward", "pipeline_of"]


class OneForward(Pipeline):
    """State, counted from the first activation's arrival at the label's first stage: X, before
    which the last gradient cannot leave it, and V, before which its stages cannot all have ended.
    R: the fills of the stages, which is a micro-batch's round trip to the end. N: the first stage's
    way in and out with its computations, which is its part of the round trip from the stage in
    front of it. S: how many stages there are.

    A stage is busy for all of its micro-batches, forward and backward, on its busiest lane; the
    first one reaches it after the fills in front, and the last one passes the fills in front again.
    The end of a stage that does not synchronise need not wait for gradients that pile up on its
    uplink; the first stage has none.
    """

    def __init__(self, rows: Rows, least: Least) -> None:
        super().__init__(rows, least)
        table = rows.table
        self._to_end = np.where(table.synchronises | (table.start == 0), rows.busy, 0.0)
        self._near = table.compute + table.entry
        self._apart = rows.fill - table.entry  # a round trip without the way in and out

    def _nothing(self) -> Floats:
        return np.array([[0.0, -np.inf, 0.0, 0.0, 0.0]])

    def _extended(self, state: Floats, rows: Ints) -> Floats:
        table = self.rows.table
        fills = state[:, 2] + self.rows.fill[rows]
        passed = np.maximum(state[:, 0] + self.rows.fill[rows], self._turns_s(state, rows, fills))
        ready = np.maximum(passed, self._to_end[rows])
        end = np.maximum(state[:, 1] + table.fill_f[rows], ready + table.tail[rows])
        leaves = np.maximum(passed, self.rows.busy[rows])
        return np.column_stack([leaves, end, fills, self._near[rows], state[:, 4] + 1])

    def _turns_s(self, state: Floats, rows: Ints, fills: Floats) -> Floats:
        """Of round trips from the new first stage to the next one, and to the last one; then the
        last of these micro-batches goes all the way.
        """
        table = self.rows.table
        behind, degree = state[:, 4].astype(np.int64), table.degree[rows]
        there = fills - table.entry[rows]
        next_ = self._apart[rows] + state[:, 3]
        # A last stage by itself: its own computations, one micro-batch after the other.
        to_last = self._turns(behind + 1, np.ones_like(behind), degree) * there
        to_next = self._turns(behind + 1, np.maximum(behind, 1), degree) * next_
        turns: Floats = fills + np.maximum(to_last, np.where(behind > 0, to_next, 0.0))
        return turns

    def _turns(self, first: Ints, second: Ints, degree: Ints) -> Ints:
        """Round trips between stages of so many to the end, that one micro-batch after the other
        must make. degree: of the first of them.
        """
        table, depth = self.rows.table, self.rows.table.combination.depth
        num, degrees = table.num_micro_batches, table.combination.degrees
        if len(degrees) == 1:
            # Micro-batches of one replica pass the same replica everywhere: count those alone.
            near, far = -(-depth * first // degree), -(-depth * second // degree)
            alike: Ints = np.maximum(-(-num // degree) - far, 0) // (near - far + 1)
            return alike
        step = depth * (first - second) + degree + degrees[-1] - 1
        turns: Ints = np.maximum(num - depth * second, 0) // step
        return turns

    def total_s(self, state: Floats) -> Floats:
        total: Floats = state[:, 1]
        return total

    def certain(self, cut: int, state: Floats) -> tuple[Floats, Floats, Floats]:
        least = self.least
        own = state[:, 0] + least.tail[cut]
        by_end = state[:, 1] + least.fill_f[cut]
        return own, np.zeros(len(state)), np.maximum(own + least.fill[cut], by_end)

    def columns(self, cut: int, state: Floats) -> Floats:
        """More stages turn less often, and take more memory in front: only equally many compare."""
        return np.column_stack([state, -state[:, 4]])

    def fastest(self) -> Floats:
        table, least = self.rows.table, self.least
        whole = np.maximum(self.rows.fill + least.behind[table.stop], self.rows.busy)
        fastest: Floats = least.fill[table.start] + whole + least.tail[-1]
        return fastest


def pipeline_of(rows: Rows, least: Least) -> Pipeline:
    kinds = {"gpipe": Gpipe, "1f1b": OneForward}
    return kinds[rows.table.combination.schedule](rows, least)
