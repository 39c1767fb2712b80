from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset

from funcpipe.errors import JobError, ModelError
from funcpipe.model.build import build_data, build_model
from tests.unit.model.support import make_job


class Drawn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drawn = (random.random(), float(np.random.rand()))
        self.weight = nn.Parameter(torch.randn(3))


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from ()

    def __len__(self) -> int:
        return 3


def test_a_model_depends_on_the_seed_alone_and_leaves_the_generators() -> None:
    job = make_job(model=lambda: nn.Sequential(Drawn()), seed=3)
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    plain: Any = Drawn()
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tobytes()

    built: Any = build_model(job)

    assert built[0].drawn == plain.drawn
    assert torch.equal(built[0].weight, plain.weight)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.random.get_state()[1].tobytes() == states[2]
    other: Any = build_model(make_job(model=job.model, seed=4))
    assert not torch.equal(other[0].weight, plain.weight)


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(ModelError, match="returned a dict"):
        build_model(make_job(model=dict))


def test_random_data_is_the_same_for_all_who_load_it() -> None:
    job = make_job(train_data=lambda: [(torch.randn(3), 0) for _ in range(2)])
    one, two = build_data(job), build_data(job)
    assert torch.equal(one[1][0], two[1][0])


@pytest.mark.parametrize(
    ("data", "message"),
    [(Endless, "Endless, which gives no sample"), (list, "is empty"), (object, "map-style")],
)
def test_data_that_cannot_be_picked_by_number_are_refused(data: Any, message: str) -> None:
    with pytest.raises(JobError, match=message):
        build_data(make_job(train_data=data))


def test_evaluation_without_data_is_refused() -> None:
    with pytest.raises(JobError, match="no eval_data"):
        build_data(make_job(), evaluation=True)
