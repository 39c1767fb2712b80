"""Says which servers this run of the suite did without, and why."""

from __future__ import annotations

import pytest

from .backends import BACKENDS, S3_KINDS
from .servers import why_not


@pytest.mark.parametrize("kind", S3_KINDS)
def test_the_suite_covers(kind: str) -> None:
    if reason := why_not(kind):
        pytest.skip(reason)
    assert BACKENDS[kind].is_s3
