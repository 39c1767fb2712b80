"""What each action of a program does: the only place where stage, wire and store meet.

Nothing here decides when something runs; the executor does, and the lanes call `Tasks.run`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from funcpipe import keys, wire
from funcpipe.clock import REAL, Clock
from funcpipe.errors import FuncpipeError, TrainingError
from funcpipe.invocation import Invocation
from funcpipe.model.sampling import digest
from funcpipe.passes import Pass
from funcpipe.schedule.action import Action, Kind
from funcpipe.schedule.message import Message, received, sent
from funcpipe.store.base import ObjectStore
from funcpipe.store.wait import Arrival
from funcpipe.sync.plan import part_bounds

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from funcpipe.worker.build import BuiltStage

__all__ = ["Cost", "Fetch", "Tasks", "key_of"]

Fetch = Callable[[str, Pass, Action], Arrival]
"""Waits for the object of that key, which the action of the pass receives."""


@dataclass
class Cost:
    """Where the seconds of one action went; what is left of its duration is funcpipe's own.

    user_s: the user's model, loss, data and optimiser. transfer_s: bytes on their way.
    wait_s: until a peer's object appeared, in which it was looked for `misses` times in vain.
    The seconds are those of `clock`.
    """

    user_s: float = 0.0
    transfer_s: float = 0.0
    wait_s: float = 0.0
    misses: int = 0
    clock: Clock = field(default=REAL, repr=False, compare=False)

    @contextmanager
    def user(self) -> Iterator[None]:
        began = self.clock.now()
        try:
            yield
        finally:
            self.user_s += self.clock.now() - began

    @contextmanager
    def transfer(self) -> Iterator[None]:
        began = self.clock.now()
        try:
            yield
        finally:
            self.transfer_s += self.clock.now() - began


def key_of(attempt: keys.Attempt, one: Pass, message: Message) -> str:
    """The key under which a message of a pass travels."""
    base = attempt.training(one.step) if one.trains else attempt.evaluation(one.step)
    place = message.place
    match message.kind:
        case "act":
            return base.activation(message.stage, *place)
        case "grad":
            return base.gradient(message.stage, *place)
        case "part":
            return base.partial(message.stage, *place)
        case _:
            return base.sum(message.stage, *place)


class Tasks:
    """The actions of one worker. Lanes may call `run` at once, each for its action."""

    def __init__(
        self,
        invocation: Invocation,
        built: BuiltStage,
        store: ObjectStore,
        fetch: Fetch,
        *,
        clock: Clock = REAL,
    ) -> None:
        self._invocation = invocation
        self._attempt = invocation.spec.keys
        self._degree = invocation.spec.plan.degrees[invocation.stage]
        self._built = built
        self._store = store
        self._fetch = fetch
        self._clock = clock
        self._inbox: dict[tuple[int, Action], Any] = {}
        self._outbox: dict[tuple[int, Action], Any] = {}
        self._losses: dict[int, dict[int, float]] = defaultdict(dict)
        self._evaluations: dict[int, dict[int, dict[str, Any]]] = defaultdict(dict)
        self._entries: list[dict[str, Any]] = []
        self._reports = 0
        self._read: dict[int, list[str]] = defaultdict(list)
        self._own_sums: list[str] = []
        self._stale_sums: list[str] = []

    def run(self, one: Pass, action: Action) -> Cost:
        """Do `action` of the pass; where its time went. Raises the `FuncpipeError` family."""
        cost = Cost(clock=self._clock)
        kind = action.kind
        if kind.value.startswith("RECV"):
            self._receive(one, action, cost)
        elif kind.value.startswith("SEND"):
            self._send(one, action, cost)
        else:
            _DO[kind](self, one, action, cost)
        return cost

    # Messages.

    def _receive(self, one: Pass, action: Action, cost: Cost) -> None:
        message = received(action, self._invocation.replica)
        if message is None:
            raise FuncpipeError(f"{action} receives nothing")
        key = key_of(self._attempt, one, message)
        arrival = self._fetch(key, one, action)
        cost.wait_s += arrival.waited_s
        cost.misses += arrival.misses
        cost.transfer_s += arrival.transfer_s
        opened = wire.decode(arrival.data)
        self._check(one, message, opened.meta)
        if action.kind is Kind.RECV_S:
            for target, part in self._parts(action.index, opened.value):
                target.copy_(part)
            return
        self._inbox[one.index, action] = opened.value
        self._read[one.index].append(key)

    def _send(self, one: Pass, action: Action, cost: Cost) -> None:
        message = sent(action, self._invocation.replica)
        if message is None:
            raise FuncpipeError(f"{action} sends nothing")
        key = key_of(self._attempt, one, message)
        if action.kind in (Kind.SEND_P, Kind.SEND_S):
            value = tuple(self._own_parts(action.index))
        else:
            value = self._outbox.pop((one.index, action))
        data = wire.encode(value, meta=self._meta(one, message))
        with cost.transfer():
            self._store.put(key, data)
        if action.kind is Kind.SEND_S:
            self._own_sums.append(key)

    def _meta(self, one: Pass, message: Message) -> dict[str, Any]:
        """What the reader checks: the pass, and which samples an activation belongs to."""
        meta = {"step": one.step, "of": message.kind, "place": list(message.place)}
        if message.kind in ("act", "grad"):
            meta["ids"] = digest(one.micro_batches[message.place[0]])
        return meta

    def _check(self, one: Pass, message: Message, meta: Any) -> None:
        expected = self._meta(one, message)
        if meta != expected:
            raise TrainingError(
                f"the {message.kind} message is not the one expected: it says {meta}, expected "
                f"{expected}; all functions must see the same samples in the same order"
            )

    # Gradient parts.

    def _own_parts(self, owner: int | None) -> list[Tensor]:
        parts = []
        for buffer in self._built.stage.gradients.buffers:
            start, stop = part_bounds(buffer.numel(), self._degree, owner or 0)
            parts.append(buffer[start:stop])
        return parts

    def _parts(self, owner: int | None, value: Any) -> Sequence[tuple[Tensor, Tensor]]:
        own = self._own_parts(owner)
        if not isinstance(value, tuple) or _forms(own) != _forms(value):
            raise TrainingError("a gradient chunk has another size or dtype than expected")
        return list(zip(own, value, strict=True))

    # Compute lane.

    def _forward(self, one: Pass, action: Action, cost: Cost) -> None:
        result = self._through(self._built.forward, one, action, cost)
        if self._invocation.is_last:
            self._losses[one.index][action.index or 0] = result

    def _evaluate(self, one: Pass, action: Action, cost: Cost) -> None:
        result = self._through(self._built.evaluate, one, action, cost)
        if self._invocation.is_last:
            self._evaluations[one.index][action.index or 0] = {
                "loss": result.loss_sum,
                "weight": result.weight,
                "count": result.count,
                "metrics": dict(result.metric_sums),
            }

    def _through(self, compute: Callable[..., Any], one: Pass, action: Action, cost: Cost) -> Any:
        """Take the input, compute, and leave what is to be sent in the outbox."""
        k, stage = action.index or 0, action.stage
        with cost.user():
            if self._invocation.is_first:
                value = self._built.inputs(one, k)
            else:
                value = self._inbox.pop((one.index, Action(stage, Kind.RECV_F, k)))
            target = self._built.targets(one, k) if self._invocation.is_last else None
            result = compute(one, k, value, target)
        if not self._invocation.is_last:
            self._outbox[one.index, Action(stage, Kind.SEND_F, k)] = result
        return result

    def _backward(self, one: Pass, action: Action, cost: Cost) -> None:
        k = action.index or 0
        gradient = self._inbox.pop((one.index, Action(action.stage, Kind.RECV_B, k)), None)
        with cost.user():
            given = self._built.backward(k, gradient)
        if action.stage > 0:
            self._outbox[one.index, Action(action.stage, Kind.SEND_B, k)] = given

    def _add(self, one: Pass, action: Action, cost: Cost) -> None:
        receive = Action(action.stage, Kind.RECV_P, action.index, action.chunk)
        value = self._inbox.pop((one.index, receive))
        for own, share in self._parts(self._invocation.replica, value):
            own.add_(share)

    def _step(self, one: Pass, action: Action, cost: Cost) -> None:
        with cost.user():
            self._built.step(one)
        # A peer's shares of this step are sent only after it has read all sums of the last one.
        stale, self._stale_sums = self._stale_sums, self._own_sums
        self._own_sums = []
        self._read[one.index] += stale
        losses = self._losses.pop(one.index, {})
        if self._invocation.is_last:
            self._entries.append({"trains": True, "step": one.step, "losses": _numbered(losses)})

    # Service lane.

    def _report(self, one: Pass, action: Action, cost: Cost) -> None:
        entries, self._entries = self._entries, []
        if not one.trains:
            sums = self._evaluations.pop(one.index, {})
            entries.append({"trains": False, "step": one.step, "sums": _numbered(sums)})
        place = self._invocation
        key = self._attempt.report(place.stage, place.replica, self._reports)
        self._reports += 1
        with cost.transfer():
            self._store.put(key, json.dumps({"entries": entries}).encode())

    def _delete(self, one: Pass, action: Action, cost: Cost) -> None:
        with cost.transfer():
            self._store.delete(self._read.pop(one.index, []))


_DO: dict[Kind, Callable[[Tasks, Pass, Action, Cost], None]] = {
    Kind.F: Tasks._forward,
    Kind.B: Tasks._backward,
    Kind.E: Tasks._evaluate,
    Kind.ADD: Tasks._add,
    Kind.STEP: Tasks._step,
    Kind.REPORT: Tasks._report,
    Kind.DEL: Tasks._delete,
}


def _forms(parts: Sequence[Tensor]) -> list[tuple[torch.Size, torch.dtype]]:
    return [(part.shape, part.dtype) for part in parts]


def _numbered(values: dict[int, Any]) -> list[list[Any]]:
    return [[k, values[k]] for k in sorted(values)]
