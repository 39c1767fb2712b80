"""A function must see the job that the driver saw."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from funcpipe.driver.options import RunOptions
from funcpipe.driver.prepare import _try_optimizers, choose_plan
from funcpipe.errors import JobError
from funcpipe.job import Job
from funcpipe.model.chain import chain_of, separate, state_of
from funcpipe.model.packing import settings_digest
from funcpipe.model.sampling import Fetcher
from funcpipe.sameness import (
    check_same,
    data_fingerprint,
    job_settings,
    optimizer_settings,
    weights_digest,
)


def job(**changes: Any) -> Job:
    fields: dict[str, Any] = {
        "model": lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)),
        "loss": nn.functional.mse_loss,
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.1),
        "train_data": lambda: TensorDataset(torch.zeros(4, 2), torch.zeros(4, 2)),
        "batch_size": 2,
    }
    return Job(**(fields | changes))


def test_what_is_the_same_passes_also_after_json() -> None:
    check_same("the job", {"a": (1, 2)}, {"a": [1, 2]})


def test_a_difference_shows_both_sides_and_says_why_it_may_be() -> None:
    here, there = job_settings(job(batch_size=2)), job_settings(job(batch_size=4))
    with pytest.raises(JobError, match=r"'batch_size': 2.*here.*'batch_size': 4.*environment"):
        check_same("the job", here, there)


def test_an_optimiser_s_options_and_class_count() -> None:
    weights = [nn.Parameter(torch.zeros(2))]
    slow, fast = (optimizer_settings(torch.optim.SGD(weights, lr=lr)) for lr in (0.1, 0.9))
    assert slow != fast
    assert slow != optimizer_settings(torch.optim.Adam(weights, lr=0.1))
    assert slow == optimizer_settings(torch.optim.SGD(weights, lr=0.1))


def test_data_counts_by_content() -> None:
    def fingerprint(values: torch.Tensor) -> str:
        return data_fingerprint(Fetcher(TensorDataset(values, values), seed=0))

    zeros = torch.zeros(5, 2)
    changed = zeros.clone()
    changed[4, 1] = 1e-6
    assert fingerprint(zeros) == fingerprint(zeros.clone())
    assert fingerprint(zeros) != fingerprint(changed)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda params: torch.optim.SGD(list(params)[-2:], lr=0.1),
        lambda params: torch.optim.SGD(
            [{"params": list(params)[:1], "lr": 0.5}, {"params": list(params)[1:]}], lr=0.1
        ),
    ],
    ids=["the last ones only", "groups by place"],
)
def test_an_optimiser_that_goes_by_place_in_the_list_is_refused(optimizer: Any) -> None:
    made = job(optimizer=optimizer)
    plan = choose_plan(made, RunOptions(stages=2), [1.0, 1.0])
    with pytest.raises(JobError, match="place in the list"):
        _try_optimizers(made, chain_of(made.model()), plan)


def test_an_optimiser_that_treats_all_alike_is_noted_by_stage() -> None:
    made = job()
    plan = choose_plan(made, RunOptions(stages=2), [1.0, 1.0])
    first, second = _try_optimizers(made, chain_of(made.model()), plan)
    assert first == second
    assert first[0] == "SGD"


def test_plain_attributes_of_any_module_inside_count() -> None:
    def digest(p: float) -> str:
        return settings_digest(nn.Sequential(nn.Linear(2, 2), nn.Dropout(p)))

    assert digest(0.1) == digest(0.1)
    assert digest(0.1) != digest(0.2)


class Eval(nn.Sequential):
    def train(self, mode: bool = True) -> Eval:
        return super().train(False)


class Named(nn.Sequential):
    """Only made in its own way."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(2, 2), nn.ReLU())


def test_a_sequential_with_behaviour_of_its_own_stays_whole() -> None:
    layers = chain_of(nn.Sequential(Eval(nn.Dropout()), Named())).layers
    assert [layer.name for layer in layers] == ["0", "1.0", "1.1"]


def test_tied_and_channels_last_weights_are_written_as_plain_ones() -> None:
    from safetensors.torch import load, save

    block = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3), "c": nn.Conv2d(2, 4, 3)})
    block["b"].weight = block["a"].weight
    block.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    state = state_of(chain_of(nn.Sequential(block)).layers)
    found = load(save(separate(state)))
    assert set(found) == set(state)
    assert all(torch.equal(found[name], state[name]) for name in state)


def test_what_has_no_plain_bytes_is_not_compared_and_loses_no_run() -> None:
    class Marked(torch.Tensor):
        pass

    assert weights_digest([torch.zeros(2).as_subclass(Marked)]) == ""
    assert weights_digest([torch.zeros(2)]) != weights_digest([torch.ones(2)]) != ""
