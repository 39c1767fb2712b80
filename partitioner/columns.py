"""The columns of a `Table`: `lanes`, `memory` and `fees` for all possible stages at once.

What `cost.evaluate` says of one plan's stages is the truth; tests hold these arrays to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from funcpipe.partitioner.collective import sync_s
from funcpipe.partitioner.lanes import report_s
from funcpipe.partitioner.memory import parts_held
from funcpipe.partitioner.platform import BYTES_PER_STORE_GB
from funcpipe.partitioner.pricing import dollars_per_s
from funcpipe.partitioner.setting import Setting
from funcpipe.partitioner.space import Combination
from funcpipe.partitioner.transport import get_s, put_s, thread_share
from funcpipe.schedule.count import requests_of_stage
from funcpipe.schedule.program import PREFETCH

__all__ = ["Bools", "Choice", "Columns", "Floats", "Ints"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Stages, an entry each: layers, the place of its memory size, replicas, recomputation."""

    start: Ints
    stop: Ints
    tier: Ints
    degree: Ints
    recompute: Bools


class Columns:
    """What follows from a choice, by the names of the columns."""

    def __init__(
        self,
        setting: Setting,
        combination: Combination,
        tiers_mb: tuple[int, ...],
        choice: Choice,
    ) -> None:
        self.setting, self.combination, self.choice = setting, combination, choice
        self.size = min(combination.micro_batch_size, setting.batch_size)
        self.layers = _Layers(setting, self.size, tiers_mb)
        self.is_first = choice.start == 0
        self.is_last = choice.stop == setting.profile.num_layers
        self.trained = self._sum(self.layers.trained)
        self.synchronises = (choice.degree > 1) & (self.trained > 0)
        layers = self.layers
        # Bytes of a sample: activation in and out, and the gradients of these, out and in.
        self.q_in = np.where(self.is_first, 0.0, layers.output[choice.start])
        self.g_out = np.where(self.is_first, 0.0, layers.gradient[choice.start])
        self.q_out = np.where(self.is_last, 0.0, layers.output[choice.stop])
        self.g_in = np.where(self.is_last, 0.0, layers.gradient[choice.stop])

    def all(self) -> dict[str, Any]:
        own = {"synchronises": self.synchronises}
        return {**self._times(), **self._fees(), **self._memory(), **own}

    def _sum(self, sums: Floats) -> Floats:
        """Over the layers of each stage, from sums over the first k layers."""
        found: Floats = sums[self.choice.stop] - sums[self.choice.start]
        return found

    def _sum_of_tier(self, sums: Floats) -> Floats:
        tier = self.choice.tier
        found: Floats = sums[tier, self.choice.stop] - sums[tier, self.choice.start]
        return found

    @cached_property
    def _up(self) -> Floats:
        return self.layers.up[self.choice.tier]

    @cached_property
    def _down(self) -> Floats:
        return self.layers.down[self.choice.tier]

    @cached_property
    def _compute(self) -> tuple[Floats, Floats]:
        forward = self._sum_of_tier(self.layers.forward)
        backward = self._sum_of_tier(self.layers.backward) + self.choice.recompute * forward
        transport_f, transport_b = self._transport()
        return forward + transport_f, backward + transport_b

    def _times(self) -> dict[str, Floats]:
        size = self.size
        wait, hop = self.setting.lane_latency_s, self.setting.hop_s
        forward, backward = self._compute
        down_f = np.where(self.is_first, 0.0, wait + self.q_in * size / self._down)
        up_f = np.where(self.is_last, 0.0, wait + self.q_out * size / self._up)
        down_b = np.where(self.is_last, 0.0, wait + self.g_in * size / self._down)
        up_b = np.where(self.is_first, 0.0, wait + self.g_out * size / self._up)
        hops = hop * (2.0 - self.is_first - self.is_last)
        both = np.maximum(forward + backward, np.maximum(down_f + down_b, up_f + up_b))
        return {
            "fill_f": forward + down_f + up_f + hops,
            "fill_b": backward + down_b + up_b + hops,
            "lane_f": np.maximum(_busiest(down_f, forward, hop * ~self.is_first), up_f),
            "lane_b": np.maximum(_busiest(down_b, backward, hop * ~self.is_last), up_b),
            "lane_both": both,
            "compute": forward + backward,
            "entry": down_f + up_b + 2 * hop * ~self.is_first,
            "tail": self._tail(up_b),
        }

    @cached_property
    def _share(self) -> Floats:
        return self.layers.share[self.choice.tier]

    def _transport(self) -> tuple[Floats, Floats]:
        """CPU time of a micro-batch's transfers, forward and backward."""
        profile, size, share = self.setting.profile, self.size, self._share
        get_f = np.where(self.is_first, 0.0, get_s(profile, size * self.q_in, share))
        put_f = np.where(self.is_last, 0.0, put_s(profile, size * self.q_out, share))
        get_b = np.where(self.is_last, 0.0, get_s(profile, size * self.g_in, share))
        put_b = np.where(self.is_first, 0.0, put_s(profile, size * self.g_out, share))
        return get_f + put_f, get_b + put_b

    def _step(self) -> Floats:
        """As `StageTimes.step_s`."""
        step = self._sum_of_tier(self.layers.step)
        passes = self.setting.num_micro_batches(self.size) * sum(self._compute)
        alone = self.is_first & self.is_last & (self.choice.degree == 1)
        return np.where(alone, np.maximum(step, report_s(self.setting, self._share) - passes), step)

    def _tail(self, up_b: Floats) -> Floats:
        """As `cost.tail_s`."""
        wait, hop = self.setting.lane_latency_s, self.setting.hop_s
        step = self._step()
        sent = np.where(self.is_first, 0.0, hop)
        tail: Floats = step - sent - up_b
        for degree in self.combination.degrees:
            mask = self.synchronises & (self.choice.degree == degree)
            part = self.trained[mask] / degree
            share, profile = self._share[mask], self.setting.profile
            up_s = part / self._up[mask] + put_s(profile, part, share)
            down_s = part / self._down[mask] + get_s(profile, part, share)
            links = zip(up_s, down_s, strict=True)
            seconds = [
                sync_s(
                    self.combination.sync,
                    degree=degree,
                    up_s=wait + up,
                    down_s=wait + down,
                    hop_s=hop,
                )
                for up, down in links
            ]
            tail[mask] = np.array(seconds) + step[mask] - sent[mask]
        return tail

    def _memory(self) -> dict[str, Floats]:
        layers, size, again = self.layers, self.size, self.choice.recompute
        kept = self._sum(layers.kept)
        received = np.maximum(self.q_in, self.g_in)
        transfers = size * (PREFETCH * received + self.q_out + self.g_out)
        degree = self.choice.degree
        parts = np.array([parts_held(one) for one in degree.tolist()])
        sync = parts * self.trained / degree
        profile = self.setting.profile
        always = profile.base_memory_bytes + self._sum(layers.state) + transfers
        always += np.where(self.is_first | self.is_last, profile.data_bytes, 0.0)
        each = np.where(again, layers.output[self.choice.start], kept) + self.q_out
        passes = _span_maxima(layers.workspace, self.choice) + np.where(again, size * kept, 0.0)
        step = _span_maxima(layers.step_workspace, self.choice)
        return {
            "memory_fixed": always + passes,
            "memory_each": size * each,
            "memory_step": always + np.maximum(step, sync),
        }

    def _fees(self) -> dict[str, Floats]:
        price, degree = self.setting.platform.price, self.choice.degree
        batch = self.setting.batch_size
        moved = np.where(self.synchronises, self.trained, 0.0)
        sent = batch * (self.g_out + self.q_out) + degree * moved
        got = batch * (self.q_in + self.g_in) + 2 * (degree - 1) * moved
        transfer = (sent * price.put_gb + got * price.get_gb) / BYTES_PER_STORE_GB
        per_s = degree * self.layers.per_s[self.choice.tier]
        starts: Floats = np.zeros(len(degree))
        if self.setting.num_steps is not None:
            starts += degree * price.invocation * price.dollars
            if price.bills_initialisation:
                starts += self.setting.platform.time.cold_start_s * per_s
            starts /= self.setting.num_steps
        dollars = (self._requests() + transfer) * price.dollars
        return {"per_s": per_s, "per_step": dollars + starts}

    def _requests(self) -> Floats:
        """In the platform's currency."""
        price, missed = self.setting.platform.price, self.setting.missed_per_get
        num = self.setting.num_micro_batches(self.combination.micro_batch_size)
        found = np.zeros(len(self.choice.degree))
        both = (False, True)
        for degree, first, last, together in product(self.combination.degrees, both, both, both):
            counts = requests_of_stage(
                degree,
                is_first=first,
                is_last=last,
                synchronises=together,
                num_micro_batches=num,
                report=last,
            )
            mask = (self.choice.degree == degree) & (self.synchronises == together)
            found[mask & (self.is_first == first) & (self.is_last == last)] = (
                counts["PUT"] * price.put
                + counts["GET"] * (price.get + missed * price.missed_get)
                + counts["DELETE"] * price.delete
            )
        return found


