"""Where the time of a training step went: a worker's critical path, from its timeline.

A step of a worker ends with the last computation or upload of its pass. From there the path goes
back in time: each action began when the last of what it depends on had ended, which is the
*binding* one, and the path goes on there, until the end of the step before. Depended on are

* the tasks that the program names (`Task.after`, and `Task.after_previous` in the pass before),
* the action before it on its lane, since a lane does one at a time,
* and everything of the pass before last, since no more than two are open at once.

So every moment of a step belongs to one action or to the gap before it. Inside an action, what
it spent in the user's code, on bytes under way and waiting for a peer is known; the rest of it
(encoding, checking, adding gradients) and all gaps (handing over to another thread, deciding what
comes next, and on a busy machine waiting for a core) are funcpipe's own: the overhead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

from funcpipe.schedule.action import Action, Kind, Lane, parse
from funcpipe.schedule.message import Message, received, sent
from funcpipe.schedule.program import Program, Task

__all__ = ["Link", "Ran", "Shares", "StepPath", "late_arrivals", "step_paths", "total"]

# Times are rounded to microseconds: what ends at a start may seem to end just after it.
_ROUNDING_S = 2e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One action that has run, in seconds on its worker's clock.

    The user's code, transfer and waiting lie between start and end; waiting comes first, and
    looks in vain, `misses`, are a part of it.
    """

    pass_index: int
    action: Action
    start_s: float
    end_s: float
    user_s: float = 0.0
    transfer_s: float = 0.0
    wait_s: float = 0.0
    misses: int = 0

    @staticmethod
    def of(row: Sequence[Any]) -> Ran:
        """From a row of a worker's timeline, as `funcpipe.worker.timeline.Record` writes it."""
        pass_index, token, start_s, end_s, user_s, transfer_s, wait_s, misses = row
        return Ran(
            pass_index=pass_index,
            action=parse(token),
            start_s=start_s,
            end_s=end_s,
            user_s=user_s,
            transfer_s=transfer_s,
            wait_s=wait_s,
            misses=misses,
        )

    def since(self, begin_s: float) -> Ran:
        """What is left of the action from `begin_s` on: the beginning, of waiting first, is cut."""
        cut_s = begin_s - self.start_s
        if cut_s <= 0:
            return self
        wait_s = max(0.0, self.wait_s - cut_s)
        busy_s = self.end_s - self.start_s - self.wait_s
        kept_s = min(busy_s, self.end_s - begin_s - wait_s)
        scale = kept_s / busy_s if busy_s > 0 else 0.0
        return replace(
            self,
            start_s=begin_s,
            user_s=self.user_s * scale,
            transfer_s=self.transfer_s * scale,
            wait_s=wait_s,
        )


