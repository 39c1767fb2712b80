"""A serverless platform's bookkeeping as a sans-IO state machine: events in, instructions out.

It decides when environments are made, reused and ended, what is delivered to them and how often,
and how long each delivery is billed. It knows no processes: a host carries its instructions out
and tells it what happened. All moments are platform seconds of one clock, given with each event.

An *invocation* is what the caller asks for once. The platform turns it into one *delivery*, or
more: asynchronous invocations are delivered at least once. A delivery runs in an *environment*,
which is cold when it is made for it and warm when it has served before.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from funcpipe.driver.host import Reason
from funcpipe.errors import Throttled
from funcpipe.partitioner.platform import PlatformSpec

__all__ = [
    "Delivered",
    "Delivery",
    "EndEnvironment",
    "Instruction",
    "Life",
    "Report",
    "Run",
    "StartEnvironment",
]

_BAD: frozenset[Reason] = frozenset({"failed", "crashed", "killed", "out-of-memory", "time-limit"})
_DUPLICATE_WITHIN_S = 2.0
_THROTTLED_AGAIN_S = 1.0


@dataclass(kw_only=True)
class Delivery:
    """One execution: the so many-th of its invocation, from 1, and of all, from 0.

    `began_s` is when its handler began; None before that.
    """

    number: int
    attempt: int
    invocation: str
    name: str
    memory_mb: int
    environment: str
    cold: bool
    placed_s: float
    init_s: float = 0.0
    late_s: float = 0.0
    began_s: float | None = None
    ended_s: float | None = None
    reason: Reason | None = None

    def init_ms(self, now: float) -> int:
        """Of its cold start, up to now; a machine slower than the platform is not billed for."""
        if not self.cold:
            return 0
        if self.began_s is not None:
            return _ms(self.init_s)
        until = now if self.ended_s is None else self.ended_s
        return _ms(min(self.init_s, until - self.placed_s))

    def run_ms(self, now: float, limit_s: float) -> int:
        if self.began_s is None:
            return 0
        until = now if self.ended_s is None else self.ended_s
        return _ms(min(until - self.began_s, limit_s))


def _ms(seconds: float) -> int:
    """Whole milliseconds, begun ones included; a float's own error begins none."""
    return max(0, math.ceil(round(seconds * 1000, 3)))


@dataclass(frozen=True)
class StartEnvironment:
    environment: str
    memory_mb: int
    name: str


@dataclass(frozen=True)
class Run:
    """Hand the payload of an invocation to an environment; its handler begins now."""

    environment: str
    invocation: str
    init_s: float


@dataclass(frozen=True)
class EndEnvironment:
    """Kill it if it has not ended by itself."""

    environment: str
    reason: Reason


@dataclass(frozen=True)
class Report:
    """Tell the caller how an invocation ended; once for each."""

    invocation: str
    environment: str
    reason: Reason
    code: int | None


@dataclass(frozen=True)
class Delivered:
    """A delivery has ended: time to bill it."""

    delivery: Delivery


Instruction: TypeAlias = StartEnvironment | Run | EndEnvironment | Report | Delivered


@dataclass(kw_only=True)
class _Invocation:
    id: str
    name: str
    memory_mb: int
    retries_done: int = 0
    open: int = 0
    deliveries: int = 0
    told: bool = False


@dataclass(kw_only=True)
class _Environment:
    id: str
    memory_mb: int
    delivery: Delivery | None = None
    due_s: float = 0.0
    ready: bool = False
    deadline_s: float = math.inf
    idle_until_s: float = math.inf
    ending: Reason | None = None

    @property
    def idle(self) -> bool:
        return self.delivery is None and self.ending is None


@dataclass(order=True)
class _Later:
    """A delivery that is to be placed at a moment to come."""

    at_s: float
    invocation: str = field(compare=False)


