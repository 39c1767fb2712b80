"""For every test: one thread, so that bits do not depend on the machine's cores."""

import os

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

# Files of tests/unit that run whole programs. They come first, and the many short files after all
# others, so that no worker is left with a long file when there is nothing else to do.
LONG = ("test_readme", "test_cli_plan", "test_baselines", "test_examples", "test_cli")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.stem not in LONG)