@dataclass(frozen=True, slots=True)
class Shares:
    """Seconds of a critical path; `own_s` are funcpipe's inside actions, `gap_s` between them."""

    user_s: float = 0.0
    transfer_s: float = 0.0
    wait_s: float = 0.0
    own_s: float = 0.0
    gap_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.user_s + self.transfer_s + self.wait_s + self.overhead_s

    @property
    def overhead_s(self) -> float:
        return self.own_s + self.gap_s

    @property
    def overhead_share(self) -> float:
        return self.overhead_s / self.total_s if self.total_s else 0.0

    def __add__(self, other: Shares) -> Shares:
        return Shares(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class Link:
    """A piece of a critical path: an action, as much of it as lies in the step, and the gap
    between its binding predecessor's end (or the step's begin) and its start."""

    ran: Ran
    gap_s: float

    @property
    def shares(self) -> Shares:
        one = self.ran
        known_s = one.user_s + one.transfer_s + one.wait_s
        own_s = max(0.0, one.end_s - one.start_s - known_s)
        return Shares(one.user_s, one.transfer_s, one.wait_s, own_s, self.gap_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPath:
    """The critical path of one training step of one worker, first action first."""

    pass_index: int
    begin_s: float
    end_s: float
    links: tuple[Link, ...]

    @property
    def shares(self) -> Shares:
        return total(link.shares for link in self.links)

    def by_kind(self) -> dict[Kind, Shares]:
        kinds: dict[Kind, Shares] = defaultdict(Shares)
        for link in self.links:
            kinds[link.ran.action.kind] += link.shares
        return dict(kinds)


def total(shares: Iterable[Shares]) -> Shares:
    return sum(shares, Shares())


def step_paths(rows: Iterable[Ran], programs: Mapping[int, Program]) -> list[StepPath]:
    """The critical path of each training step that follows a pass in the timeline.

    rows: what one worker did, in any order. programs: its program in each pass.
    """
    worker = _Worker(rows, programs)
    paths = []
    for pass_index, program in sorted(programs.items()):
        before, last = worker.last(pass_index - 1), worker.last(pass_index)
        trains = any(task.action.kind is Kind.STEP for task in program.tasks)
        if not trains or before is None or last is None:
            continue
        begin_s = before.end_s
        links = tuple(worker.path(last, begin_s))[::-1]
        path = StepPath(pass_index=pass_index, begin_s=begin_s, end_s=last.end_s, links=links)
        paths.append(path)
    return paths


class _Worker:
    """What one worker did, found by what it depended on."""

    def __init__(self, rows: Iterable[Ran], programs: Mapping[int, Program]) -> None:
        ordered = sorted(rows, key=lambda ran: (ran.start_s, ran.end_s))
        self._ran = {(ran.pass_index, ran.action): ran for ran in ordered}
        self._tasks: dict[tuple[int, Action], Task] = {
            (index, task.action): task
            for index, program in programs.items()
            for task in program.tasks
        }
        self._on_lane_before: dict[tuple[int, Action], Ran] = {}
        self._ends: dict[int, Ran] = {}
        self._last: dict[int, Ran] = {}
        lanes: dict[Lane, Ran] = {}
        for ran in ordered:
            lane, index = ran.action.lane, ran.pass_index
            if lane in lanes:
                self._on_lane_before[index, ran.action] = lanes[lane]
            lanes[lane] = ran
            _keep_latest(self._ends, ran)
            if lane in (Lane.COMPUTE, Lane.UP):
                _keep_latest(self._last, ran)

    def last(self, pass_index: int) -> Ran | None:
        """The computation or upload that ends the worker's part in a pass."""
        return self._last.get(pass_index)

    def path(self, last: Ran, begin_s: float) -> Iterator[Link]:
        """From `last` backwards until `begin_s`."""
        ran: Ran | None = last
        while ran is not None and ran.end_s > begin_s:
            inside = ran.since(begin_s)
            binding = self._binding(ran)
            freed_s = begin_s if binding is None else max(begin_s, binding.end_s)
            yield Link(inside, max(0.0, inside.start_s - freed_s))
            ran = binding

    def _binding(self, ran: Ran) -> Ran | None:
        before = [
            one
            for one in self._dependencies(ran)
            if one.end_s <= ran.start_s + _ROUNDING_S and one.start_s < ran.start_s
        ]
        return max(before, key=lambda one: one.end_s, default=None)

    def _dependencies(self, ran: Ran) -> Iterator[Ran]:
        here = (ran.pass_index, ran.action)
        task = self._tasks.get(here)
        keys = []
        if task is not None:
            keys += [(ran.pass_index, action) for action in task.after]
            keys += [(ran.pass_index - 1, action) for action in task.after_previous]
        yield from (self._ran[key] for key in keys if key in self._ran)
        if here in self._on_lane_before:
            yield self._on_lane_before[here]
        if ran.pass_index - 2 in self._ends:
            yield self._ends[ran.pass_index - 2]


def _keep_latest(found: dict[int, Ran], ran: Ran) -> None:
    known = found.get(ran.pass_index)
    if known is None or ran.end_s > known.end_s:
        found[ran.pass_index] = ran


def late_arrivals(
    workers: Mapping[tuple[int, int], tuple[float, Sequence[Ran]]],
) -> dict[tuple[int, int], dict[tuple[int, Action], float]]:
    """How many seconds of each wait came after the object was there, by worker, pass and action.

    A receiver that polls sees an object some time after it has been put: that part of its
    waiting is not the peer's. workers: (stage, replica) to the worker's begin on a clock that all
    share, and what it did. Only receives that had to wait, and whose sender is known, are told.
    """
    puts: dict[tuple[int, Message], float] = {}
    for (_, replica), (began_at, rows) in workers.items():
        for ran in rows:
            message = sent(ran.action, replica)
            if message is not None:
                puts[ran.pass_index, message] = began_at + ran.end_s
    late: dict[tuple[int, int], dict[tuple[int, Action], float]] = {}
    for (stage, replica), (began_at, rows) in workers.items():
        mine = late.setdefault((stage, replica), {})
        for ran in rows:
            message = received(ran.action, replica)
            put_at = None if message is None else puts.get((ran.pass_index, message))
            if put_at is None or ran.wait_s <= 0:
                continue
            found_at = began_at + ran.start_s + ran.wait_s
            mine[ran.pass_index, ran.action] = min(ran.wait_s, max(0.0, found_at - put_at))
    return late
