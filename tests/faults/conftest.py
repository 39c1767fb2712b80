"""One driver that stays, for all tests of a module: a run has to clean up after itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite(f"{__package__}.harness")

from .harness import Driver  # noqa: E402


@pytest.fixture(scope="module")
def drivers() -> Iterator[list[Driver]]:
    made: list[Driver] = []
    yield made
    for one in made:
        one.close()


@pytest.fixture
def driver(drivers: list[Driver]) -> Driver:
    if not drivers or drivers[-1].broken:
        drivers.append(Driver())
    return drivers[-1]
