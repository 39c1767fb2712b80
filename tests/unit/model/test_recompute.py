"""Stages that recompute: the same bits as without, and nothing but the input is kept."""

from __future__ import annotations

import gc
import random
import weakref
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from funcpipe.errors import LossError, ModelError
from funcpipe.model.rerun import ModuleState, twin
from funcpipe.model.stage import Stage
from funcpipe.model.tensors import slots
from tests.unit.model.support import crossed, double, gradients_of, make_job, make_stages

WIDTH = 6


class Counting(nn.Module):
    """Keeps state in each of the ways that are followed, and computes with it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(WIDTH, dtype=torch.float64))
        self.number = 0
        self.average = torch.zeros(WIDTH, dtype=torch.float64)
        self.seen: list[float] = []
        self.named: dict[str, Any] = {"last": None}

    def forward(self, value: Tensor) -> Tensor:
        self.calls += 1
        self.number += 1
        self.mean = 0.5 * self.mean + 0.5 * value.detach().mean(0)
        self.average.mul_(0.5).add_(value.detach().mean(0))
        self.seen.append(float(value.detach().sum()))
        hidden = self.named["last"]
        self.named["last"] = value.mean(0)
        out = value * (1 + self.number / 10) + self.mean + self.average * self.calls
        out = out + self.seen[-1] / len(self.seen)
        return out if hidden is None else out + hidden.detach()


class Late(nn.Module):
    """Makes an attribute when it first runs."""

    def forward(self, value: Tensor) -> Tensor:
        if not hasattr(self, "shift"):
            self.shift = torch.randn(WIDTH, dtype=torch.float64)
        return value + self.shift


class Erase(nn.Module):
    """Changes its input in place, at times, and past autograd's counters."""

    def forward(self, value: Tensor) -> Tensor:
        if float(torch.rand(())) < 0.5:
            value.detach().numpy()[:, 0] *= 2
        return value


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Any:
        return self.linear(value), {"mask": value > 0, "of": [value.detach().clone(), 3, None]}


class Join(nn.Module):
    def forward(self, value: Any) -> Tensor:
        hidden, other = value
        return hidden.relu_() * other["mask"] + other["of"][0].mul_(other["of"][1])


class Noise(nn.Module):
    """Draws from all three generators."""

    def forward(self, value: Tensor) -> Tensor:
        return value * random.random() + float(np.random.random()) * torch.randn_like(value)


MODELS: dict[str, Callable[[], list[nn.Module]]] = {
    "plain": lambda: [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.ReLU()],
    "dropout": lambda: [nn.Dropout(0.5), nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3), Noise()],
    "batch norm": lambda: [
        nn.Linear(WIDTH, WIDTH),
        nn.BatchNorm1d(WIDTH),
        nn.BatchNorm1d(WIDTH, momentum=None),
        nn.ReLU(),
    ],
    "in place": lambda: [
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(inplace=True),
        nn.Linear(WIDTH, WIDTH),
        nn.Dropout(0.4, inplace=True),
    ],
    "in place at times": lambda: [Erase(), nn.Linear(WIDTH, WIDTH), Erase(), nn.Tanh()],
    "state": lambda: [Counting(), nn.Linear(WIDTH, WIDTH), Counting(), Late()],
    "spectral norm": lambda: [
        nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)),
        nn.Tanh(),
        nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)),
        nn.Tanh(),
    ],
    "nested": lambda: [nn.Identity(), Pair(), Join(), nn.Tanh()],
    "tied in a layer": lambda: [nn.Tanh(), Tied(), nn.Tanh(), Tied()],
    "attention": lambda: [
        nn.Unflatten(1, (1, WIDTH)),
        nn.TransformerEncoderLayer(WIDTH, 2, 8, batch_first=True),
        nn.Flatten(),
        nn.Tanh(),
    ],
    "frozen": lambda: [
        nn.Linear(WIDTH, WIDTH).requires_grad_(False),
        nn.BatchNorm1d(WIDTH, affine=False),
        nn.Linear(WIDTH, WIDTH),
        nn.Linear(WIDTH, WIDTH).requires_grad_(False),
    ],
}


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.two.weight = self.one.weight

    def forward(self, value: Tensor) -> Tensor:
        return self.two(self.one(value).tanh())


def noisy_loss(output: Tensor, target: Tensor) -> Tensor:
    target.add_(1).remainder_(4)  # in place
    return F.cross_entropy(output + torch.randn_like(output), target)


def job_of(name: str) -> Any:
    return make_job(
        model=lambda: double(*MODELS[name](), nn.Linear(WIDTH, 4)),
        loss=noisy_loss,
    )