class Life:
    """The life of functions on `platform`. `seed` decides which invocations arrive twice."""

    def __init__(self, platform: PlatformSpec, *, seed: int = 0) -> None:
        self._platform = platform
        self._seed = seed
        self._num_environments = 0
        self._invocations: dict[str, _Invocation] = {}
        self._environments: dict[str, _Environment] = {}
        self._later: list[_Later] = []
        self.deliveries: list[Delivery] = []

    @property
    def limit_s(self) -> float:
        limit = self._platform.time.limit_s
        return math.inf if limit is None else limit

    def busy(self) -> int:
        """Environments that count as concurrent executions: starting or running."""
        return sum(not one.idle for one in self._environments.values())

    def invoke(self, id: str, *, name: str, memory_mb: int, now: float) -> list[Instruction]:
        """Take an invocation, or raise `Throttled` and take nothing."""
        limit = self._platform.invocation.concurrency
        if limit is not None and self.busy() >= limit:
            raise Throttled(
                f"{self._platform.title} runs {limit} functions at once for this account and "
                f"{self.busy()} are running: {name} was answered with 429. Use a plan with fewer "
                "functions, or have the limit raised (invocation.concurrency)"
            )
        chance = random.Random(f"{self._seed}/{len(self._invocations)}")  # noqa: S311
        self._invocations[id] = _Invocation(id=id, name=name, memory_mb=memory_mb)
        if chance.random() < self._platform.invocation.duplicate_rate:
            self._schedule(id, now + chance.uniform(0.0, _DUPLICATE_WITHIN_S))
        return self._place(self._invocations[id], now)

    def ready(self, environment: str, *, now: float) -> list[Instruction]:
        """The process in it has finished its own start."""
        self._environments[environment].ready = True
        return self.tick(now=now)

    def finished(self, environment: str, *, now: float) -> list[Instruction]:
        """The handler has returned well; the environment can serve again."""
        one = self._environments[environment]
        if one.ending is not None or one.delivery is None:
            return []  # it is being killed for something that happened before
        delivery, one.delivery = one.delivery, None
        one.deadline_s = math.inf
        one.idle_until_s = now + self._platform.time.keep_warm_s
        return self._close(delivery, "done", 0, now)

    def gone(
        self, environment: str, *, reason: Reason, code: int | None, now: float
    ) -> list[Instruction]:
        """Its process has ended; `reason` is what its exit code says."""
        one = self._environments.pop(environment)
        if one.delivery is None:
            return []
        return self._close(one.delivery, one.ending or reason, code, now)

    def end(self, environment: str, reason: Reason) -> list[Instruction]:
        """The platform ends an environment, for `reason`; the first reason stays."""
        one = self._environments.get(environment)
        if one is None or one.ending is not None:
            return []
        one.ending = reason
        return [EndEnvironment(environment, reason)]

    def stop(self, invocations: Iterable[str]) -> list[Instruction]:
        """End what still runs of these, and deliver none of them again."""
        chosen = set(invocations)
        for later in self._later:
            if later.invocation in chosen:
                self._invocations[later.invocation].open -= 1
        self._later = [later for later in self._later if later.invocation not in chosen]
        told: list[Instruction] = []
        for one in list(self._environments.values()):
            if one.delivery is not None and one.delivery.invocation in chosen:
                told += self.end(one.id, "stopped")
        return told

    def tick(self, *, now: float) -> list[Instruction]:
        """What is due by now."""
        told: list[Instruction] = []
        for one in list(self._environments.values()):
            delivery = one.delivery
            if delivery is None:
                if one.ending is None and now >= one.idle_until_s:
                    told += self.end(one.id, "done")
            elif delivery.began_s is None:
                if one.ready and now >= one.due_s and one.ending is None:
                    told += self._begin(one, delivery, now)
            elif now >= one.deadline_s:
                told += self.end(one.id, "time-limit")
        due = [later for later in self._later if later.at_s <= now]
        self._later = [later for later in self._later if later.at_s > now]
        for later in due:
            told += self._place_later(later, now)
        return told

    def next_due_s(self) -> float:
        """When `tick` has something to do next, if nothing else happens; inf for never."""
        moments = [later.at_s for later in self._later]
        for one in self._environments.values():
            if one.ending is not None:
                continue
            if one.delivery is None:
                moments.append(one.idle_until_s)
            elif one.delivery.began_s is not None:
                moments.append(one.deadline_s)
            elif one.ready:
                moments.append(one.due_s)
        return min(moments, default=math.inf)

    def _schedule(self, invocation: str, at_s: float) -> None:
        self._invocations[invocation].open += 1
        self._later.append(_Later(at_s, invocation))

    def _place_later(self, later: _Later, now: float) -> list[Instruction]:
        invocation = self._invocations[later.invocation]
        limit = self._platform.invocation.concurrency
        if limit is not None and self.busy() >= limit:
            self._later.append(_Later(now + _THROTTLED_AGAIN_S, later.invocation))
            return []
        invocation.open -= 1
        return self._place(invocation, now)

    def _place(self, invocation: _Invocation, now: float) -> list[Instruction]:
        """Give a delivery of it to an idle environment of its size, or to a new one."""
        invocation.open += 1
        invocation.deliveries += 1
        alike = (
            one for one in self._environments.values() if one.memory_mb == invocation.memory_mb
        )
        warm = next((one for one in alike if one.idle), None)
        one = warm or self._new_environment(invocation.memory_mb)
        times = self._platform.time
        one.due_s = now + (times.cold_start_s if warm is None else times.warm_start_s)
        one.delivery = Delivery(
            number=len(self.deliveries),
            attempt=invocation.deliveries,
            invocation=invocation.id,
            name=invocation.name,
            memory_mb=invocation.memory_mb,
            environment=one.id,
            cold=warm is None,
            placed_s=now,
            init_s=times.cold_start_s if warm is None else 0.0,
        )
        self.deliveries.append(one.delivery)
        if warm is None:
            return [StartEnvironment(one.id, one.memory_mb, invocation.name)]
        return self.tick(now=now)

    def _new_environment(self, memory_mb: int) -> _Environment:
        one = _Environment(id=f"e{self._num_environments}", memory_mb=memory_mb)
        self._num_environments += 1
        self._environments[one.id] = one
        return one

    def _begin(self, one: _Environment, delivery: Delivery, now: float) -> list[Instruction]:
        delivery.began_s = now
        delivery.late_s = now - one.due_s
        one.deadline_s = now + self.limit_s
        return [Run(one.id, delivery.invocation, delivery.init_s)]

    def _close(
        self, delivery: Delivery, reason: Reason, code: int | None, now: float
    ) -> list[Instruction]:
        delivery.ended_s, delivery.reason = now, reason
        invocation = self._invocations[delivery.invocation]
        invocation.open -= 1
        told: list[Instruction] = [Delivered(delivery)]
        bad = reason in _BAD
        if not invocation.told and (bad or invocation.open == 0):
            invocation.told = True
            told.append(Report(invocation.id, delivery.environment, reason, code))
        rules = self._platform.invocation
        if bad and invocation.retries_done < rules.retries:
            delays = rules.retry_delays_s or (0.0,)
            delay_s = delays[min(invocation.retries_done, len(delays) - 1)]
            invocation.retries_done += 1
            self._schedule(invocation.id, now + delay_s)
        return told
