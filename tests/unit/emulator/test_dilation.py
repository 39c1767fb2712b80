"""How much slower a platform runs so that this machine can be all of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from funcpipe.emulator.dilation import (
    STORE_COSTS,
    Demand,
    Dilation,
    Machine,
    StoreCost,
    choose_dilation,
    store_cost,
)

REMOTE = store_cost("s3")
TWO_CORES = Machine(cores=2)


def compute_only(vcpu: float, count: int = 1) -> list[Demand]:
    return [Demand(vcpu=vcpu, up_bytes_per_s=0, down_bytes_per_s=0)] * count


def factor(demands: list[Demand], machine: Machine = TWO_CORES, store: StoreCost = REMOTE) -> float:
    return choose_dilation(demands, machine, store).factor


@pytest.mark.parametrize(
    ("demands", "machine"),
    [
        ([], TWO_CORES),
        (compute_only(1.8), TWO_CORES),
        (compute_only(0.6, 3), TWO_CORES),  # 1.7999999999999998 and such are not 1.8
        (compute_only(0.1, 18), TWO_CORES),
        (compute_only(2.0), Machine(cores=2, share=1.0)),
    ],
)
def test_what_fits_runs_in_real_time(demands: list[Demand], machine: Machine) -> None:
    assert factor(demands, machine) == 1.0


@pytest.mark.parametrize(
    ("needed", "expected"),
    [
        (1.0001, 1.1),
        (1.1, 1.1),
        (4.61, 4.7),
        (4.7, 4.7),
        (9.9, 9.9),
        (9.91, 10.0),
        (15.01, 16.0),
        (99.5, 100.0),
        (101.0, 110.0),
        (1110.0, 1200.0),
    ],
)
def test_the_factor_is_rounded_up_to_two_digits(needed: float, expected: float) -> None:
    assert factor(compute_only(needed), Machine(cores=1, share=1.0)) == expected


def test_what_is_rounded_is_never_less_than_needed() -> None:
    for tenths in range(10, 5000, 7):
        needed = tenths / 10
        found = factor(compute_only(needed), Machine(cores=1, share=1.0))
        assert needed <= found <= needed * 1.1
        assert float(f"{found:.1e}") == found


def test_everything_at_once_counts_both_ways_and_the_store_too() -> None:
    # given four functions of 1 vCPU with 70 MB/s up and 40 MB/s down
    demands = [Demand(vcpu=1.0, up_bytes_per_s=70e6, down_bytes_per_s=40e6)] * 4
    # when SeaweedFS serves them: 4 x (70e6 x 13.4e-9 + 40e6 x 1.4e-9) = 3.976 cores
    dilation = choose_dilation(demands, TWO_CORES, store_cost("seaweedfs"))
    # then 7.976 of 1.8 cores are 4.43
    assert dilation == Dilation(
        factor=4.5,
        why="4 functions of 1.00 vCPU and the store's share of 3.98 cores need 7.98 of 2 cores, "
        "of which 90% may be used",
    )
    # and a store somewhere else costs nothing here: 4 / 1.8
    assert factor(demands, TWO_CORES, REMOTE) == 2.3


def test_a_function_larger_than_the_machine_forces_it() -> None:
    assert factor(compute_only(6.0), Machine(cores=4, share=1.0)) == 1.5
    assert factor(compute_only(6.0), Machine(cores=4, share=0.9)) == 1.7


def test_functions_of_different_sizes_are_all_named() -> None:
    demands = [*compute_only(0.5, 2), *compute_only(1.75)]
    machine = Machine(cores=2, share=1.0)
    assert choose_dilation(demands, machine, REMOTE) == Dilation(
        factor=1.4, why="1 function of 1.75 vCPU and 2 functions of 0.50 vCPU need 2.75 of 2 cores"
    )
    assert choose_dilation([], machine, REMOTE).why == "no functions need 0.00 of 2 cores"
    assert choose_dilation(compute_only(1), machine, REMOTE).why == (
        "1 function of 1.00 vCPU needs 1.00 of 2 cores"
    )


def test_stores_are_known_by_kind() -> None:
    assert store_cost("minio") == store_cost("juicefs") == STORE_COSTS["juicefs"]
    assert StoreCost(put_cpu_s_per_byte=0, get_cpu_s_per_byte=0) == REMOTE
    for cost in STORE_COSTS.values():
        assert cost.put_cpu_s_per_byte > cost.get_cpu_s_per_byte > 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: Demand(vcpu=-1.0, up_bytes_per_s=0, down_bytes_per_s=0),
        lambda: Demand(vcpu=1.0, up_bytes_per_s=float("inf"), down_bytes_per_s=0),
        lambda: Demand(vcpu=1.0, up_bytes_per_s=0, down_bytes_per_s=float("nan")),
        lambda: StoreCost(put_cpu_s_per_byte=-1e-9, get_cpu_s_per_byte=0),
        lambda: Machine(cores=0),
        lambda: Machine(cores=2, share=1.5),
        lambda: Dilation(factor=0.5, why=""),
    ],
)
def test_numbers_that_cannot_be_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"at least|above 0"):
        make()