def run(job: Any, cuts: tuple[int, ...], again: bool, schedule: str) -> list[Any]:
    """Two steps of three micro-batches: every value, gradient and weight, as they came."""
    stages = make_stages(job, cuts, recompute=again)
    found: list[Any] = []
    generator = torch.Generator().manual_seed(5)
    for step in range(2):

        def forward(k: int, step: int = step) -> None:
            value: Any = torch.randn(4, WIDTH, generator=generator, dtype=torch.float64)
            for stage in stages:
                target = torch.tensor([0, 1, 2, 3]) if stage.is_last else None
                value = crossed(
                    stage.forward(
                        step=step, micro_batch=k, value=value, scale=0.25 * k, target=target
                    )
                )
                found.append(crossed(value))

        def backward(k: int) -> None:
            gradient = None
            for stage in reversed(stages):
                gradient = crossed(stage.backward(micro_batch=k, gradient=gradient))
                found.append(crossed(gradient))

        orders = {"gpipe": "F0 F1 F2 B2 B1 B0", "1f1b": "F0 F1 B0 F2 B1 B2"}
        for token in orders[schedule].split():
            (forward if token[0] == "F" else backward)(int(token[1]))
        for stage in stages:
            stage.gradients.finish()
        found.append(gradients_of(stages))
        for stage in stages:
            stage.step(step=step)
    found += [
        (slot.name, slot.tensor.detach())
        for stage in stages
        for layer in stage.layers
        for slot in slots(layer.module)
    ]
    found += [
        (module.number, module.seen)
        for stage in stages
        for layer in stage.layers
        for module in layer.module.modules()
        if isinstance(module, Counting)
    ]
    return found


def assert_same_bits(got: Any, want: Any) -> None:
    gots, wants = tree_leaves(got), tree_leaves(want)
    assert len(gots) == len(wants)
    for one, other in zip(gots, wants, strict=True):
        assert type(one) is type(other)
        if isinstance(one, Tensor):
            assert one.requires_grad == other.requires_grad
            assert one.detach().numpy().tobytes() == other.detach().numpy().tobytes()
        else:
            assert one == other


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("cuts", [(), (1,), (2,), (1, 2, 3, 4)], ids=str)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_recomputing_changes_no_bit(name: str, cuts: tuple[int, ...], schedule: str) -> None:
    # Given the same stages with and without recomputation
    job = job_of(name)

    # When both are trained
    got, want = (run(job, cuts, again, schedule) for again in (True, False))

    # Then outputs, flags, gradients, weights, buffers and attributes are alike, all along
    assert len(want) > 2 * 3 * 2 * (len(cuts) + 1)
    assert_same_bits(got, want)


@contextmanager
def saved_tensors() -> Iterator[list[Any]]:
    """(Weak reference to what stands for it in the graph, bytes) of each tensor that is kept."""

    class Box:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor

    boxes: list[Any] = []

    def pack(tensor: Tensor) -> Any:
        box = Box(tensor.detach())
        boxes.append((weakref.ref(box), tensor.untyped_storage().nbytes()))
        return box

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda box: box.tensor):
        yield boxes


def live_bytes(boxes: list[Any]) -> int:
    return sum(num_bytes for box, num_bytes in boxes if box() is not None)


class Remembering(nn.Module):
    """Holds its last result, graph and all, as tutorials of attention do."""

    def forward(self, value: Tensor) -> Tensor:
        self.weights = value.softmax(-1)
        self.more = {"of": [self.weights], "pair": (self.weights, 1)}
        return value * self.weights


@pytest.mark.parametrize("again", [False, True])
def test_nothing_of_the_graph_is_kept_between_the_passes(again: bool) -> None:
    # Given a stage whose layers keep activations, one of them in attributes
    def model() -> nn.Module:
        return double(
            nn.Linear(WIDTH, 64), nn.GELU(), Remembering(), nn.Linear(64, WIDTH), nn.Tanh()
        )

    stage = make_stages(make_job(model=model), (4,), recompute=again)[0]
    gc.disable()  # what is let go goes at once, and not with the next collection
    try:
        with saved_tensors() as boxes:
            # When micro-batches have been forward, and then backward
            kept = []
            for k in range(3):
                stage.forward(step=0, micro_batch=k, value=torch.ones(4, WIDTH).double())
                kept.append(live_bytes(boxes))
            made = len(boxes)
            for k in range(3):
                stage.backward(micro_batch=k, gradient=torch.ones(4, WIDTH).double())
    finally:
        gc.enable()
    # Then autograd keeps nothing in between if the stage recomputes, and makes each graph twice
    if again:
        assert kept == [0, 0, 0]
        assert len(boxes) == 2 * made
    else:
        assert 0 < kept[0] < kept[1] < kept[2]
        assert len(boxes) == made
    assert stage.layers[2].module.weights.requires_grad is not again


def test_the_received_value_itself_is_kept_and_no_copy() -> None:
    first, second = make_stages(job_of("in place"), (1,), recompute=True)
    value = crossed(
        first.forward(step=0, micro_batch=0, value=torch.randn(4, WIDTH, dtype=torch.float64))
    )
    before = value.detach().clone()
    second.forward(step=0, micro_batch=0, value=value, target=torch.tensor([0, 1, 2, 3]))
    assert torch.equal(value, before)
    kept = second._in_flight[0]
    assert kept.call.value is value  # type: ignore[union-attr]
    assert kept.state == {}  # type: ignore[union-attr]


