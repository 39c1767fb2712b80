"""What layers take, of models so small that every byte can be told beforehand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from funcpipe.model.chain import chain_of
from funcpipe.model.measure import (
    hold_still,
    kept_by_layer,
    optimizer_bytes,
    shares,
    step_by_layer,
    step_workspaces,
    trained_bytes,
    weight_bytes,
    workspaces,
)
from funcpipe.model.stage import Stage

SAMPLES, WIDTH = 4, 64
VALUE = SAMPLES * WIDTH * 4
WEIGHTS = (WIDTH * WIDTH + WIDTH) * 4


def linear() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


def make_stage(
    modules: Sequence[nn.Module],
    *,
    optimizer: Callable[[Any], Any] = lambda p: torch.optim.SGD(p, lr=0.1),
    first: int = 0,
    stop: int | None = None,
) -> Stage:
    layers = chain_of(nn.Sequential(*modules)).layers
    job: Any = SimpleNamespace(
        loss=nn.functional.mse_loss, optimizer=optimizer, lr_scheduler=None, seed=0
    )
    return Stage(layers[first:stop], job=job, num_layers=len(layers))


class Runs:
    """One micro-batch through a stage, with what its neighbours would give."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.value = torch.randn(SAMPLES, WIDTH).requires_grad_(not stage.is_first)
        self.target = torch.randn(SAMPLES, WIDTH) if stage.is_last else None

    def forward(self) -> Any:
        return self.stage.forward(step=0, micro_batch=0, value=self.value, target=self.target)

    def load_and_forward(self) -> Any:
        self.value = torch.randn(SAMPLES, WIDTH).requires_grad_(not self.stage.is_first)
        self.target = torch.randn(SAMPLES, WIDTH) if self.stage.is_last else None
        return self.forward()

    def backward(self) -> None:
        gradient = None if self.stage.is_last else torch.ones(SAMPLES, WIDTH)
        self.stage.backward(micro_batch=0, gradient=gradient)


def kept_of(stage: Stage) -> Any:
    runs = Runs(stage)
    kept = kept_by_layer(stage, runs.value, runs.forward)
    runs.backward()
    return kept


def test_an_input_that_is_kept_counts_for_the_layer_that_needs_it() -> None:
    # Given linear layers, each of which needs its input for the gradient of its weights
    kept = kept_of(make_stage([linear(), linear(), linear()]))
    # then each keeps that, and the loss keeps output and target beside it
    assert kept.activation == (VALUE, VALUE, 3 * VALUE)
    assert kept.output == kept.gradient == (VALUE, VALUE, VALUE)


def test_a_result_that_two_layers_keep_counts_once() -> None:
    # Given a ReLU, which keeps its result, and a linear layer that keeps the same as its input
    kept = kept_of(make_stage([linear(), nn.ReLU(), linear(), nn.Sigmoid()], stop=3))
    assert kept.activation == (VALUE, 0, VALUE)


def test_what_crosses_the_cut_is_not_kept_twice() -> None:
    # Given a stage that ends with a layer that keeps nothing but its result, which is sent
    kept = kept_of(make_stage([linear(), nn.ReLU(), linear()], stop=2))
    assert kept.activation == (VALUE, 0)
    assert kept.output[1] == VALUE


def test_a_stage_that_is_not_the_first_holds_its_input() -> None:
    # Given a first layer that needs no input, in the middle of a model
    kept = kept_of(make_stage([linear(), nn.Flatten(), linear(), linear()], first=1, stop=3))
    # then the input is the same memory as the flattened one, which the next layer needs
    assert sum(kept.activation) == VALUE


def test_a_frozen_output_has_no_gradient() -> None:
    frozen = linear().requires_grad_(False)
    kept = kept_of(make_stage([frozen, linear()]))
    assert kept.gradient == (0, VALUE)
    assert kept.output == (VALUE, VALUE)


