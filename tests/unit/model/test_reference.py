"""The yardstick itself, against a training loop as a tutorial would write it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from funcpipe.errors import LossError
from funcpipe.model.reference import reference
from tests.transparency.compare import EXACT, assert_equal_tensors
from tests.unit.model.support import double, make_job, make_samples, mlp


def test_it_is_a_plain_training_loop() -> None:
    torch.manual_seed(7)
    model = mlp()
    torch.manual_seed(7)
    samples = make_samples(10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses, gradients = [], {}
    for start in (0, 4, 8, 0, 4, 8):
        part = samples[start : start + 4]
        optimizer.zero_grad()
        loss = F.cross_entropy(
            model(torch.stack([value for value, _ in part])),
            torch.tensor([target for _, target in part]),
        )
        loss.backward()
        gradients = gradients or {n: p.grad.clone() for n, p in model.named_parameters()}  # type: ignore[union-attr]
        optimizer.step()
        losses.append(loss.item())

    job = make_job(
        model=mlp,
        train_data=lambda: make_samples(10),
        eval_data=lambda: make_samples(10),
        batch_size=4,
        epochs=2,
        shuffle=False,
        metrics={"first": lambda output, target: (target == 0).double().mean()},
    )
    found = reference(job)

    assert list(found.losses) == losses
    assert all(torch.equal(found.state_dict[n], t) for n, t in model.state_dict().items())
    assert_equal_tensors(found.gradients, gradients, 0)
    with torch.no_grad():
        output = model(torch.stack([value for value, _ in samples]))
    want = F.cross_entropy(output, torch.tensor([target for _, target in samples])).item()
    assert found.metrics == pytest.approx({"loss": want, "first": 0.3}, rel=EXACT)


def test_micro_batches_change_nothing_but_rounding() -> None:
    job = make_job(model=mlp, train_data=lambda: make_samples(20))
    whole = reference(job, steps=3)
    for size in (1, 3, 5):
        parts = reference(job, size, steps=3)
        assert_equal_tensors(parts.gradients, whole.gradients, EXACT)
        assert_equal_tensors(parts.state_dict, whole.state_dict, EXACT)


def test_it_leaves_no_hooks_and_needs_something_to_learn_from() -> None:
    kept: list[nn.Module] = []

    def model() -> nn.Module:
        kept.append(double(nn.Linear(6, 4)))
        return kept[-1]

    reference(make_job(model=model), steps=1)
    assert not kept[0][0]._forward_pre_hooks  # type: ignore[index]
    nothing: Any = make_job(model=model, loss_weight=lambda target: 0.0)
    with pytest.raises(LossError, match="whole batch is 0"):
        reference(nothing, steps=1)