def test_only_state_that_changes_is_kept() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.ones(100, 100))
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, value: Tensor) -> Tensor:
            self.calls += 1
            return value * self.mask[0, 0]

    table = Table()
    state = ModuleState(table.modules())
    before = state.take()
    table(torch.ones(3))
    changed = state.changed(before)
    buffers = changed[0]["_buffers"].content
    assert buffers["mask"].content is None
    assert buffers["calls"].content.item() == 0
    state.put(changed)
    assert table.calls.item() == 0
    assert state.changed(state.take()) == {}


def calls(stage: Stage) -> list[int]:
    counted = []
    for layer in stage.layers:
        layer.module.register_forward_hook(lambda *_: counted.append(1))
    return counted


def test_a_forward_pass_is_run_again_only_where_something_wants_its_graph() -> None:
    # Given a frozen stage in front of one that trains
    first, second = make_stages(job_of("frozen"), (2,), recompute=True)
    ran, ran_second = calls(first), calls(second)
    value = first.forward(step=0, micro_batch=0, value=torch.ones(4, WIDTH).double())
    second.forward(step=0, micro_batch=0, value=value, target=torch.tensor([0, 1, 2, 3]))
    # When they go backward
    gradient = second.backward(micro_batch=0)
    assert first.backward(micro_batch=0, gradient=gradient) is None
    # Then the frozen one has run once, and there is no gradient
    assert gradient is None
    assert (len(ran), len(ran_second)) == (2, 2 * 3)
    # And a micro-batch that weighs nothing, or whose gradient is none, is not run again either
    second.forward(step=0, micro_batch=1, value=value, scale=0.0, target=torch.tensor([0] * 4))
    second.backward(micro_batch=1)
    assert len(ran_second) == 9
    middle = make_stages(job_of("nested"), (1, 2), recompute=True)[1]
    ran = calls(middle)
    middle.forward(step=0, micro_batch=0, value=torch.ones(4, WIDTH).double().requires_grad_())
    nothing = (None, {"mask": None, "of": [None, None, None]})
    assert middle.backward(micro_batch=0, gradient=nothing) is None
    assert len(ran) == 1
    assert middle.num_in_flight == 0


def test_errors_come_from_the_first_pass_and_name_the_layer() -> None:
    job = make_job(model=lambda: double(nn.Linear(WIDTH, 4)), loss=lambda o, t: o.sum() / 0)
    (stage,) = make_stages(job, (), recompute=True)
    with pytest.raises(LossError, match=r"is -?inf"):
        stage.forward(step=3, micro_batch=1, value=torch.ones(4, WIDTH).double())
    assert stage.num_in_flight == 0


def test_an_error_in_the_second_pass_leaves_the_state_as_it_was() -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, value: Tensor) -> Tensor:
            self.calls += 1
            if broken:
                raise RuntimeError("no second time")
            return value

    broken = False
    Fails.__qualname__ = "Fails"
    job = make_job(model=lambda: double(nn.Linear(WIDTH, 4), Fails(), nn.ReLU()))
    first = make_stages(job, (2,), recompute=True)[0]
    first.forward(step=0, micro_batch=0, value=torch.ones(4, WIDTH).double())
    broken = True
    with pytest.raises(RuntimeError, match="no second time") as caught:
        first.backward(micro_batch=0, gradient=torch.ones(4, 4).double())
    assert caught.value.__notes__ == ["in layer 1 (1: Fails)"]
    assert first.layers[1].module.calls == 1


Named = namedtuple("Named", "inputs mask")


def test_a_twin_is_the_same_in_memory_of_its_own() -> None:
    row = torch.randn(5)
    value = Named(
        inputs=[row.expand(3, 5), row[::2], torch.randn(4, 6).t(), row.clone().requires_grad_()],
        mask={"a": row, "same": row, "n": np.arange(3), "empty": torch.ones(0, 3)},
    )
    other = twin(value)
    assert type(other) is Named
    for one, two in zip(tree_leaves(list(value)), tree_leaves(list(other)), strict=True):
        if isinstance(one, Tensor):
            assert torch.equal(one, two)
            assert (one.stride(), one.requires_grad) == (two.stride(), two.requires_grad)
            assert one.numel() == 0 or one.data_ptr() != two.data_ptr()
    assert other.mask["a"] is other.mask["same"]
    other.mask["n"][0] = 7
    assert value.mask["n"].tolist() == [0, 1, 2]
    # A row of a large table is copied, and not the table.
    assert twin(torch.ones(1000, 1000)[3]).untyped_storage().nbytes() == 4000


def test_inputs_that_cannot_be_copied_are_refused() -> None:
    (stage,) = make_stages(job_of("plain"), (), recompute=True)
    with pytest.raises(ModelError, match=r"cannot be copied.*generator.*leave this stage out"):
        stage.forward(step=0, micro_batch=0, value=(one for one in ()))
