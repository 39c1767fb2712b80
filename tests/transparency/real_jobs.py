"""Jobs for runs over real processes: functions import this file, and `jobs`, from the bundle."""

from __future__ import annotations

from functools import partial
from typing import Any

import jobs

measured: dict[str, Any] = {
    "eval_data": partial(jobs.data, 11),
    "metrics": {"accuracy": jobs.accuracy},
}
# 19 samples in batches of 8: the last batch of an epoch has 3.
dropped = jobs.job(jobs.with_dropout, train_data=partial(jobs.data, 19), **measured)
nested = jobs.job(
    jobs.with_nested_values,
    optimizer=jobs.adam,
    loss=jobs.sum_loss,
    loss_reduction="sum",
    batch_size=9,
    **measured,
)
frozen = jobs.job(jobs.with_frozen_first, train_data=partial(jobs.data, 19))
normalised = jobs.job(jobs.with_batch_norm, **measured)
