"""What "equal to plain PyTorch" means, as numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

__all__ = ["EXACT", "EXACT_ADAM", "assert_equal_tensors"]

EXACT = 1e-12
"""Gradients of one step, and weights after five steps of SGD."""
EXACT_ADAM = 1e-10


def assert_equal_tensors(
    got: Mapping[str, Tensor | None], want: Mapping[str, Tensor | None], tolerance: float
) -> None:
    """Each tensor's max|got - want| is at most `tolerance` x max|want|.

    A tensor that is zero but for rounding (max|want| <= `tolerance` x the norm of all of `want`)
    is held against that norm instead. None equals None alone.
    """
    assert set(got) == set(want), f"names differ: {sorted(set(got) ^ set(want))}"
    squares = [float(b.double().square().sum()) for b in want.values() if b is not None]
    norm = math.sqrt(math.fsum(squares))
    for name, b in want.items():
        a = got[name]
        if a is None or b is None:
            assert a is None, f"{name}: got a tensor, want None"
            assert b is None, f"{name}: got None, want a tensor"
            continue
        assert a.shape == b.shape, f"{name}: got shape {tuple(a.shape)}, want {tuple(b.shape)}"
        assert a.dtype == b.dtype, f"{name}: got {a.dtype}, want {b.dtype}"
        if b.numel() == 0:
            continue
        size = float(b.double().abs().max())
        bound = tolerance * (norm if size <= tolerance * norm else size)
        error = float((a.double() - b.double()).abs().max())
        assert error <= bound, f"{name}: off by {error:.3g}, {error / (bound or 1):.3g} x the bound"
