"""Which samples are in which step and micro-batch: pure functions, and the loading of them.

The order is a pure function of (seed, epoch), so that the first stage (inputs), the last one
(targets) and a run that was resumed agree without talking.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import default_collate

from funcpipe.errors import JobError, LossError
from funcpipe.model import rng
from funcpipe.model.build import check_dataset

if TYPE_CHECKING:
    from funcpipe.job import Job

__all__ = [
    "Fetcher",
    "batch_ids",
    "digest",
    "loss_scales",
    "loss_weight_of",
    "micro_batches",
    "num_batches",
]


def num_batches(num_samples: int, batch_size: int) -> int:
    """Batches, that is steps, in an epoch; the last one may be smaller."""
    return -(-num_samples // batch_size)


def batch_ids(
    *, seed: int, num_samples: int, batch_size: int, step: int, shuffle: bool
) -> list[int]:
    """The samples of training step `step`, counted from 0 over all epochs.

    Each epoch goes once through the samples, in their own order or shuffled anew: sample i gets
    as its key the i-th raw 64-bit output of numpy's PCG64, seeded by ``derive_seed(seed, epoch,
    -1, ORDER)``; samples go by ascending key, equal keys by number. Raw outputs of a bit generator
    are fixed by numpy's compatibility policy, its `permutation` is not.
    """
    epoch, position = divmod(step, num_batches(num_samples, batch_size))
    start = position * batch_size
    stop = min(start + batch_size, num_samples)
    if not shuffle:
        return list(range(start, stop))
    return [int(sample) for sample in _order(seed, num_samples, epoch)[start:stop]]


@lru_cache(maxsize=2)
def _order(seed: int, num_samples: int, epoch: int) -> NDArray[np.int64]:
    keys = np.random.PCG64(rng.derive_seed(seed, epoch, -1, rng.ORDER)).random_raw(num_samples)
    order = np.argsort(np.asarray(keys, dtype=np.uint64), kind="stable").astype(np.int64)
    order.flags.writeable = False
    return order


def micro_batches(ids: Sequence[int], micro_batch_size: int) -> list[list[int]]:
    """`ids` cut into pieces of `micro_batch_size`; the last one may be smaller."""
    if micro_batch_size < 1:
        raise ValueError(f"micro_batch_size is {micro_batch_size}; it must be at least 1")
    return [
        list(ids[start : start + micro_batch_size])
        for start in range(0, len(ids), micro_batch_size)
    ]


def digest(ids: Sequence[int]) -> str:
    """16 hex digits that tell which samples these are, in which order."""
    return hashlib.blake2b(np.asarray(ids, dtype="<i8").tobytes(), digest_size=8).hexdigest()


def loss_weight_of(job: Job, *, num_samples: int, target: Any) -> float:
    """What one micro-batch's loss counts in a mean: its samples, or ``job.loss_weight(target)``."""
    if job.loss_weight is None:
        return float(num_samples)
    weight = float(job.loss_weight(target))
    if not math.isfinite(weight) or weight < 0:
        raise LossError(
            f"job.loss_weight(target) returned {weight}; it must be finite and not negative, such "
            "as the number of labels that count"
        )
    return weight


def loss_scales(
    job: Job,
    sizes: Sequence[int],
    target_of: Callable[[int], Any] | None = None,
) -> list[float]:
    """The factor of each micro-batch's loss, such that their sum is the whole batch's loss.

    `sizes` are the samples in each micro-batch of the step, all of them, whoever works on them.
    For a sum the factors are 1; for a mean weight_k / sum of weights, where `target_of(k)` gives
    micro-batch k's target if the job has a `loss_weight`. A factor of 0 means: nothing counts
    there. Raises `LossError` if nothing counts in the whole batch: its mean does not exist.
    """
    if job.loss_reduction == "sum":
        return [1.0] * len(sizes)
    if job.loss_weight is None:
        weights = [float(size) for size in sizes]
    elif target_of is None:
        raise ValueError("the job has a loss_weight: target_of is needed")
    else:
        weights = [
            loss_weight_of(job, num_samples=size, target=target_of(index))
            for index, size in enumerate(sizes)
        ]
    total = math.fsum(weights)
    if total == 0:
        raise LossError(
            "job.loss_weight(target) is 0 for every micro-batch of this step: the mean loss of "
            "the batch does not exist. Leave such samples out of the data"
        )
    return [weight / total for weight in weights]


class Fetcher:
    """Loads micro-batches of (input, target) from a map-style dataset, reproducibly.

    Random augmentation draws from generators seeded by (seed, step, micro-batch): all who load
    a micro-batch get the same, and the caller's generators stay as they were. Raises `JobError`
    for datasets and samples of another kind.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        seed: int,
        collate: Callable[[list[Any]], Any] | None = None,
        name: str = "the dataset",
    ) -> None:
        check_dataset(dataset, name)
        self._dataset = dataset
        self._collate = collate
        self._seed = seed
        self._name = name

    @property
    def num_samples(self) -> int:
        return len(self._dataset)

    def load(self, ids: Sequence[int], *, step: int, micro_batch: int) -> tuple[Any, Any]:
        """The micro-batch's (input, target)."""
        with rng.preserved():
            rng.scope(self._seed, step, micro_batch, rng.DATA)
            samples = self._samples(ids)
            if self._collate is not None:
                batch = self._collate(samples)
                self._check_pair(batch, "job.collate")
                return batch[0], batch[1]
            return self._half(samples, 0), self._half(samples, 1)

    def inputs(self, ids: Sequence[int], *, step: int, micro_batch: int) -> Any:
        return self._one(0, ids, step, micro_batch)

    def targets(self, ids: Sequence[int], *, step: int, micro_batch: int) -> Any:
        return self._one(1, ids, step, micro_batch)

    def _one(self, which: int, ids: Sequence[int], step: int, micro_batch: int) -> Any:
        if self._collate is not None:
            return self.load(ids, step=step, micro_batch=micro_batch)[which]
        with rng.preserved():
            rng.scope(self._seed, step, micro_batch, rng.DATA)
            return self._half(self._samples(ids), which)

    def _samples(self, ids: Sequence[int]) -> list[Any]:
        numbers = [int(sample) for sample in ids]
        if hasattr(self._dataset, "__getitems__"):
            samples = list(self._dataset.__getitems__(numbers))
        else:
            samples = [self._dataset[number] for number in numbers]
        if self._collate is None:
            for number, sample in zip(numbers, samples, strict=True):
                self._check_pair(sample, f"sample {number} of {self._name}")
        return samples

    def _half(self, samples: list[Any], which: int) -> Any:
        return default_collate([sample[which] for sample in samples])

    def _check_pair(self, value: Any, what: str) -> None:
        if not isinstance(value, tuple | list) or len(value) != 2:
            found = type(value).__name__
            if isinstance(value, tuple | list):
                found = f"{found} of {len(value)}"
            raise JobError(f"{what} is a {found}; it must be an (input, target) pair")