def _busiest(down: Floats, compute: Floats, hop: Floats) -> Floats:
    """As `StageTimes.lane_f`, without the upload."""
    window = (down + hop + compute) / PREFETCH
    return np.maximum(np.maximum(down, compute), window)


def _span_maxima(values: Floats, choice: Choice) -> Floats:
    """The largest of each stage's layers: of two runs of 2 ** k that cover it together."""
    maxima = [values]
    while 2 ** len(maxima) <= len(values):
        last, half = maxima[-1], 2 ** (len(maxima) - 1)
        maxima.append(np.maximum(last, np.append(last[half:], last[-1:].repeat(half))))
    runs = np.stack(maxima)
    log = np.frexp(choice.stop - choice.start)[1] - 1
    found: Floats = np.maximum(
        runs[log, choice.start], runs[log, choice.stop - np.left_shift(1, log)]
    )
    return found


class _Layers:
    """Sums over layers 0 to k - 1, for every k; times by tier too. Workspaces are by layer."""

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
        self.step_workspace = np.array([one.step_workspace_bytes for one in every])
        self.workspace = np.array(
            [size * one.workspace_bytes + one.fixed_workspace_bytes for one in every]
        )
        self.output = np.array([profile.input_bytes, *(one.output_bytes for one in every)])
        self.gradient = np.array([0.0, *(one.output_gradient for one in every)])
        self.up = np.array([platform.up_bytes_per_s(tier) for tier in tiers_mb])
        self.down = np.array([platform.down_bytes_per_s(tier) for tier in tiers_mb])
        self.share = np.array([thread_share(vcpu) for vcpu in vcpus])
        self.per_s = np.array([dollars_per_s(platform, tier) for tier in tiers_mb])


def _sums(rows: list[list[float]]) -> Floats:
    """Sums of the first k numbers of each row, for k = 0, 1, ..."""
    array = np.array(rows, dtype=np.float64)
    return np.concatenate([np.zeros((len(rows), 1)), np.cumsum(array, axis=1)], axis=1)
