from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from funcpipe.errors import LossError
from funcpipe.model.build import build_model
from funcpipe.model.chain import Chain, chain_of, state_of
from funcpipe.model.preview import FLOPS_PER_ELEMENT, weigh_layers
from tests.unit.model.support import double, make_job, mlp

TARGET = torch.tensor([1])


def sample(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(1, *shape, generator=generator, dtype=torch.float64)


def weigh(model: Any, inputs: Tensor, **fields: Any) -> list[float]:
    job = make_job(model=model, **fields)
    return [one.cost for one in weigh_layers(job, chain_of(build_model(job)), inputs, TARGET)]


def test_layers_are_weighed_by_their_operations() -> None:
    # a multiplication and an addition per weight, and the memory of what comes out
    assert weigh(mlp, sample(6)) == [
        2 * 6 * 8 + 8 * FLOPS_PER_ELEMENT,
        8 * FLOPS_PER_ELEMENT,
        2 * 8 * 8 + 8 * FLOPS_PER_ELEMENT,
        8 * FLOPS_PER_ELEMENT,
        2 * 8 * 4 + 4 * FLOPS_PER_ELEMENT,
    ]


def test_the_same_model_weighs_the_same_whatever_its_numbers() -> None:
    def model() -> nn.Module:
        return double(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 4))

    one = weigh(model, sample(6))
    torch.rand(17)
    assert weigh(model, sample(6) * 100, seed=8) == one


class Moody(nn.Module):
    """Counts its calls, keeps its last result, draws numbers, and has a part in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)
        self.inner = nn.Dropout(0.5).eval()
        self.register_buffer("calls", torch.zeros(()))
        self.norm = nn.BatchNorm1d(6)

    def forward(self, value: Tensor) -> Tensor:
        self.calls += 1
        noise = torch.randn(()) + random.random() + np.random.random()
        self.last: Tensor = self.linear(self.inner(self.norm(value))) + 0 * noise
        return self.last


def moody_chain() -> Chain:
    return chain_of(build_model(make_job(model=lambda: double(Moody()))))


def test_the_model_is_left_as_it_was_built() -> None:
    # given a layer that changes when it is run, even in evaluation mode
    chain, untouched = moody_chain(), moody_chain()
    modes = [module.training for module in chain.layers[0].module.modules()]
    # when
    weigh_layers(make_job(), chain, sample(6), TARGET)
    # then what will be stored is what was built
    state, fresh = state_of(chain.layers), state_of(untouched.layers)
    assert all(torch.equal(state[name], fresh[name]) for name in fresh)
    assert not hasattr(chain.layers[0].module, "last")
    assert [module.training for module in chain.layers[0].module.modules()] == modes
    assert len(set(modes)) == 2


def test_random_numbers_are_as_if_it_had_not_been_run() -> None:
    def drawn() -> list[float]:
        return [float(torch.rand(())), random.random(), float(np.random.random())]

    drawings = []
    for look in (False, True):
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        if look:
            weigh_layers(make_job(), moody_chain(), sample(6), TARGET)
        drawings.append(drawn())
    assert drawings[0] == drawings[1]


class Uncopyable(nn.Module):
    """What it holds refuses to be copied, like a lock or a view that autograd knows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def __deepcopy__(self, memo: object) -> Any:
        raise TypeError("cannot be copied")

    def forward(self, value: Tensor) -> Tensor:
        assert not self.training
        result: Tensor = self.linear(value)
        return result


def test_a_layer_that_cannot_be_copied_is_run_itself() -> None:
    assert weigh(lambda: double(Uncopyable()), sample(6)) == [2 * 6 * 4 + 4 * FLOPS_PER_ELEMENT]


def test_an_error_names_the_layer() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Sequential(nn.ReLU(), nn.Linear(7, 4))).double()

    with pytest.raises(RuntimeError) as caught:
        weigh(model, sample(6))
    assert caught.value.__notes__ == ["in layer 2 (1.1: Linear)"]


def test_a_loss_that_gives_more_than_a_number_is_told() -> None:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target.expand(len(output)), reduction="none").repeat(2)

    with pytest.raises(LossError, match="one number"):
        weigh(mlp, sample(6), loss=loss)
