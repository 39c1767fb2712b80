"""Labels: runs of stages from a cut to the model's end, many at once, and how they grow.

A label keeps what its completions depend on. A `Pipeline` says what that is for a schedule, how a
further stage in front changes it, and which of two labels can never win: `Gpipe` here, `OneForward`
in a file of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from funcpipe.partitioner.rows import Floats, Ints, Least, Rows

__all__ = ["Ahead", "Gpipe", "Labels", "Pipeline", "nondominated"]

TINY = 1e-12
BLOCK = 96


@dataclass(frozen=True)
class Labels:
    """Arrays of one entry a label. state: what the schedule's `Pipeline` keeps, a row each.

    per_s, per_step: dollars of its stages. row: its first stage; parent: the label behind that.
    """

    state: Floats
    per_s: Floats
    per_step: Floats
    stages: Ints
    functions: Ints
    row: Ints
    parent: Ints

    def __len__(self) -> int:
        return len(self.row)

    def take(self, which: Ints | slice | np.ndarray) -> Labels:
        return Labels(*(getattr(self, one.name)[which] for one in fields(self)))

    @staticmethod
    def join(parts: Sequence[Labels]) -> Labels:
        if len(parts) == 1:
            return parts[0]
        names = [one.name for one in fields(Labels)]
        return Labels(*(np.concatenate([getattr(p, name) for p in parts]) for name in names))


@dataclass(frozen=True)
class Ahead:
    """What plans that labels grow into take at least, an entry a label.

    total: seconds of a step. own + the plan's waits, which are at least `wait`, + the fills of the
    stages to come: another bound of them. per_s, per_step: dollars of the label's own stages.
    """

    own: Floats
    wait: Floats
    total: Floats
    per_s: Floats
    per_step: Floats


class Pipeline:
    """What a schedule's step time depends on. `least` bounds what is not there yet."""

    def __init__(self, rows: Rows, least: Least) -> None:
        self.rows, self.least = rows, least

    def root(self) -> Labels:
        """The label of no stages."""
        zero, none = np.zeros(1), np.zeros(1, dtype=np.int64)
        return Labels(self._nothing(), zero, zero, none, none, none - 1, none - 1)

    def grown(self, labels: Labels, which: Ints, rows: Ints, offset: int) -> Labels:
        """Labels `which` with a stage in front: one of `rows` each. offset: added for parents."""
        table = self.rows.table
        return Labels(
            self._extended(labels.state[which], rows),
            labels.per_s[which] + table.per_s[rows],
            labels.per_step[which] + table.per_step[rows],
            labels.stages[which] + 1,
            labels.functions[which] + table.degree[rows],
            rows,
            which + offset,
        )

    def _nothing(self) -> Floats:
        raise NotImplementedError

    def _extended(self, state: Floats, rows: Ints) -> Floats:
        raise NotImplementedError

    def total_s(self, state: Floats) -> Floats:
        """Seconds of a step, of labels that cover all layers."""
        raise NotImplementedError

    def certain(self, cut: int, state: Floats) -> tuple[Floats, Floats, Floats]:
        """`own`, `wait` and `total` of `Ahead`."""
        raise NotImplementedError

    def ahead(self, cut: int, labels: Labels) -> Ahead:
        return Ahead(*self.certain(cut, labels.state), labels.per_s, labels.per_step)

    def columns(self, cut: int, state: Floats) -> Floats:
        """A label whose columns are all no larger takes no more time, whatever comes before it."""
        raise NotImplementedError

    def fastest(self) -> Floats:
        """By row: what any plan with it takes at least."""
        raise NotImplementedError


