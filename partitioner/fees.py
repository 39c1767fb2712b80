"""What a stage costs: dollars for each second of its functions, and for what a step moves."""

from __future__ import annotations

from dataclasses import dataclass

from funcpipe.partitioner.lanes import tier_of
from funcpipe.partitioner.plan import StagePlan
from funcpipe.partitioner.platform import BYTES_PER_STORE_GB
from funcpipe.partitioner.pricing import dollars_per_s
from funcpipe.partitioner.setting import Setting
from funcpipe.schedule.count import requests_of_stage

__all__ = ["StageFees", "stage_fees"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StageFees:
    """Dollars, of all replicas together.

    per_s: for every second of a step. requests, transfer, starts: for every step, however long it
    takes; starts are those of the whole run, spread over its steps.
    """

    per_s: float
    requests: float
    transfer: float
    starts: float

    @property
    def per_step(self) -> float:
        return self.requests + self.transfer + self.starts


def stage_fees(
    setting: Setting, stage: StagePlan, *, num_micro_batches: int, is_last: bool
) -> StageFees:
    """Functions live as long as the step, whatever they do in it: each is billed for all of it.

    Requests are those of `requests_of_stage`, missed GETs come on top. Bytes: each sample crosses
    a boundary once each way; of n replicas' gradients of s bytes, n s go up and 2 (n - 1) s down.
    """
    price, profile = setting.platform.price, setting.profile
    degree = stage.replicas
    is_first = stage.first_layer == 0
    memory_mb = tier_of(setting, stage)
    per_s = degree * dollars_per_s(setting.platform, memory_mb)
    trained = sum(one.trained for one in profile.layers[stage.first_layer : stage.stop_layer])
    synchronises = degree > 1 and trained > 0
    counts = requests_of_stage(
        degree,
        is_first=is_first,
        is_last=is_last,
        synchronises=synchronises,
        num_micro_batches=num_micro_batches,
        report=is_last,
    )
    requests = (
        counts["PUT"] * price.put
        + counts["GET"] * (price.get + setting.missed_per_get * price.missed_get)
        + counts["DELETE"] * price.delete
    )
    up = down = 0.0
    if not is_first:
        before = profile.layers[stage.first_layer - 1]
        down += setting.batch_size * before.output_bytes
        up += setting.batch_size * before.output_gradient
    if not is_last:
        behind = profile.layers[stage.stop_layer - 1]
        up += setting.batch_size * behind.output_bytes
        down += setting.batch_size * behind.output_gradient
    if synchronises:
        up += degree * trained
        down += 2 * (degree - 1) * trained
    starts = 0.0
    if setting.num_steps is not None:
        starts = degree * price.invocation * price.dollars
        if price.bills_initialisation:
            starts += setting.platform.time.cold_start_s * per_s
        starts /= setting.num_steps
    return StageFees(
        per_s=per_s,
        requests=requests * price.dollars,
        transfer=(up * price.put_gb + down * price.get_gb) / BYTES_PER_STORE_GB * price.dollars,
        starts=starts,
    )
