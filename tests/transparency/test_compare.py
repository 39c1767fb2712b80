"""The comparison helper must be able to fail."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.transparency.compare import EXACT, assert_equal_tensors


def wide(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


WANT = {"a": wide(1.0, 1e-9), "zero": wide(0.0, 1e-18)}


@pytest.mark.parametrize(
    ("change", "equal"),
    [
        ({}, True),
        ({"a": wide(1.0 + 5e-13, 1e-9)}, True),
        ({"a": wide(1.0, 1e-9 + 5e-13)}, True),
        ({"a": wide(1.0 + 2e-12, 1e-9)}, False),
        ({"a": wide(1.0, float("nan"))}, False),
        ({"zero": wide(5e-13, 0.0)}, True),
        ({"zero": wide(2e-12, 0.0)}, False),
        ({"zero": None}, False),
        ({"a": torch.tensor([1.0, 1e-9])}, False),
        ({"a": torch.tensor([[1.0, 1e-9]]).double()}, False),
        ({"more": torch.zeros(1)}, False),
    ],
)
def test_equal_is_what_the_design_says(change: dict[str, Any], equal: bool) -> None:
    got = {**WANT, **change}
    if equal:
        assert_equal_tensors(got, WANT, EXACT)
    else:
        with pytest.raises(AssertionError):
            assert_equal_tensors(got, WANT, EXACT)


def test_none_equals_none_alone() -> None:
    assert_equal_tensors({"a": None}, {"a": None}, EXACT)
    with pytest.raises(AssertionError):
        assert_equal_tensors({"a": torch.zeros(1)}, {"a": None}, EXACT)