class Gpipe(Pipeline):
    """State: fills forward F and backward B, the last end V of a stage (from the forward's end),
    and for each degree the longest block of waits, forward and backward (`waits.counts_of`).

    A plan takes F + waits forward + V. A stage in front ends at B + its fill + waits backward + its
    tail; V is the largest of these.
    """

    @property
    def _num(self) -> int:
        return len(self.rows.counts)

    def _nothing(self) -> Floats:
        state = np.zeros((1, 3 + 2 * self._num))
        state[:, 2] = -np.inf
        return state

    def _extended(self, state: Floats, rows: Ints) -> Floats:
        table, num = self.rows.table, self._num
        new = state.copy()
        new[:, 0] += table.fill_f[rows]
        new[:, 1] += table.fill_b[rows]
        for first, lane in ((3, table.lane_f), (3 + num, table.lane_b)):
            blocks = new[:, first : first + num]
            place = (np.arange(len(rows)), self.rows.class_of[rows])
            blocks[place] = np.maximum(blocks[place], lane[rows])
            for index, ratio in enumerate(self.rows.ratios):
                np.maximum(blocks[:, index + 1], ratio * blocks[:, index], out=blocks[:, index + 1])
        end = new[:, 1] + self._waits_b(new) + table.tail[rows]
        new[:, 2] = np.maximum(new[:, 2], end)
        return new

    def _waits_f(self, state: Floats) -> Floats:
        waits: Floats = state[:, 3 : 3 + self._num] @ self.rows.counts
        return waits

    def _waits_b(self, state: Floats) -> Floats:
        waits: Floats = state[:, 3 + self._num :] @ self.rows.counts
        return waits

    def total_s(self, state: Floats) -> Floats:
        total: Floats = state[:, 0] + self._waits_f(state) + state[:, 2]
        return total

    def certain(self, cut: int, state: Floats) -> tuple[Floats, Floats, Floats]:
        least = self.least
        waits_f = self._waits_f(state)
        wait = np.maximum(waits_f + self._waits_b(state), least.wait[cut])
        own = state[:, 0] + state[:, 1] + least.tail[cut]
        by_end = state[:, 0] + least.fill_f[cut] + waits_f + state[:, 2]
        return own, wait, np.maximum(own + wait + least.fill[cut], by_end)

    def columns(self, cut: int, state: Floats) -> Floats:
        forward, backward, end = state[:, 0], state[:, 1], state[:, 2]
        floor_b = self._waits_b(state)
        if self._num == 1:
            # No plan does without a lane like these, so a label's smaller one is no merit.
            lane_f = np.maximum(state[:, 3], self.least.lane_f[cut]) * self.rows.counts[0]
            lane_b = np.maximum(state[:, 4], self.least.next_lane_b[cut]) * self.rows.counts[0]
            end = np.maximum(end, backward + lane_b + self.least.next_end[cut])
            # The time is the largest of these sums, each plus something that labels share.
            sums = [
                f + b
                for f in (forward, forward + lane_f)
                for b in (backward, backward + lane_b, end)
            ]
            return np.stack(sums, axis=1)
        end = np.maximum(end, backward + floor_b + self.least.next_end[cut])
        return np.column_stack([forward, backward, end, state[:, 3:]])

    def fastest(self) -> Floats:
        table, least, rows = self.rows.table, self.least, self.rows
        by_first = least.fill[table.start] + np.maximum(rows.wait, least.wait[-1]) + least.tail[-1]
        by_own_end = least.fill_f[table.start] + rows.wait + table.tail
        fastest: Floats = rows.fill + least.behind[table.stop] + np.maximum(by_first, by_own_end)
        return fastest


def nondominated(columns: Floats) -> Ints:
    """Rows that no other row is as good as in every column; of equal rows the first.

    Rows are compared in blocks in the order of the last column, then of their sum: what is as good
    as a row in every column comes before it. A row that is better than a whole block in some column
    need not be compared with it.
    """
    scaled = columns / np.maximum(np.abs(columns).max(axis=0), 1e-300)
    left = np.lexsort((scaled.sum(axis=1), columns[:, -1]))
    bars = columns + TINY * np.abs(columns)
    kept = []
    while len(left):
        block, left = left[:BLOCK], left[BLOCK:]
        worse = _no_better(bars[block], columns[block])
        # A row is compared with the rows before it, whether those are kept or not: what makes one
        # superfluous makes the other superfluous too.
        block = block[~np.tril(worse, -1).any(axis=1)]
        kept.append(block)
        maybe = np.flatnonzero((bars[left] >= columns[block].min(axis=0)).all(axis=1))
        if len(maybe):
            beaten = _no_better(bars[left[maybe]], columns[block]).any(axis=1)
            left = np.delete(left, maybe[beaten])
    return np.concatenate(kept) if kept else np.empty(0, dtype=np.int64)


def _no_better(these: Floats, than: Floats) -> np.ndarray:
    """Whether one of `these` (rows) is as large as one of `than` (columns) in every column."""
    worse = these[:, 0, None] >= than[:, 0]
    for column in range(1, these.shape[1]):
        worse &= these[:, column, None] >= than[:, column]
    return worse
