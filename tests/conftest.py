"""For every test: one thread, so that bits do not depend on the machine's cores."""

import os

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

# Long files that would come late. They come first, and the many short files of tests/unit last, so
# that no worker is left with a long file when there is nothing else to do.
LONG = ("test_readme", "test_inline", "test_cli_plan", "test_baselines", "test_examples")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.stem not in LONG)
