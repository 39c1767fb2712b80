from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from funcpipe.model import rng


def draw() -> tuple[float, float, float]:
    return float(torch.rand(())), random.random(), float(np.random.rand())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((0, 0, 0, 0), 11387097660619314862),
        ((7, 1, 2, 3), 10016608620410896252),
        ((7, 1, 2, rng.DATA), 14199485658598066805),
        ((2**32 - 1, 10**6, 12, 345), 3362427987875632003),
    ],
)
def test_derived_seeds_never_change(arguments: tuple[int, ...], expected: int) -> None:
    assert rng.derive_seed(*arguments) == expected


def test_every_argument_changes_the_seed_in_all_its_bits() -> None:
    seeds = {
        rng.derive_seed(seed, step, micro_batch, layer)
        for seed in range(4)
        for step in range(8)
        for micro_batch in range(8)
        for layer in range(-3, 5)
    }
    assert len({seed & 0xFFFF_FFFF for seed in seeds}) == 4 * 8 * 8 * 8
    ones = sum(seed.bit_count() for seed in seeds) / len(seeds)
    assert 31 < ones < 33


def test_one_scope_gives_the_same_numbers_whatever_was_drawn_before() -> None:
    with rng.preserved():
        rng.scope(1, 2, 3, 4)
        first = draw()
        draw()
        rng.scope(1, 2, 3, 4)
        again = draw()
        rng.scope(1, 2, 3, 5)
        other = draw()
    assert again == first
    assert all(one != two for one, two in zip(other, first, strict=True))


def test_the_surrounding_generators_go_on_as_if_nothing_had_happened() -> None:
    rng.seed_all(5)
    draw()
    want = draw()
    rng.seed_all(5)
    draw()

    def failing() -> None:
        with rng.preserved():
            rng.scope(1, 2, 3, 4)
            draw()
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        failing()

    assert draw() == want


def test_seeding_equals_what_a_script_would_do() -> None:
    with rng.preserved():
        rng.seed_all(11)
        ours = draw()
        torch.manual_seed(11)
        random.seed(11)
        np.random.seed(11)
        assert draw() == ours
