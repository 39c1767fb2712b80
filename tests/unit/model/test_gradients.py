from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from funcpipe.errors import JobError, ModelError
from funcpipe.model.gradients import FlatGradients
from funcpipe.model.optimizer import make_optimizer
from funcpipe.worker.memory import resident_bytes
from tests.unit.model.support import make_job


def parameters() -> list[tuple[str, nn.Parameter]]:
    return [
        ("a", nn.Parameter(torch.ones(2, 3))),
        ("frozen", nn.Parameter(torch.ones(4), requires_grad=False)),
        ("b", nn.Parameter(torch.ones(3, dtype=torch.float64))),
        ("c", nn.Parameter(torch.ones(5))),
        ("scalar", nn.Parameter(torch.ones(()))),
    ]


def test_gradients_accumulate_in_the_buffer_and_flags_follow_them() -> None:
    named = parameters()
    a, _, b, c, scalar = (parameter for _, parameter in named)
    gradients = FlatGradients(named)
    single, wide = gradients.buffers
    assert (single.numel(), wide.numel()) == (6 + 5 + 1 + 3, 3 + 1)

    for _ in range(2):
        (a.sum() * 2 + scalar * 3 + b.sum().float() * 0).backward()

    assert single.tolist() == [4.0] * 6 + [0.0] * 5 + [6.0] + [1.0, 0.0, 1.0]
    assert wide.tolist() == [0.0] * 3 + [1.0]  # a gradient of zeros is a gradient
    assert a.grad is not None
    assert a.grad.data_ptr() == single.data_ptr()

    gradients.finish()
    assert c.grad is None
    assert b.grad is not None
    assert named[1][1].grad is None

    gradients.zero()
    assert [int(buffer.count_nonzero()) for buffer in gradients.buffers] == [0, 0]
    assert c.grad is not None
    assert gradients.buffers[0] is single


def test_nothing_takes_memory_before_there_are_gradients() -> None:
    # given gradients of 200 MB, for a parameter that itself is one element
    weight = nn.Parameter(torch.ones(1).expand(50_000_000))
    before = resident_bytes()
    gradients = FlatGradients([("weight", weight)])
    new = resident_bytes() - before
    gradients.zero()
    assert new < 20e6
    assert resident_bytes() - before > 180e6
    assert gradients.buffers[0].data_ptr() % 64 == 0


def test_what_another_replica_touched_has_a_gradient_here() -> None:
    one, two = parameters(), parameters()
    here, there = FlatGradients(one), FlatGradients(two)
    two[3][1].sum().backward()
    for mine, other in zip(here.buffers, there.buffers, strict=True):
        mine.add_(other)
    here.finish()
    grad = one[3][1].grad
    assert grad is not None
    assert grad.tolist() == [1.0] * 5
    assert one[0][1].grad is None


def test_views_have_the_memory_order_of_their_parameters() -> None:
    weight = nn.Parameter(torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last))
    sliced = nn.Parameter(torch.randn(4, 4)[:, :2])
    FlatGradients([("weight", weight), ("sliced", sliced)])
    assert weight.grad is not None
    assert weight.grad.stride() == weight.stride()
    (weight.square().sum() + sliced.square().sum()).backward()
    assert torch.equal(weight.grad, 2 * weight.detach())
    assert sliced.grad is not None
    assert torch.equal(sliced.grad, 2 * sliced.detach())


def test_sparse_gradients_are_added_to_the_dense_buffer() -> None:
    embedding = nn.Embedding(5, 2, sparse=True)
    gradients = FlatGradients([("weight", embedding.weight)])
    embedding(torch.tensor([1, 1, 3])).sum().backward()
    assert gradients.buffers[0].tolist() == [0, 0, 2, 2, 0, 0, 1, 1, 0, 0, 1]


def test_a_gradient_that_a_hook_replaced_is_noticed() -> None:
    def drop(parameter: torch.Tensor) -> None:
        parameter.grad = None

    weight = nn.Parameter(torch.ones(2))
    weight.register_post_accumulate_grad_hook(drop)
    FlatGradients([("layer.weight", weight)])
    with pytest.raises(ModelError, match=r"gradient of layer\.weight was replaced"):
        weight.sum().backward()


def test_a_stage_without_trainable_parameters_has_no_optimizer() -> None:
    frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    assert make_optimizer(make_job(), []) == (None, None)
    assert make_optimizer(make_job(), [frozen]) == (None, None)


def test_the_optimizer_gets_all_parameters_in_order() -> None:
    own = [parameter for _, parameter in parameters()]
    given: list[Any] = []

    def factory(params: Any) -> Any:
        given.extend(params)
        return torch.optim.SGD(given, lr=0.1)

    made, scheduler = make_optimizer(
        make_job(
            optimizer=factory,
            lr_scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.5),
        ),
        own,
    )
    assert [id(one) for one in given] == [id(one) for one in own]
    assert made is not None
    assert scheduler is not None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"optimizer": lambda p: "sgd"}, "returned a str"),
        ({"optimizer": torch.optim.LBFGS}, r"LBFGS.*cannot step without closure"),
        (
            {"optimizer": lambda p: torch.optim.SGD([*p, nn.Parameter(torch.ones(9))])},
            r"1 tensors that are not among params \(the first has shape \(9,\)\)",
        ),
        ({"lr_scheduler": lambda o: None}, "returned a NoneType"),
        (
            {"lr_scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau},
            "cannot step without metrics",
        ),
    ],
)
def test_optimizers_that_would_not_step_rightly_are_refused(fields: Any, message: str) -> None:
    with pytest.raises(JobError, match=message):
        make_optimizer(make_job(**fields), [nn.Parameter(torch.ones(2))])
