"""All stages that there could be, as arrays: what every back-end chooses from.

A row is one possible stage: a run of consecutive layers on a memory size with a degree, and with or
without recomputation. Rows that do not fit in their memory are left out. A plan is a path of rows,
each beginning where the one before it ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from funcpipe.partitioner.collective import sync_s
from funcpipe.partitioner.plan import Plan, StagePlan
from funcpipe.partitioner.platform import BYTES_PER_STORE_GB
from funcpipe.partitioner.pricing import dollars_per_s
from funcpipe.partitioner.setting import Setting
from funcpipe.partitioner.space import Combination
from funcpipe.partitioner.waits import counts_of
from funcpipe.schedule.count import requests_of_stage
from funcpipe.schedule.program import PREFETCH

__all__ = ["Table", "make_table"]

MB = 2**20

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Arrays of one entry a row.

    start, stop: layers. memory_mb, degree, recompute: the choice. fill_f, fill_b, lane_f, lane_b:
    seconds, as in `StageTimes`; lane_both: the busiest lane, forward and backward added. tail: `cost.tail_s`. per_s, per_step: dollars of all replicas, as in
    `StageFees`. memory_fixed, memory_each: bytes, and bytes for each micro-batch that is held. Rows are
    ordered by stop, then start.
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
    tail: Floats
    per_s: Floats
    per_step: Floats
    memory_fixed: Floats
    memory_each: Floats

    def __len__(self) -> int:
        return len(self.start)

    def fits(self, from_end: int) -> Bools:
        """Which rows fit in their memory as the last stage but (from_end - 1)."""
        held = -(-self.num_micro_batches // self.degree)
        if self.combination.schedule == "1f1b":
            held = np.minimum(held, -(-self.combination.depth * from_end // self.degree))
        return self.memory_fixed + held * self.memory_each <= self.memory_mb * float(MB)

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
    profile, num_layers = setting.profile, setting.profile.num_layers
    first, last = np.triu_indices(num_layers)
    bounds = np.stack([first, last + 1])
    again = {"never": (False,), "always": (True,), "choose": (False, True)}[recompute]
    grids = np.meshgrid(
        np.arange(bounds.shape[1]),
        np.arange(len(tiers_mb)),
        np.array(combination.degrees),
        np.array(again),
        indexing="ij",
    )
    span, tier, degree, recomputes = (grid.ravel() for grid in grids)
    start, stop = bounds[0][span], bounds[1][span]
    layers = _Layers(setting, combination.micro_batch_size, tiers_mb)
    rows = _rows(setting, combination, layers, start, stop, tier, degree, recomputes)
    num = setting.num_micro_batches(combination.micro_batch_size)
    table = Table(
        combination=combination,
        num_layers=num_layers,
        num_micro_batches=num,
        start=start,
        stop=stop,
        memory_mb=np.array(tiers_mb)[tier],
        degree=degree,
        recompute=recomputes,
        **rows,
    )
    order = np.lexsort((start, stop))
    order = order[table.fits(1)[order]]
    names = ("start", "stop", "memory_mb", "degree", "recompute", *rows)
    return replace(table, **{name: getattr(table, name)[order] for name in names})


class _Layers:
    """Sums over layers 0 to k - 1, for every k; times by tier too."""

    def __init__(self, setting: Setting, size: int, tiers_mb: tuple[int, ...]) -> None:
        profile, platform = setting.profile, setting.platform
        vcpus = [platform.vcpu(tier) for tier in tiers_mb]
        layers = range(profile.num_layers)
        chosen = {"micro_batch_size": min(size, setting.batch_size)}
        self.forward = _sums(
            [[profile.forward_s(i, vcpu=v, **chosen) for i in layers] for v in vcpus]
        )
        self.backward = _sums(
            [[profile.backward_s(i, vcpu=v, **chosen) for i in layers] for v in vcpus]
        )
        self.step = _sums([[profile.step_s(i, vcpu=v) for i in layers] for v in vcpus])
        every = profile.layers
        self.trained = _sums([[one.trained for one in every]])[0]
        self.state = _sums(
            [[one.parameter_bytes + one.trained * (1 + one.optimizer_factor) for one in every]]
        )[0]
        self.kept = _sums([[one.activation_bytes for one in every]])[0]
        self.output = np.array([profile.input_bytes, *(one.output_bytes for one in every)])
        self.gradient = np.array([0.0, *(one.output_gradient for one in every)])
        self.up = np.array([platform.up_bytes_per_s(tier) for tier in tiers_mb])
        self.down = np.array([platform.down_bytes_per_s(tier) for tier in tiers_mb])
        self.per_s = np.array([dollars_per_s(platform, tier) for tier in tiers_mb])


def _rows(
    setting: Setting,
    combination: Combination,
    layers: _Layers,
    start: Ints,
    stop: Ints,
    tier: Ints,
    degree: Ints,
    again: Bools,
) -> dict[str, Floats]:
    """The columns that follow from a row's choice: `lanes`, `memory` and `fees`, all rows at once."""
    size = min(combination.micro_batch_size, setting.batch_size)
    is_first, is_last = start == 0, stop == setting.profile.num_layers
    wait, hop = setting.lane_latency_s, setting.hop_s
    up, down = layers.up[tier], layers.down[tier]
    q_in = np.where(is_first, 0.0, layers.output[start])
    g_out = np.where(is_first, 0.0, layers.gradient[start])
    q_out = np.where(is_last, 0.0, layers.output[stop])
    g_in = np.where(is_last, 0.0, layers.gradient[stop])
    forward = layers.forward[tier, stop] - layers.forward[tier, start]
    backward = layers.backward[tier, stop] - layers.backward[tier, start] + again * forward
    step = layers.step[tier, stop] - layers.step[tier, start]
    trained = layers.trained[stop] - layers.trained[start]
    down_f = np.where(is_first, 0.0, wait + q_in * size / down)
    up_f = np.where(is_last, 0.0, wait + q_out * size / up)
    down_b = np.where(is_last, 0.0, wait + g_in * size / down)
    up_b = np.where(is_first, 0.0, wait + g_out * size / up)
    hops = hop * (2.0 - is_first - is_last)
    synchronises = (degree > 1) & (trained > 0)
    sent = np.where(is_first, 0.0, hop)
    tail = step - sent - up_b
    for d in combination.degrees:
        part = trained / d
        mask = synchronises & (degree == d)
        seconds = np.array(
            [
                sync_s(combination.sync, degree=d, up_s=u, down_s=w, hop_s=hop)
                for u, w in zip(wait + (part / up)[mask], wait + (part / down)[mask], strict=True)
            ]
        )
        tail[mask] = seconds + step[mask] - sent[mask]
    return {
        "fill_f": forward + down_f + up_f + hops,
        "fill_b": backward + down_b + up_b + hops,
        "lane_f": np.maximum(_busiest(down_f, forward, hop * ~is_first), up_f),
        "lane_b": np.maximum(_busiest(down_b, backward, hop * ~is_last), up_b),
        "lane_both": np.maximum(forward + backward, np.maximum(down_f + down_b, up_f + up_b)),
        "tail": tail,
        **_fees(setting, combination, layers, start, stop, tier, degree, synchronises, trained),
        **_memory(setting, layers, size, start, stop, degree, again, trained),
    }


