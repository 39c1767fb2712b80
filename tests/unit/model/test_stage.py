from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from funcpipe.errors import JobError, LossError, ModelError
from funcpipe.model.chain import chain_of
from funcpipe.model.reference import reference
from funcpipe.model.stage import Stage
from tests.transparency.compare import EXACT, EXACT_ADAM, assert_equal_tensors
from tests.unit.model.support import (
    crossed,
    double,
    make_job,
    make_samples,
    make_stages,
    mlp,
    train,
)

CUTS: list[tuple[int, ...]] = [(), (2,), (1, 3), (1, 2, 4)]
MICRO_BATCHES = {1: 8, 2: 4, 3: 3, 4: 2, 8: 1}
SUM = {"loss": lambda output, target: F.cross_entropy(output, target, reduction="sum")}


def assert_like_plain(
    job: Any,
    cuts: tuple[int, ...],
    size: int,
    *,
    whole: bool = True,
    steps: int = 5,
    tolerance: float = EXACT,
) -> None:
    """Gradients of one step, losses, and weights after `steps` steps equal plain PyTorch's."""
    want = reference(job, None if whole else size, steps=steps)
    got = train(job, cuts, size, steps=steps)
    assert_equal_tensors(got.gradients, want.gradients, EXACT)
    assert_equal_tensors(got.state_dict, want.state_dict, tolerance)
    assert got.losses == pytest.approx(want.losses, rel=tolerance)
    assert all(stage.num_in_flight == 0 for stage in got.stages)
    if job.eval_data is not None:
        assert got.metrics == pytest.approx(want.metrics, rel=tolerance)


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("num_micro_batches", MICRO_BATCHES)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_training_equals_the_plain_model_on_the_whole_batch(
    cuts: tuple[int, ...], num_micro_batches: int, reduction: str
) -> None:
    fields: dict[str, Any] = {
        "loss_reduction": reduction,
        "eval_data": lambda: make_samples(7),
    }
    if reduction == "sum":
        fields |= SUM | {"optimizer": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9)}
    job = make_job(model=mlp, train_data=lambda: make_samples(20), **fields)
    # 20 samples in batches of 8: every third batch has 4.
    assert_like_plain(job, cuts, MICRO_BATCHES[num_micro_batches])


@pytest.mark.parametrize("cuts", CUTS)
def test_adam_with_a_schedule_and_evaluation(cuts: tuple[int, ...]) -> None:
    job = make_job(
        model=mlp,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
        lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5),
        eval_data=lambda: make_samples(7),
        metrics={"accuracy": lambda output, target: (output.argmax(1) == target).double().mean()},
    )
    assert_like_plain(job, cuts, 3, tolerance=EXACT_ADAM)


@pytest.mark.parametrize("cuts", CUTS[1:])
def test_random_layers_draw_what_the_reference_draws(cuts: tuple[int, ...]) -> None:
    def model() -> nn.Module:
        return double(
            nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 8), nn.Dropout(0.2), nn.Linear(8, 4)
        )

    def noisy(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output + torch.randn_like(output), target)

    job = make_job(model=model, loss=noisy)
    assert_like_plain(job, cuts, 3, whole=False)
    whole, parts = reference(job, None, steps=1), reference(job, 3, steps=1)
    assert whole.losses != parts.losses


def test_a_step_that_is_run_again_gives_the_same_bits() -> None:
    job = make_job(model=lambda: double(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 4)))
    one = train(job, (1, 2), 3, steps=2)
    torch.rand(17)
    two = train(job, (2,), 3, steps=2)
    assert one.losses == two.losses
    assert all(torch.equal(one.state_dict[name], two.state_dict[name]) for name in one.state_dict)


