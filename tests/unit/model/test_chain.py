from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor, nn

from funcpipe.errors import ModelError
from funcpipe.model.chain import chain_of, parameters_of, state_of


class Doubling(nn.Sequential):
    def forward(self, value: Tensor) -> Tensor:
        return super().forward(value) * 2


class Named(nn.Sequential):
    pass


class Scaled(nn.Sequential):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.scale = nn.Parameter(torch.ones(1))


class Holder(nn.Module):
    def __init__(self, kept: object) -> None:
        super().__init__()
        self.kept = kept

    def forward(self, value: Tensor) -> Tensor:
        return value


def names(model: nn.Module) -> list[str]:
    return [layer.name for layer in chain_of(model).layers]


def test_nested_containers_become_layers_named_as_in_the_state_dict() -> None:
    model = nn.Sequential()
    model.add_module("features", nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU())))
    model.add_module("named", Named(nn.Linear(4, 4)))
    model.add_module("doubling", Doubling(nn.Linear(4, 4), nn.ReLU()))
    model.add_module("scaled", Scaled(nn.Linear(4, 4)))
    model.add_module("nothing", nn.Sequential())
    model.add_module("head", nn.Linear(4, 2))

    chain = chain_of(model)

    assert [layer.name for layer in chain.layers] == [
        "features.0",
        "features.1.0",
        "named.0",
        "doubling",
        "scaled",
        "head",
    ]
    assert [layer.index for layer in chain.layers] == list(range(6))
    state = state_of(chain.layers)
    assert list(state) == list(model.state_dict())
    assert [name for name, _ in parameters_of(chain.layers)] == [
        name for name, _ in model.named_parameters()
    ]


def test_the_layers_in_turn_compute_what_the_model_computes() -> None:
    model = nn.Sequential(
        nn.Sequential(nn.Linear(4, 4), nn.Tanh()), Doubling(nn.Linear(4, 4)), nn.Sequential()
    )
    value = torch.randn(3, 4)
    want = model(value)
    for layer in chain_of(model).layers:
        value = layer.module(value)
    assert torch.equal(value, want)


def test_a_sequential_whose_forward_was_replaced_on_the_object_is_a_layer() -> None:
    block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    block.forward = functools.partial(torch.mul, 2)  # type: ignore[method-assign]
    assert names(nn.Sequential(block, nn.ReLU())) == ["0", "1"]


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (nn.Linear(2, 2), "Linear"),
        (nn.ModuleList([nn.ReLU()]), "ModuleList"),
        (Doubling(nn.ReLU()), "Doubling"),
        (Scaled(nn.ReLU()), "Scaled"),
        (nn.Sequential(), "no layers"),
        (nn.Sequential(nn.Sequential()), "no layers"),
    ],
)
def test_other_models_are_refused_by_name(model: nn.Module, found: str) -> None:
    with pytest.raises(ModelError, match=found):
        chain_of(model)


def test_what_two_layers_share_is_refused() -> None:
    relu, first, second = nn.ReLU(), nn.Linear(3, 3), nn.Linear(3, 3)
    with pytest.raises(ModelError, match=r"'0' and layer '2'.*same ReLU"):
        chain_of(nn.Sequential(relu, first, relu))
    with pytest.raises(ModelError, match=r"layer '1\.0'.*same Linear"):
        chain_of(nn.Sequential(first, Doubling(first)))

    tied = nn.Linear(3, 3)
    tied.weight = first.weight
    with pytest.raises(ModelError, match=r"1\.weight and 0\.weight share"):
        chain_of(nn.Sequential(first, tied))

    tied.weight = nn.Parameter(first.weight.detach())  # another object over the same memory
    with pytest.raises(ModelError, match="share a parameter"):
        chain_of(nn.Sequential(first, tied))

    for kept in ([second], lambda: second, functools.partial(max, second.weight)):
        with pytest.raises(ModelError, match="share a parameter"):
            chain_of(nn.Sequential(second, Holder(kept)))


def test_sharing_is_seen_on_the_meta_device_too() -> None:
    with torch.device("meta"):
        first, tied, other = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        tied.weight = first.weight
        assert names(nn.Sequential(first, other)) == ["0", "1"]
        with pytest.raises(ModelError, match="share a parameter"):
            chain_of(nn.Sequential(first, tied))


def test_a_parameter_used_twice_within_one_layer_is_no_tie_across_layers() -> None:
    first, tied = nn.Linear(3, 3), nn.Linear(3, 3)
    tied.weight = first.weight
    assert names(nn.Sequential(Doubling(first, tied), nn.ReLU())) == ["0", "1"]


@pytest.mark.parametrize(
    "register",
    [
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
    ],
)
def test_hooks_on_containers_are_refused_and_on_layers_are_not(register: str) -> None:
    def hook(*arguments: object) -> None:
        return None

    for container in (0, None):
        model = nn.Sequential(nn.Sequential(nn.ReLU()), nn.ReLU())
        getattr(model if container is None else model[container], register)(hook)
        with pytest.raises(ModelError, match=r"hooks; they would be lost"):
            chain_of(model)

    model = nn.Sequential(nn.ReLU(), Doubling(nn.ReLU()))
    for layer in model:
        getattr(layer, register)(hook)
    assert names(model) == ["0", "1"]


def test_lazy_modules_must_have_been_initialised() -> None:
    with pytest.raises(ModelError, match="uninitialised parameter 'weight'"):
        chain_of(nn.Sequential(nn.LazyLinear(3)))
