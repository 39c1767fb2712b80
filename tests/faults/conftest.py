"""One driver that stays, for all tests of a module: nobody but the run itself cleans up after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .harness import Driver


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    made = Driver()
    yield made
    made.close()