@pytest.mark.parametrize("cuts", [(1,), (3,), (1, 2, 3)])
def test_frozen_parameters_stay_and_shift_nothing(cuts: tuple[int, ...]) -> None:
    def model() -> nn.Module:
        made = mlp()
        made[0].requires_grad_(False)
        made[2].weight.requires_grad_(False)
        return made

    job = make_job(
        model=model,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, weight_decay=0.1),
    )
    assert_like_plain(job, cuts, 3)


def test_a_frozen_stage_asks_for_no_gradient() -> None:
    def model() -> nn.Module:
        made = mlp()
        made[0].requires_grad_(False)
        return made

    first, second = make_stages(make_job(model=model), (2,))
    value = first.forward(step=0, micro_batch=0, value=torch.ones(2, 6).double())
    assert not value.requires_grad
    second.forward(step=0, micro_batch=0, value=value, target=torch.tensor([0, 1]))
    assert second.backward(micro_batch=0) is None
    assert first.backward(micro_batch=0, gradient=None) is None
    assert first.optimizer is None
    assert first.gradients.buffers == []


@pytest.mark.parametrize("cuts", [(1,), (4,), (1, 2, 3, 4)])
def test_layers_in_place_at_a_boundary_and_without_parameters_at_the_ends(
    cuts: tuple[int, ...],
) -> None:
    def model() -> nn.Module:
        return double(
            nn.Flatten(), nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 4), nn.ELU(0.5, True)
        )

    assert_like_plain(make_job(model=model), cuts, 3)


def test_an_in_place_layer_works_on_what_arrived_without_a_copy() -> None:
    layers = chain_of(double(nn.Linear(2, 2), nn.ReLU(inplace=True))).layers
    stage = Stage(layers[1:], job=make_job(loss=lambda output, target: output.sum()), num_layers=2)
    arrived = torch.tensor([[-1.0, 2.0]]).double().requires_grad_()
    stage.forward(step=0, micro_batch=0, value=arrived)
    assert arrived.tolist() == [[0.0, 2.0]]
    assert stage.backward(micro_batch=0).tolist() == [[0.0, 1.0]]


