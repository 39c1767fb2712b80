from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from funcpipe.errors import JobError, LossError
from funcpipe.model.sampling import (
    Fetcher,
    batch_ids,
    digest,
    loss_scales,
    micro_batches,
    num_batches,
)
from tests.unit.model.support import make_job

sizes = st.integers(1, 50)


@given(num_samples=sizes, batch_size=sizes, seed=st.integers(0, 2**32 - 1), shuffle=st.booleans())
def test_every_epoch_goes_once_through_all_samples(
    num_samples: int, batch_size: int, seed: int, shuffle: bool
) -> None:
    per_epoch = num_batches(num_samples, batch_size)
    for epoch in range(3):
        batches = [
            batch_ids(
                seed=seed,
                num_samples=num_samples,
                batch_size=batch_size,
                step=epoch * per_epoch + position,
                shuffle=shuffle,
            )
            for position in range(per_epoch)
        ]
        assert all(len(batch) == min(batch_size, num_samples) for batch in batches[:-1])
        assert 1 <= len(batches[-1]) <= batch_size
        seen = [sample for batch in batches for sample in batch]
        assert sorted(seen) == list(range(num_samples))
        if not shuffle:
            assert seen == list(range(num_samples))


def test_the_order_is_fixed_for_ever_and_new_in_each_epoch() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        return batch_ids(seed=seed, num_samples=10, batch_size=10, step=epoch, shuffle=True)

    assert order(0, 0) == [7, 5, 4, 8, 9, 0, 6, 1, 2, 3]
    assert order(0, 1) == [2, 8, 3, 1, 0, 7, 9, 6, 5, 4]
    assert order(1, 0) == [3, 7, 4, 9, 2, 1, 6, 5, 0, 8]


@given(ids=st.lists(st.integers(0, 1000), min_size=1, max_size=40), size=sizes)
def test_micro_batches_are_the_batch_in_order(ids: list[int], size: int) -> None:
    parts = micro_batches(ids, size)
    assert [sample for part in parts for sample in part] == ids
    assert all(len(part) == size for part in parts[:-1])
    assert 1 <= len(parts[-1]) <= size


def test_a_micro_batch_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        micro_batches([1], 0)


@given(one=st.lists(st.integers(0, 9), max_size=4), two=st.lists(st.integers(0, 9), max_size=4))
def test_digests_tell_samples_and_their_order(one: list[int], two: list[int]) -> None:
    assert (digest(one) == digest(two)) == (one == two)
    assert len(digest(one)) == 16


@given(parts=st.lists(sizes, min_size=1, max_size=9))
def test_scales_are_shares_of_a_mean_and_one_for_a_sum(parts: list[int]) -> None:
    mean = loss_scales(make_job(), parts)
    assert mean == [part / sum(parts) for part in parts]
    assert loss_scales(make_job(loss_reduction="sum"), parts) == [1.0] * len(parts)


def test_scales_come_from_the_targets_where_the_job_says_so() -> None:
    job = make_job(loss_weight=lambda target: (target >= 0).sum())
    targets = [torch.tensor([1, -1]), torch.tensor([-1]), torch.tensor([0, 1, 2])]
    assert loss_scales(job, [2, 1, 3], targets.__getitem__) == [0.25, 0.0, 0.75]
    with pytest.raises(LossError, match="0 for every micro-batch"):
        loss_scales(job, [1], lambda k: torch.tensor([-1]))
    for wrong in (-1.0, math.nan, math.inf):
        with pytest.raises(LossError, match=f"returned {wrong}"):
            loss_scales(make_job(loss_weight=lambda t, w=wrong: w), [1], lambda k: None)


class Augmented:
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return torch.rand(2) + index, index


def test_inputs_and_targets_loaded_apart_are_those_loaded_together() -> None:
    one, two = Fetcher(Augmented(), seed=1), Fetcher(Augmented(), seed=1)
    before = torch.get_rng_state()
    inputs, targets = one.load([3, 1, 4], step=5, micro_batch=2)
    assert torch.equal(two.inputs([3, 1, 4], step=5, micro_batch=2), inputs)
    assert torch.equal(two.targets([3, 1, 4], step=5, micro_batch=2), targets)
    assert targets.tolist() == [3, 1, 4]
    assert not torch.equal(two.inputs([3, 1, 4], step=6, micro_batch=2), inputs)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_jobs_collate_and_batched_access_are_used() -> None:
    class Batched(list[Any]):
        def __getitems__(self, ids: list[int]) -> list[Any]:
            return [self[index] for index in reversed(ids)]

    def collate(samples: list[Any]) -> Any:
        return [sample["x"] for sample in samples], [sample["y"] for sample in samples]

    data = Batched({"x": index, "y": -index} for index in range(5))
    fetcher = Fetcher(data, seed=0, collate=collate)
    assert fetcher.load([1, 2], step=0, micro_batch=0) == ([2, 1], [-2, -1])
    assert fetcher.inputs([1, 2], step=0, micro_batch=0) == [2, 1]
    assert fetcher.targets([1, 2], step=0, micro_batch=0) == [-2, -1]


@pytest.mark.parametrize(
    ("sample", "found"), [(torch.zeros(2), "Tensor"), ((1, 2, 3), "tuple of 3"), ({}, "dict")]
)
def test_samples_that_are_no_pairs_are_refused(sample: Any, found: str) -> None:
    with pytest.raises(JobError, match=f"sample 0 of train_data is a {found}"):
        Fetcher([sample], seed=0, name="train_data").inputs([0], step=0, micro_batch=0)
    with pytest.raises(JobError, match=f"job.collate is a {found}"):
        Fetcher([1], seed=0, collate=lambda s: sample).load([0], step=0, micro_batch=0)
