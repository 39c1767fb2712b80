"""What a run was seen to take, from its timeline: to be held beside what was predicted.

All is of *steady* steps: those that followed a whole step directly, with no evaluation between,
had a whole batch, and are not the first two, where there are enough others. Seconds are platform
seconds; a step ends with the last optimiser of all workers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from math import fsum
from statistics import mean, median, quantiles
from typing import Any

from funcpipe.partitioner.plan import Plan
from funcpipe.partitioner.platform import PlatformSpec
from funcpipe.partitioner.pricing import REQUESTS, Use, bill, dollars_per_s
from funcpipe.report.critical import Ran, late_arrivals
from funcpipe.schedule.action import Kind, Lane

__all__ = ["Held", "Observed", "StageSeen", "observe"]

WARM_UP, ENOUGH = 2, 5
"""Steps that are left out at the beginning, where there are so many."""

Place = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Held:
    """Bytes of memory that one function held at its fullest, before anything of the model, and of
    the data set.
    """

    stage: int
    peak_bytes: int
    base_bytes: int
    data_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class StageSeen:
    """One stage. seconds: of an action by kind: the median over steps of the mean over a step's
    micro-batches (a quota lets some run on and stops others, so that these are not alike), without
    what was spent waiting for a peer. Bytes: the most of all replicas.
    """

    seconds: Mapping[str, float] = field(default_factory=dict)
    over_base_bytes: int = 0
    base_bytes: int = 0
    data_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Of a step: seconds (median) and spread, (upper - lower quartile) / median; requests by
    operation; dollars, None without prices: of all functions for so long, and of these requests.

    num_steps: that the figures are of. late_s: how long after it was there a message was noticed,
    the mean over receives that waited; None if none did. missed_per_get: GETs that came too early.
    """

    step_s: float
    num_steps: int
    spread: float
    dollars: float | None
    requests: Mapping[str, float]
    late_s: float | None
    missed_per_get: float
    stages: tuple[StageSeen, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self) | {"requests": dict(self.requests)}


def observe(
    timeline: Mapping[str, Any], held: Iterable[Held], plan: Plan, platform: PlatformSpec
) -> Observed | None:
    """None where no step followed another one directly. timeline: as a run's folder holds it."""
    workers = {
        (one["stage"], one["replica"]): (one["began_at"], [Ran.of(row) for row in one["rows"]])
        for one in timeline["workers"]
    }
    run = timeline["run"]
    lasted = _steady(workers, run)
    if not lasted:
        return None
    step_s = median(lasted.values())
    steady = {
        place: (began_at, [ran for ran in rows if ran.pass_index in lasted])
        for place, (began_at, rows) in workers.items()
    }
    counts = {place: _requests(rows) for place, (_, rows) in steady.items()}
    late = [s for worker in late_arrivals(steady).values() for s in worker.values()]
    total = sum(counts.values(), Counter[str]())
    sizes = held_by_stage(held, len(plan.stages))
    return Observed(
        step_s=step_s,
        num_steps=len(lasted),
        spread=_spread(list(lasted.values()), step_s),
        dollars=_dollars(platform, plan, counts, step_s, len(lasted)),
        requests={name: total[name] / len(lasted) for name in REQUESTS if total[name]},
        late_s=mean(late) if late else None,
        missed_per_get=total["GET_MISSED"] / total["GET"] if total["GET"] else 0.0,
        stages=tuple(
            StageSeen(
                seconds=_seconds(
                    [rows for (s, _), (_, rows) in steady.items() if s == stage], _partial(run)
                ),
                over_base_bytes=over_base,
                base_bytes=base,
                data_bytes=data,
            )
            for stage, (over_base, base, data) in enumerate(sizes)
        ),
    )


def held_by_stage(held: Iterable[Held], num_stages: int) -> list[tuple[int, int, int]]:
    """The most bytes over base, of base and of data, of each stage's functions; 0 if unknown."""
    most = [(0, 0, 0)] * num_stages
    for one in held:
        over_base, base, data = most[one.stage]
        over = max(0, one.peak_bytes - one.base_bytes)
        most[one.stage] = (
            max(over_base, over),
            max(base, one.base_bytes),
            max(data, one.data_bytes),
        )
    return most


# -- which steps -----------------------------------------------------------------------------


