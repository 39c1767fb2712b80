"""One running server of each kind for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from funcpipe.emulator.server import RunningServer, start_server

from .helpers import processes_with


@pytest.fixture(scope="module", params=["seaweedfs", "juicefs"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    folder: Path = tmp_path_factory.mktemp("store")
    with start_server(request.param, folder=folder) as running:
        yield running
    assert processes_with(str(folder)) == []
    assert list(folder.iterdir()) == []
