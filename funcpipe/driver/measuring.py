"""Runs the functions that measure layers, with one memory size after another, the largest first."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from funcpipe.driver.attempts import Attempt, smaller
from funcpipe.driver.host import Exit, FunctionHost
from funcpipe.driver.lost import BROKEN_LIMITS, Exited, lost
from funcpipe.emulator.dilation import Dilation
from funcpipe.errors import FuncpipeError, FunctionLost, ObjectMissing, OutOfMemory, Stopped, revive
from funcpipe.partitioner.platform import PlatformSpec
from funcpipe.profiles import Point
from funcpipe.profiletask import ProfileTask
from funcpipe.store.base import ObjectStore
from funcpipe.store.open import StoreSpec

__all__ = ["Bench", "Tell", "measure"]

Tell = Callable[[str, Mapping[str, Any]], None]
"""Takes an event's name and its fields."""

WARMUP = 2
LEAST_REAL_S = 0.5
"""Of measuring one size, in seconds of this machine: some periods of a quota of CPU time."""
LOOK_S = 0.1
LOOKS_PER_GET = 5


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What measuring needs.

    root, entry, digest: of the job in the `store`, which functions reach by `spec`. costs: of each
    layer, relative ones. copies: functions that measure the same at once. dilation: of so many
    functions with a memory size. hosts: makes what runs them. held: in it, no signal breaks in.
    look: called now and then while functions measure.
    """

    store: ObjectStore
    spec: StoreSpec
    root: str
    entry: str
    digest: str
    costs: Sequence[float]
    platform: PlatformSpec
    copies: int
    repeats: int
    dilation: Callable[[int, int], Dilation]
    hosts: Callable[[Dilation], FunctionHost]
    tell: Tell
    interrupted: threading.Event = field(default_factory=threading.Event)
    held: Callable[[], AbstractContextManager[None]] = nullcontext
    look: Callable[[], object] = lambda: None


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """What is measured beside times. memory: nothing is known yet, so all sizes are wanted too."""

    memory: bool = False
    transport: bool = False


class _TooSmall(Exception):
    """Functions of a memory size could not hold what they were to measure, or took too long."""

    def __init__(self, exited: Exit, layers: tuple[int, int], reached: int) -> None:
        super().__init__(exited.detail)
        self.exited = exited
        self.layers = layers
        self.reached = reached


class _Crowded(Exception):
    """This machine had no memory for all functions at once."""


def measure(bench: Bench, tiers: Sequence[int], sizes: Sequence[int]) -> list[Point]:
    """A point for each memory size that can hold a layer; the largest one tells of bytes too, and
    one of them of requests.

    Raises what a function raised, and OutOfMemory or TimeLimitExceeded if nothing fits anywhere.
    """
    attempt = Attempt(memory_mb=max(tiers), sizes=tuple(sizes), ranges=((0, len(bench.costs)),))
    transport_mb = _transport_tier(bench.platform, tiers)
    points: list[Point] = []
    for number, memory_mb in enumerate(sorted(tiers, reverse=True)):
        attempt = replace(attempt, memory_mb=memory_mb)
        _tell_point(bench, attempt, number=number + 1, total=len(tiers))
        asked = _Asked(memory=not points, transport=memory_mb == transport_mb)
        found = _measure_point(bench, attempt, asked)
        if found is None:
            left = ", ".join(str(size) for size in sorted(tiers) if size <= memory_mb)
            _note(bench, f"not even one layer fits into {memory_mb} MB; not measured: {left} MB")
            break
        # With less memory no more fits.
        point, attempt, copies = found
        bench = replace(bench, copies=copies)
        points.append(point)
    if transport_mb < points[-1].memory_mb:
        again = replace(attempt, memory_mb=points[-1].memory_mb)
        asked = _Asked(memory=len(points) == 1, transport=True)
        found = _measure_point(bench, again, asked)
        points[-1:] = points[-1:] if found is None else [found[0]]
    return points


def _transport_tier(platform: PlatformSpec, tiers: Sequence[int]) -> int:
    """The smallest memory size with a whole CPU: the network of larger ones is emulated slower."""
    return min((size for size in tiers if platform.vcpu(size) >= 1), default=max(tiers))


def _tell_point(bench: Bench, attempt: Attempt, *, number: int, total: int) -> None:
    told = {
        "memory_mb": attempt.memory_mb,
        "vcpu": bench.platform.vcpu(attempt.memory_mb),
        "number": number,
        "total": total,
        "sizes": list(attempt.sizes),
    }
    bench.tell("profile_point", told)


def _measure_point(
    bench: Bench, attempt: Attempt, asked: _Asked
) -> tuple[Point, Attempt, int] | None:
    """With what fits into one memory size; None: not even a layer, which the first size raises."""
    first = asked.memory
    done: dict[tuple[int, int], tuple[Mapping[str, Any], ...]] = {}
    copies = bench.copies
    while True:
        try:
            for layers in attempt.ranges:
                if layers not in done:
                    done[layers] = _measure_range(bench, attempt, layers, asked, copies)
            break
        except _Crowded:
            copies = 1
            _note(bench, "this machine has no memory for several functions at once: one measures")
        except _TooSmall as error:
            failed = attempt.ranges.index(error.layers)
            following = smaller(attempt, failed, error.reached, complete=first, costs=bench.costs)
            if following is None:
                if not first:
                    return None
                raise _explained(error.exited, attempt, error.layers) from None
            _note(bench, _smaller_text(attempt, following, error.exited))
            if following.sizes != attempt.sizes:
                done.clear()
            attempt = following
    factor = bench.dilation(attempt.memory_mb, copies).factor
    point = Point(
        memory_mb=attempt.memory_mb,
        vcpu=bench.platform.vcpu(attempt.memory_mb),
        dilation=factor,
        sizes=attempt.sizes,
        ranges=tuple(done[layers] for layers in attempt.ranges),
    )
    return point, attempt, copies


def _measure_range(
    bench: Bench, attempt: Attempt, layers: tuple[int, int], asked: _Asked, copies: int
) -> tuple[Mapping[str, Any], ...]:
    """The results of all functions that measure these layers at once."""
    dilation = bench.dilation(attempt.memory_mb, copies)
    tasks = [
        ProfileTask(
            root=bench.root,
            entry=bench.entry,
            digest=bench.digest,
            store=bench.spec,
            first_layer=layers[0],
            stop_layer=layers[1],
            num_layers=len(bench.costs),
            sizes=attempt.sizes,
            warmup=WARMUP,
            repeats=bench.repeats,
            least_s=LEAST_REAL_S / dilation.factor,
            memory=asked.memory,
            transport=asked.transport and layers[0] == 0,
            token=secrets.token_hex(8),
        )
        for _ in range(copies)
    ]
    # One of its own each time: a warm function would hold what was measured before.
    hosts: list[FunctionHost] = []
    try:
        with bench.held():
            hosts.append(bench.hosts(dilation))
        return _Watch(bench, hosts[0], attempt, tasks).results()
    finally:
        with bench.held():
            for host in hosts:
                host.close()


class _Watch:
    """Looks after the functions that measure one range of layers."""

    def __init__(
        self, bench: Bench, host: FunctionHost, attempt: Attempt, tasks: list[ProfileTask]
    ) -> None:
        self._bench = bench
        self._host = host
        self._attempt = attempt
        self._tasks = tasks
        self._heard = dict.fromkeys((task.token for task in tasks), 0)
        self._size: dict[str, int] = {}

    def results(self) -> tuple[Mapping[str, Any], ...]:
        waiting: dict[str, ProfileTask] = {}
        for number, task in enumerate(self._tasks):
            name = f"profile-l{task.first_layer}-{task.stop_layer - 1}-{number}"
            with self._bench.held():  # a function that is half started would never end
                identity = self._host.start(
                    task.encode(), name=name, memory_mb=self._attempt.memory_mb
                )
            waiting[identity] = task
        found: dict[str, Mapping[str, Any]] = {}
        looks = 0
        while waiting:
            for exited in self._host.exits():
                task = waiting.pop(exited.id)
                self._listen(task)
                found[task.token] = self._result(task, exited)
            looks += 1
            self._bench.look()
            if looks % LOOKS_PER_GET == 0:
                self._listen(self._tasks[0], show=True)
            if waiting and self._bench.interrupted.wait(LOOK_S):
                raise Stopped("interrupted")
        return tuple(found[task.token] for task in self._tasks)

    def _listen(self, task: ProfileTask, *, show: bool = False) -> None:
        """To how far a function says that it has come."""
        while True:
            number = self._heard[task.token]
            told = self._read(task.run.profile_progress(task.token, number))
            if told is None:
                return
            self._heard[task.token] += 1
            self._size[task.token] = int(told["size"])
            if show:
                layers = [task.first_layer, task.stop_layer - 1]
                self._bench.tell("profile_progress", {**told, "layers": layers})

    def _result(self, task: ProfileTask, exited: Exit) -> Mapping[str, Any]:
        if exited.reason in BROKEN_LIMITS:
            raise self._too_small(task, exited)
        if exited.reason == "done":
            result = self._read(task.run.profile_result(task.token))
            if result is not None:
                return dict(result)
            raise FunctionLost(
                "a function that measured layers ended without a result: the job's code has ended "
                "the process"
            )
        told = self._read(task.run.profile_fault(task.token))
        if told is not None:
            error = _placeless(revive(told))
            if isinstance(error, OutOfMemory):
                exited = replace(exited, reason="out-of-memory", detail=error.message)
                raise self._too_small(task, exited) from error
            raise error
        if exited.reason == "killed" and not exited.detail and len(self._tasks) > 1:
            raise _Crowded
        raise _explained(exited, self._attempt, (task.first_layer, task.stop_layer))

    def _too_small(self, task: ProfileTask, exited: Exit) -> _TooSmall:
        """With the first size that it has not said to be done with, or the last one."""
        left = [size for size in task.sizes if size > self._size.get(task.token, 0)]
        reached = left[0] if left else task.sizes[-1]
        return _TooSmall(exited, (task.first_layer, task.stop_layer), reached)

    def _read(self, key: str) -> Any:
        try:
            return json.loads(bytes(self._bench.store.get(key)))
        except ObjectMissing:
            return None
        except ValueError:
            return None  # its writer was killed in the middle


def _explained(exited: Exit, attempt: Attempt, layers: tuple[int, int]) -> FuncpipeError:
    first, last = layers[0], layers[1] - 1
    what = f"layer {first}" if first == last else f"layers {first} to {last}"
    told = Exited((0, 0), exited.reason, exited.code, exited.log_tail, exited.detail)
    error = _placeless(lost(told, progress=f"starting to measure {what}"))
    if exited.reason in BROKEN_LIMITS:
        error.message = (
            f"{what} cannot be measured with {attempt.memory_mb} MB and micro-batches of "
            f"{attempt.sizes[0]}: {exited.detail}. Name larger memory sizes (--tiers), smaller "
            "micro-batches (--micro-batches), or cut the layer into smaller ones"
        )
    return error


def _placeless(error: FuncpipeError) -> FuncpipeError:
    """Without stage and replica, which nobody has here."""
    error.stage = error.replica = None
    return error


def _smaller_text(attempt: Attempt, following: Attempt, exited: Exit) -> str:
    what = "memory" if exited.reason == "out-of-memory" else "time"
    if following.sizes != attempt.sizes:
        left = ", ".join(str(size) for size in attempt.sizes if size not in following.sizes)
        how = f"micro-batches of {left} are left out there"
    else:
        how = f"the layers are measured in {len(following.ranges)} parts"
    return f"{attempt.memory_mb} MB: not enough {what}, {how}"


def _note(bench: Bench, text: str) -> None:
    bench.tell("note", {"text": text, "level": "info"})