@pytest.mark.parametrize(
    ("optimizer", "factor"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), 0),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 1),
        (lambda p: torch.optim.Adam(p, lr=0.1), 2),
    ],
)
def test_weights_and_the_optimisers_state(optimizer: Callable[[Any], Any], factor: int) -> None:
    stage = make_stage([linear(), nn.ReLU(), nn.BatchNorm1d(WIDTH)], optimizer=optimizer)
    runs = Runs(stage)
    runs.forward()
    runs.backward()
    stage.step(step=0)
    # running mean, running variance and a 64-bit count are no parameters
    assert [weight_bytes(layer) for layer in stage.layers] == [WEIGHTS, 0, 4 * WIDTH * 4 + 8]
    assert [trained_bytes(layer) for layer in stage.layers] == [WEIGHTS, 0, 2 * WIDTH * 4]
    steps = 2 * 4 if factor == 2 else 0  # Adam counts the steps of each of its two tensors
    assert optimizer_bytes(stage) == [
        factor * WEIGHTS + steps,
        0,
        factor * 2 * WIDTH * 4 + steps,
    ]


def test_a_backward_needs_the_gradient_of_the_weights_for_a_while() -> None:
    stage = make_stage([linear(), linear()])
    kept, runs = kept_of(stage), Runs(stage)
    needs = workspaces(stage, kept, runs.load_and_forward, runs.backward)
    weight = WIDTH * WIDTH * 4
    for need in needs:
        assert weight <= need <= weight + 4 * VALUE
    # and nothing of the tracing is left in the stage
    assert stage.num_in_flight == 0
    assert not any(layer.module._forward_hooks for layer in stage.layers)


def test_a_step_needs_a_copy_of_one_tensor_at_a_time() -> None:
    adam = make_stage([linear(), linear(), nn.ReLU()], optimizer=torch.optim.Adam)
    plain = make_stage([linear()])
    for stage in (adam, plain):
        runs = Runs(stage)
        runs.forward()
        runs.backward()
        stage.step(step=0)
    weight = WIDTH * WIDTH * 4
    first, second, relu = step_workspaces(adam)
    assert weight <= first <= 3 * weight
    assert second == first
    assert relu < weight
    assert step_workspaces(plain)[0] < weight


def test_an_optimiser_that_takes_all_at_once_needs_all_at_every_layer() -> None:
    stage = make_stage(
        [linear(), nn.ReLU(), linear(), linear()],
        optimizer=lambda p: torch.optim.Adam(p, foreach=True),
    )
    runs = Runs(stage)
    runs.forward()
    runs.backward()
    stage.step(step=0)
    needs = step_workspaces(stage)
    assert needs[0] == needs[2] == needs[3] >= 3 * WIDTH * WIDTH * 4
    assert needs[1] == 0


def counting() -> Callable[[], float]:
    """A clock that goes on by one whenever it is looked at."""
    at = iter(range(10_000))
    return lambda: float(next(at))


def test_the_layers_have_all_of_a_passs_time() -> None:
    stage = make_stage([linear(), nn.ReLU(), linear()])
    runs = Runs(stage)
    # Given marks at every layer's begin: looks 0; 1, 2, 3; 4 (middle); 5, 6; 7
    forwards, backwards = shares(stage, runs.forward, runs.backward, counting())
    # then what is before the first layer is its own, and the last one has the loss
    assert forwards == [2.0, 1.0, 1.0]
    assert backwards == [1.0, 1.0, 1.0]
    assert sum(forwards) + sum(backwards) == 7.0


def test_a_layer_without_gradient_has_no_backward() -> None:
    stage = make_stage([linear().requires_grad_(False), nn.ReLU(), linear()])
    runs = Runs(stage)
    _, backwards = shares(stage, runs.forward, runs.backward, counting())
    assert backwards == [0.0, 0.0, 1.0]


def test_a_step_is_split_among_layers_that_are_trained() -> None:
    stage = make_stage([linear(), nn.ReLU(), linear()])
    parts = step_by_layer(stage, counting())
    assert parts == [0.5, 0.0, 0.5]  # one look each, all of it common
    # and the gradients are where they were
    assert all(one.grad is not None for one in stage.layers[0].module.parameters())


def test_steps_that_hold_still_change_no_weight() -> None:
    stage = make_stage([linear()], optimizer=lambda p: torch.optim.AdamW(p, lr=0.5))
    before = [one.clone() for one in stage.layers[0].module.parameters()]
    hold_still(stage)
    runs = Runs(stage)
    runs.forward()
    runs.backward()
    stage.step(step=0)
    for one, old in zip(stage.layers[0].module.parameters(), before, strict=True):
        assert torch.equal(one, old)
