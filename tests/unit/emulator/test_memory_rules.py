"""What decides about a function's memory, with numbers of real processes."""

from __future__ import annotations

import pytest

from funcpipe.emulator.base_memory import BaseMemory
from funcpipe.emulator.memory_watch import Resident, excess, held_bytes, inherited_bytes

MB = 1 << 20
TEMPLATE = BaseMemory(anon_bytes=210 * MB, file_bytes=78 * MB)


def resident(anon: int, file: int, **more: int) -> Resident:
    sizes = {name: size * MB for name, size in more.items()}
    return Resident(anon_bytes=anon * MB, file_bytes=file * MB, **sizes)


@pytest.mark.parametrize(
    ("found", "base", "held_mb"),
    [
        (resident(210, 5), TEMPLATE, 288),  # just forked
        (resident(392, 31), TEMPLATE, 470),  # has trained
        (resident(392, 90), TEMPLATE, 470),  # has mapped more: pages of files can be dropped
        (resident(210, 78), BaseMemory(), 288),  # started afresh
        (resident(300, 31, shared_bytes=50), TEMPLATE, 428),
        (resident(300, 31, others_bytes=40), TEMPLATE, 418),
    ],
)
def test_held_is_what_a_fresh_process_would_hold(
    found: Resident, base: BaseMemory, held_mb: int
) -> None:
    assert held_bytes(found, base) == held_mb * MB


@pytest.mark.parametrize(
    ("anon", "charged", "base", "inherited_mb"),
    [
        (210, 0, TEMPLATE, 288),
        (392, 199, TEMPLATE, 271),
        (500, 500, BaseMemory(), 0),
        (500, 501, BaseMemory(), 0),  # the two are read one after the other
    ],
)
def test_inherited_is_what_is_held_and_not_charged(
    anon: int, charged: int, base: BaseMemory, inherited_mb: int
) -> None:
    assert inherited_bytes(anon * MB, charged * MB, base) == inherited_mb * MB


@pytest.mark.parametrize(
    ("held", "limit", "text"),
    [
        (1769 * MB, 1769 * MB, None),
        (1769 * MB + 1, 1769 * MB, "held 1,770 MB of 1,769 MB"),
        (1830 * MB, 1769 * MB, "held 1,830 MB of 1,769 MB"),
        (1769 * MB + 9, 1769 * MB + 8, "held 1,770 MB of 1,769 MB"),
    ],
)
def test_an_excess_is_told_in_megabytes(held: int, limit: int, text: str | None) -> None:
    assert excess(held, limit) == text


def test_a_base_of_less_than_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="less than nothing"):
        BaseMemory(anon_bytes=-1)