class Split(nn.Module):
    """Makes a nested value of everything that may cross a boundary."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 8)

    def forward(self, value: Tensor) -> Any:
        mask = (value[:, :1] > 0).long()
        return self.linear(value), [mask, None, 3, True], {"gain": 0.5, "unused": value * 1.0}


class Middle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.side = nn.Linear(8, 3)

    def forward(self, value: Any) -> Any:
        hidden, (mask, nothing, times, flag), extra = value
        assert mask.dtype is torch.int64
        assert nothing is None
        assert (type(times), flag) == (int, True)
        return self.linear(hidden) * extra["gain"] * times, [mask], (), self.side(hidden)


class Joined(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.unused = nn.Linear(3, 3)

    def forward(self, value: Any) -> Tensor:
        hidden, (mask,), _, _ = value  # what `side` made gets no gradient
        return self.linear(hidden) * mask


@pytest.mark.parametrize("cuts", [(), (1,), (2,), (1, 2), (1, 2, 3)])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_nested_values_and_tensors_without_gradients(cuts: tuple[int, ...], decay: float) -> None:
    job = make_job(
        model=lambda: double(Split(), Middle(), nn.Identity(), Joined()),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=decay),
    )
    assert_like_plain(job, cuts, 3)
    got = train(job, cuts, 3, steps=3)
    untouched = [name for name, gradient in got.gradients.items() if gradient is None]
    assert untouched == ["1.side.weight", "1.side.bias", "3.unused.weight", "3.unused.bias"]
    initial = reference(job, steps=0).state_dict
    for name in untouched:
        assert torch.equal(got.state_dict[name], initial[name])


def test_the_gradient_is_nested_as_the_value_with_none_where_there_is_none() -> None:
    first, second = make_stages(make_job(model=lambda: double(Split(), Middle(), Joined())), (1,))
    inputs = torch.ones(2, 6).double()
    value = crossed(first.forward(step=0, micro_batch=0, value=inputs))
    assert [tensor.requires_grad for tensor in (value[0], value[1][0], value[2]["unused"])] == [
        True,
        False,
        False,
    ]
    second.forward(step=0, micro_batch=0, value=value, target=torch.tensor([0, 1]))
    assert (first.num_in_flight, second.num_in_flight) == (1, 1)
    gradient = second.backward(micro_batch=0)
    assert gradient[0].shape == (2, 8)
    assert gradient[1:] == ([None] * 4, {"gain": None, "unused": None})
    assert second.num_in_flight == 0


def test_ignored_labels_weigh_as_the_job_says() -> None:
    samples = [(row, -100 if k % 3 else k % 4) for k, (row, _) in enumerate(make_samples(8))]
    job = make_job(
        model=mlp,
        train_data=lambda: samples,
        eval_data=lambda: samples,
        loss_weight=lambda target: (target != -100).sum(),
        shuffle=False,
    )
    # Micro-batches of one or two samples without any label count for nothing, not for NaN.
    for size in (1, 2, 3, 8):
        assert_like_plain(job, (2,), size)


def test_channels_last_convolutions_and_two_dtypes() -> None:
    class Convolution(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last)
            self.offset = nn.Parameter(torch.zeros(5, dtype=torch.float32))

        def forward(self, value: Tensor) -> Tensor:
            return (self.convolution(value) + self.offset[:, None, None].double()).flatten(1)

    def model() -> nn.Module:
        made = nn.Sequential(Convolution(), nn.Linear(20, 4))
        made[0].convolution.double()
        made[1].double()
        return made

    job = make_job(
        model=model,
        train_data=lambda: [(torch.randn(3, 4, 4).double(), k % 4) for k in range(8)],
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
    )
    got, want = train(job, (1,), 8), reference(job, steps=1)
    assert_equal_tensors(got.gradients, want.gradients, EXACT)
    first = got.stages[0]
    assert sorted(str(buffer.dtype) for buffer in first.gradients.buffers) == [
        "torch.float32",
        "torch.float64",
    ]


def test_what_is_sent_does_not_change_while_it_is_being_sent() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.ones(3))

        def forward(self, value: Tensor) -> Tensor:
            return self.table

    stage = make_stages(make_job(model=lambda: double(Table(), nn.ReLU())), (1,))[0]
    sent = stage.forward(step=0, micro_batch=0, value=torch.zeros(1))
    stage.backward(micro_batch=0, gradient=torch.ones(3).double())
    stage.step(step=0)
    assert sent.tolist() == [1.0] * 3
    assert stage.layers[0].module.table.tolist() == pytest.approx([0.9] * 3)


def test_evaluation_is_without_graph_and_training_goes_on_after_it() -> None:
    job = make_job(model=lambda: double(nn.Linear(6, 4), nn.Dropout(0.5), nn.Linear(4, 4)))
    first, second = make_stages(job, (2,))
    inputs, target = torch.ones(2, 6).double(), torch.tensor([0, 1])
    one = first.evaluate(value=inputs)
    assert not one.requires_grad
    assert torch.equal(one, first.layers[0].module(inputs))
    found = second.evaluate(value=one, target=target, count=2)
    assert (found.weight, found.count, first.num_in_flight) == (2.0, 2, 0)
    trained = first.forward(step=0, micro_batch=0, value=inputs)
    assert (trained == 0).any()


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda o, t: F.cross_entropy(o, t, reduction="none"), r"shape \(2,\).*loss\.mean\(\)"),
        (lambda o, t: o.sum() * math.nan, "is nan"),
        (lambda o, t: o.sum() * 0 + math.inf, "is inf"),
        (lambda o, t: o.argmax(), "torch.int64"),
        (lambda o, t: 0.5, "returned a float"),
        (lambda o, t: o.detach().sum(), "not depend on any trainable parameter"),
    ],
)
def test_a_loss_that_cannot_be_trained_is_refused(loss: Any, message: str) -> None:
    job = make_job(model=lambda: double(nn.Linear(6, 1 if "argmax" in message else 4)), loss=loss)
    stage = make_stages(job, ())[0]
    inputs, target = torch.ones(2, 6).double(), torch.tensor([0, 1])
    with pytest.raises(LossError, match=message):
        stage.forward(step=3, micro_batch=1, value=inputs, target=target)
    assert stage.num_in_flight == 0


def test_a_loss_that_is_not_finite_says_where() -> None:
    job = make_job(model=lambda: double(nn.Linear(6, 4)), loss=lambda o, t: o.sum() * math.nan)
    with pytest.raises(LossError) as caught:
        make_stages(job, ())[0].forward(step=3, micro_batch=1, value=torch.ones(2, 6).double())
    assert (caught.value.step, caught.value.micro_batch) == (4, 1)


@pytest.mark.parametrize(
    ("metric", "message"), [(lambda o, t: o, r"shape \(2, 4\)"), (lambda o, t: "x", "str")]
)
def test_a_metric_that_is_no_number_is_refused(metric: Any, message: str) -> None:
    job = make_job(model=lambda: double(nn.Linear(6, 4)), metrics={"mine": metric})
    stage = make_stages(job, ())[0]
    with pytest.raises(JobError, match=rf"metrics\['mine'\].*{message}"):
        stage.evaluate(value=torch.ones(2, 6).double(), target=torch.tensor([0, 1]), count=2)


class Wrong(nn.Module):
    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result

    def forward(self, value: Tensor) -> Any:
        return self.result


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({1: torch.zeros(1)}, "key 1"),
        ({"a": {1, 2}}, "builtins.set"),
        (torch.zeros(1).max(0), "max"),
        (torch.eye(2).to_sparse(), "not dense"),
    ],
)
def test_values_that_cannot_travel_are_refused(result: Any, message: str) -> None:
    stage = make_stages(make_job(model=lambda: nn.Sequential(Wrong(result), nn.ReLU())), (1,))[0]
    with pytest.raises(ModelError, match=f"layer 0 .0: Wrong. returned.*{message}"):
        stage.forward(step=0, micro_batch=0, value=torch.zeros(1))


def test_an_exception_in_a_layer_names_the_layer_and_is_torchs_own() -> None:
    first, second = make_stages(
        make_job(model=lambda: double(nn.Linear(6, 8), nn.Linear(7, 4))), (1,)
    )
    value = first.forward(step=0, micro_batch=0, value=torch.ones(2, 6).double())
    with pytest.raises(RuntimeError, match="cannot be multiplied") as caught:
        second.forward(step=0, micro_batch=0, value=value, target=torch.tensor([0, 1]))
    assert caught.value.__notes__ == ["in layer 1 (1: Linear)"]


def test_a_stage_is_of_consecutive_layers_and_steps_when_all_is_done() -> None:
    job = make_job(model=mlp)
    layers = chain_of(mlp()).layers
    for wrong in ((), (layers[0], layers[2])):
        with pytest.raises(ValueError, match="consecutive"):
            Stage(wrong, job=job, num_layers=5)
    stage = make_stages(job, (2,))[0]
    stage.forward(step=0, micro_batch=4, value=torch.ones(2, 6).double())
    with pytest.raises(ValueError, match="already in flight"):
        stage.forward(step=0, micro_batch=4, value=torch.ones(2, 6).double())
    with pytest.raises(ValueError, match=re.escape("[4] have had no backward")):
        stage.step(step=0)


def test_the_callers_random_numbers_are_not_disturbed() -> None:
    stage = make_stages(make_job(model=lambda: double(nn.Dropout(), nn.ReLU())), (1,))[0]
    torch.manual_seed(1)
    want = torch.rand(3)
    torch.manual_seed(1)
    stage.forward(step=0, micro_batch=0, value=torch.ones(2, 6).double())
    assert torch.equal(torch.rand(3), want)
