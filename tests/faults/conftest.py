"""One driver that stays, for all tests of a module: a run has to clean up after itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .harness import Driver


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    made = Driver()
    yield made
    made.close()