def _busiest(down: Floats, compute: Floats, hop: Floats) -> Floats:
    """As `StageTimes.lane_f`, without the upload."""
    window = (down + hop + compute) / PREFETCH
    return np.maximum(np.maximum(down, compute), window)


def _memory(
    setting: Setting, layers: _Layers, size: int, start: Ints, stop: Ints, degree: Ints,
    again: Bools, trained: Floats,
) -> dict[str, Floats]:  # fmt: skip
    is_first, is_last = start == 0, stop == setting.profile.num_layers
    incoming = layers.output[start]
    outgoing = np.where(is_last, 0.0, layers.output[stop])
    g_in = np.where(is_last, 0.0, layers.gradient[stop])
    kept = layers.kept[stop] - layers.kept[start]
    received = np.maximum(np.where(is_first, 0.0, incoming), g_in)
    g_out = np.where(is_first, 0.0, layers.gradient[start])
    transfers = size * (PREFETCH * received + outgoing + g_out)
    sync = np.where(degree > 1, 2 * trained / degree, 0.0)
    state = layers.state[stop] - layers.state[start]
    return {
        "memory_fixed": setting.profile.base_memory_bytes + state + transfers + sync
        + np.where(again, size * kept, 0.0),
        "memory_each": size * (np.where(again, incoming, kept) + outgoing),
    }  # fmt: skip


def _fees(
    setting: Setting, combination: Combination, layers: _Layers, start: Ints, stop: Ints,
    tier: Ints, degree: Ints, synchronises: Bools, trained: Floats,
) -> dict[str, Floats]:  # fmt: skip
    price, is_first = setting.platform.price, start == 0
    is_last = stop == setting.profile.num_layers
    num = setting.num_micro_batches(combination.micro_batch_size)
    requests = np.zeros(len(start))
    for d in combination.degrees:
        for at_first in (False, True):
            for at_last in (False, True):
                for together in (False, True):
                    counts = requests_of_stage(
                        d, is_first=at_first, is_last=at_last, synchronises=together,
                        num_micro_batches=num, report=at_last,
                    )  # fmt: skip
                    dollars = (
                        counts["PUT"] * price.put
                        + counts["GET"] * (price.get + setting.missed_per_get * price.missed_get)
                        + counts["DELETE"] * price.delete
                    )
                    mask = (degree == d) & (is_first == at_first)
                    mask &= (is_last == at_last) & (synchronises == together)
                    requests[mask] = dollars
    batch = setting.batch_size
    before, behind = np.where(is_first, 0.0, batch), np.where(is_last, 0.0, batch)
    moved = np.where(synchronises, trained, 0.0)
    sent = before * layers.gradient[start] + behind * layers.output[stop] + degree * moved
    got = before * layers.output[start] + behind * layers.gradient[stop]
    got = got + 2 * (degree - 1) * moved
    per_s = degree * layers.per_s[tier]
    starts = np.zeros(len(start))
    if setting.num_steps is not None:
        starts = degree * price.invocation * price.dollars
        if price.bills_initialisation:
            starts = starts + setting.platform.time.cold_start_s * per_s
        starts = starts / setting.num_steps
    transfer = (sent * price.put_gb + got * price.get_gb) / BYTES_PER_STORE_GB
    return {"per_s": per_s, "per_step": (requests + transfer) * price.dollars + starts}


def _sums(rows: list[list[float]]) -> Floats:
    """Sums of the first k numbers of each row, for k = 0, 1, ..."""
    array = np.array(rows, dtype=np.float64)
    return np.concatenate([np.zeros((len(rows), 1)), np.cumsum(array, axis=1)], axis=1)
