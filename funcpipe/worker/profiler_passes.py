"""Passes of a stage whose neighbours are not there, and how long they take."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from funcpipe import wire
from funcpipe.errors import ObjectMissing, TrainingError
from funcpipe.model.measure import (
    hold_still,
    optimizer_bytes,
    shares,
    step_by_layer,
    trained_bytes,
)
from funcpipe.model.sampling import batch_ids, num_batches
from funcpipe.model.values import map_leaves, map_tensors, tensors_in
from funcpipe.passes import Pass
from funcpipe.profiletask import ProfileTask
from funcpipe.store.base import ObjectStore
from funcpipe.usercode import user_code
from funcpipe.worker.build import BuiltStage
from funcpipe.worker.context import Context
from funcpipe.worker.estimates import Block, scaled, spread, stretched
from funcpipe.worker.memory import forget_peak, peak_bytes, resident_bytes, trim

__all__ = ["Passes", "Times", "measure_times"]

MOST_IN_FLIGHT = 4
BLOCK_S = 0.25
"""Seconds of a block at least: some periods of a quota of CPU time."""
SPLITS = 5


class Passes:
    """Forwards and backwards of any size, as the compute lane of a function in training runs them.

    What the stage before would send was left in the store by the function that measured it; what
    the stage behind would send back is random.
    """

    def __init__(
        self, task: ProfileTask, built: BuiltStage, store: ObjectStore, context: Context
    ) -> None:
        self.task, self.built, self.context = task, built, context
        self._store = store
        self._value: Any = None
        self._gradient: Any = None
        self._one: Pass | None = None
        self._reports = 0
        with user_code("making the optimiser", roots=built.roots):
            hold_still(built.stage)

    def prepare(self, size: int) -> None:
        """From now on micro-batches have `size` samples."""
        count = MOST_IN_FLIGHT * size
        ids: list[int] = list(range(size))
        if self.built.train is not None:
            ids = _first_ids(self.built, count)
        parts = tuple(
            tuple(ids[(at + number) % len(ids)] for number in range(size))
            for at in range(0, count, size)
        )
        self._one = Pass(0, True, 0, parts[: self.most_in_flight(size)])
        self.built._scales.clear()
        self._value = self._gradient = None
        if not self.built.stage.is_first:
            key = self.task.run.profile_value(self.task.first_layer, size)
            try:
                self._value = wire.decode(self._store.get(key)).value
            except ObjectMissing as error:
                raise TrainingError(
                    f"nobody has left an input of {size} samples for layer "
                    f"{self.task.first_layer}: the layers before it are measured first"
                ) from error

    def most_in_flight(self, size: int) -> int:
        return max(1, min(MOST_IN_FLIGHT, -(-self.built.job.batch_size // size)))

    @property
    def one(self) -> Pass:
        if self._one is None:
            raise RuntimeError("`prepare` comes first")
        return self._one

    def load(self, k: int) -> tuple[Any, Any]:
        """Inputs and targets of micro-batch k, where this stage has them."""
        stage, one = self.built.stage, self.one
        value = self.built.inputs(one, k) if stage.is_first else self.received()
        return value, self.built.targets(one, k) if stage.is_last else None

    def received(self) -> Any:
        """A fresh copy of what the stage before has sent."""
        return map_tensors(self._value, _copy)

    def forward(self, k: int, value: Any = None) -> Any:
        """value: `received`, made before where its time is not to count."""
        stage, one = self.built.stage, self.one
        if stage.is_first:
            value = self.built.inputs(one, k)
        elif value is None:
            value = self.received()
        target = self.built.targets(one, k) if stage.is_last else None
        result = self.built.forward(one, k, value, target)
        if not stage.is_last and self._gradient is None:
            self._gradient = map_leaves(result, _random_like)
        return result

    def backward(self, k: int) -> None:
        gradient = None
        if not self.built.stage.is_last:
            gradient = map_tensors(self._gradient, torch.clone)
        self.built.backward(k, gradient)

    def step(self) -> None:
        self.built.step(self.one)

    def input_bytes(self) -> float:
        """Of one sample at the first layer; 0 for a stage that is not the first."""
        if not self.built.stage.is_first:
            return 0.0
        value = self.built.inputs(self.one, 0)
        return sum(one.nbytes for one in tensors_in(value)) / len(self.one.micro_batches[0])

    def hand_on(self, size: int) -> None:
        """Leave what the next layers take, for the function that measures those."""
        if self.built.stage.is_last:
            return
        value = self.forward(0)
        self.backward(0)
        key = self.task.run.profile_value(self.task.stop_layer, size)
        self._store.put(key, wire.encode(value, meta={"size": size}))

    def report(self, size: int, done: float) -> None:
        key = self.task.run.profile_progress(self.task.token, self._reports)
        self._reports += 1
        self._store.put(key, json.dumps({"size": size, "done": done}).encode())


def _first_ids(built: BuiltStage, count: int) -> list[int]:
    """The samples that training takes first, at most `count`."""
    if built.train is None:
        return []
    job, num_samples = built.job, built.train.num_samples
    ids: list[int] = []
    for step in range(num_batches(num_samples, job.batch_size)):
        ids += batch_ids(
            seed=job.seed, num_samples=num_samples, batch_size=job.batch_size, step=step,
            shuffle=job.shuffle,
        )  # fmt: skip
        if len(ids) >= count:
            break
    return ids[:count]


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _random_like(leaf: Any) -> Tensor | None:
    """A gradient: no denormal numbers, which would take their own time."""
    if not isinstance(leaf, Tensor) or not leaf.requires_grad:
        return None
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(leaf.shape, generator=generator)
    return drawn.div_(max(1, leaf.numel()) ** 0.5).to(leaf.dtype)


@dataclass
class Times:
    """By size: seconds of each layer's forward and backward; of all sizes: of its step.

    fixed_bytes: what libraries hold once passes have been run. peaks: the most that the function
    held while a size was measured, with `in_flight` micro-batches between forward and backward.
    """

    forward_s: list[list[float]] = field(default_factory=list)
    backward_s: list[list[float]] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    num_passes: list[int] = field(default_factory=list)
    in_flight: list[int] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    stretches: list[float] = field(default_factory=list)
    spreads: list[float] = field(default_factory=list)
    fixed_bytes: int = 0

    @property
    def spread(self) -> float:
        return median(self.spreads)

    def rows(self) -> list[dict[str, Any]]:
        """By layer."""
        return [
            {
                "forward_s": [times[number] for times in self.forward_s],
                "backward_s": [times[number] for times in self.backward_s],
                "step_s": step_s,
            }
            for number, step_s in enumerate(self.step_s)
        ]


def measure_times(passes: Passes) -> Times:
    """Every size in turn."""
    task, times = passes.task, Times()
    steps: list[float] = []
    unseen = passes.context.unseen_file_bytes
    trim()
    before = resident_bytes(unseen_file_bytes=unseen)
    for number, size in enumerate(task.sizes):
        forget_peak()
        passes.prepare(size)
        warm = _Rounds(passes, 1)
        pass_s = warm.run()
        warm.in_flight = _in_flight(pass_s, passes.most_in_flight(size), task.least_s)
        for _ in range(max(0, task.warmup - 1)):
            warm.run()
        blocks = _blocks(warm, task)
        forward_s, backward_s, step_s = stretched(blocks)
        steps.append(step_s)
        times.peaks.append(peak_bytes(unseen_file_bytes=unseen))
        trim()  # what is free in the heap is no part of what libraries hold
        left = resident_bytes(unseen_file_bytes=unseen) - before - _state_bytes(passes)
        times.fixed_bytes = max(times.fixed_bytes, left)
        times.in_flight.append(warm.in_flight)
        times.num_passes.append(sum(block.counts[0] for block in blocks))
        times.stretches.append(
            sum(block.wall_s for block in blocks) / sum(block.cpu_s for block in blocks)
        )
        times.spreads.append(spread([block.parts[0] / block.counts[0] for block in blocks]))
        forwards, backwards = _split(passes)
        times.forward_s.append(scaled(forwards, forward_s))
        times.backward_s.append(scaled(backwards, backward_s))
        passes.hand_on(size)
        passes.report(size, (number + 1) / len(task.sizes))
    stage = passes.built.stage
    step_s = median(steps)
    with user_code("the optimiser step", roots=passes.built.roots):
        parts = [step_by_layer(stage, time.process_time) for _ in range(SPLITS)]
    trains = stage.optimizer is not None
    times.step_s = scaled(parts, step_s) if trains else [0.0] * len(stage.layers)
    return times


def _state_bytes(passes: Passes) -> int:
    """Of gradients and the optimiser, which come with the first step."""
    stage = passes.built.stage
    return sum(trained_bytes(layer) for layer in stage.layers) + sum(optimizer_bytes(stage))


def _in_flight(pass_s: float, most: int, least_s: float) -> int:
    """Micro-batches of a round: fewer of long ones, so that several rounds are measured."""
    return max(1, min(most, int(least_s / 8 / max(pass_s, 1e-9))))


class _Rounds:
    """A small training step after the other: forwards, backwards, the optimiser's step."""

    def __init__(self, passes: Passes, in_flight: int) -> None:
        self._passes = passes
        self.in_flight = in_flight
        self.cpu_s = [0.0, 0.0, 0.0]
        self.counts = [0, 0, 0]
        self.wall_s = 0.0

    def run(self) -> float:
        """One round; seconds of the platform of one of its passes."""
        passes, clock = self._passes, self._passes.context.clock
        given: list[Any] = [None] * self.in_flight
        if not passes.built.stage.is_first:
            given = [passes.received() for _ in given]
        began, marks = clock.now(), [time.process_time()]
        for k in range(self.in_flight):
            passes.forward(k, given[k])
            given[k] = None
        marks.append(time.process_time())
        for k in range(self.in_flight):
            passes.backward(k)
        marks.append(time.process_time())
        middle = clock.now()
        passes.step()
        marks.append(time.process_time())
        self.wall_s += clock.now() - began
        for kind in range(3):
            self.cpu_s[kind] += marks[kind + 1] - marks[kind]
            self.counts[kind] += self.in_flight if kind < 2 else 1
        return (middle - began) / self.in_flight

    def take(self) -> Block:
        """All rounds since the last call."""
        block = Block(
            wall_s=self.wall_s,
            cpu_s=sum(self.cpu_s),
            parts=tuple(self.cpu_s),
            counts=tuple(self.counts),
        )
        self.cpu_s, self.counts, self.wall_s = [0.0] * 3, [0] * 3, 0.0
        return block


def _blocks(rounds: _Rounds, task: ProfileTask) -> Sequence[Block]:
    """At least `repeats` blocks, and as many as last `least_s`."""
    rounds.take()
    blocks: list[Block] = []
    while len(blocks) < task.repeats or sum(block.wall_s for block in blocks) < task.least_s:
        while rounds.wall_s < min(BLOCK_S, task.least_s):
            rounds.run()
        if rounds.counts[0] == 0:
            rounds.run()
        blocks.append(rounds.take())
    return blocks


def _split(passes: Passes) -> tuple[list[list[float]], list[list[float]]]:
    """CPU seconds of each layer in some forwards and backwards."""
    stage, forwards, backwards = passes.built.stage, [], []
    for _ in range(SPLITS):
        forward = partial(passes.forward, 0, None if stage.is_first else passes.received())
        both = shares(stage, forward, partial(passes.backward, 0), time.process_time)
        forwards.append(both[0])
        backwards.append(both[1])
    return forwards, backwards