def _steady(
    workers: Mapping[Place, tuple[float, Sequence[Ran]]], run: Mapping[str, Any]
) -> dict[int, float]:
    """Seconds of the steady steps, by pass."""
    ends: dict[int, list[float]] = defaultdict(list)
    for began_at, rows in workers.values():
        for ran in rows:
            if ran.action.kind is Kind.STEP:
                ends[ran.pass_index].append(began_at + ran.end_s)
    # A long timeline has lost its beginning, of some workers more than of others.
    whole = sorted(index for index, found in ends.items() if len(found) == len(workers))
    first_step = run["num_steps"] - len(whole)
    if whole and first_step == 0 and len(whole) >= ENOUGH:
        counted = set(whole[WARM_UP:])
    else:
        counted = set(whole)
    lasted = {}
    for number, (before, index) in enumerate(pairwise(whole), start=first_step + 1):
        alone = index == before + 1
        if alone and index in counted and not (_small(run, number) or _small(run, number - 1)):
            lasted[index] = max(ends[index]) - max(ends[before])
    return lasted


def _batch_size(run: Mapping[str, Any]) -> int:
    return int(min(run["batch_size"], run["num_train"]))


def _small(run: Mapping[str, Any], step: int) -> bool:
    """Whether a step is the last of an epoch, with what is left for it."""
    per_epoch = -(-run["num_train"] // _batch_size(run))
    return bool(run["num_train"] % _batch_size(run)) and step % per_epoch == per_epoch - 1


def _partial(run: Mapping[str, Any]) -> int | None:
    """The micro-batch of a whole batch that has fewer samples than the others, if one does."""
    batch, size = _batch_size(run), run["micro_batch_size"]
    return batch // size if batch % size and batch > size else None


# -- of these --------------------------------------------------------------------------------


def _seconds(replicas: Iterable[Sequence[Ran]], partial: int | None) -> dict[str, float]:
    """By kind of action, of one stage's replicas; the micro-batch `partial` is left out."""
    steps: dict[Kind, dict[tuple[int, int], list[float]]] = defaultdict(lambda: defaultdict(list))
    for replica, rows in enumerate(replicas):
        for ran in rows:
            kind = ran.action.kind
            if kind in _OF_MICRO_BATCHES and ran.action.index == partial:
                continue
            steps[kind][replica, ran.pass_index].append(ran.end_s - ran.start_s - ran.wait_s)
    return {
        kind.value: median(mean(found) for found in steps[kind].values())
        for kind in Kind
        if kind in steps
    }


_OF_MICRO_BATCHES = (Kind.F, Kind.B, Kind.SEND_F, Kind.SEND_B, Kind.RECV_F, Kind.RECV_B)


def _requests(rows: Iterable[Ran]) -> Counter[str]:
    """One for each transfer, report and deletion, and those that found nothing yet."""
    counts = Counter[str]()
    for ran in rows:
        kind = ran.action.kind
        if kind.lane is Lane.DOWN:
            counts["GET"] += 1
            counts["GET_MISSED"] += ran.misses
        elif kind.lane is Lane.UP or kind is Kind.REPORT:
            counts["PUT"] += 1
        elif kind is Kind.DEL:
            counts["DELETE"] += 1
    return counts


def _dollars(
    platform: PlatformSpec,
    plan: Plan,
    counts: Mapping[Place, Mapping[str, int]],
    step_s: float,
    num_steps: int,
) -> float | None:
    if not platform.limited:
        return None
    tiers = [stage.memory_mb or platform.memory.default_mb for stage in plan.stages]
    per_s = fsum(
        stage.replicas * dollars_per_s(platform, tier)
        for stage, tier in zip(plan.stages, tiers, strict=True)
    )
    uses = [
        Use(name=f"stage{s}-replica{r}", memory_mb=tiers[s], requests=found)
        for (s, r), found in counts.items()
    ]
    causes = bill(platform, uses).by_cause()
    requests = fsum(dollars for cause, dollars in causes.items() if cause in REQUESTS.values())
    return step_s * per_s + requests / num_steps


def _spread(seconds: Sequence[float], middle: float) -> float:
    if len(seconds) < 2 or middle <= 0:
        return 0.0
    low, _, high = quantiles(seconds, n=4, method="inclusive")
    return (high - low) / middle
