"""What is said about options of a wrong kind, before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from funcpipe.driver.options import RunOptions
from funcpipe.errors import FuncpipeError, PlanError, PlatformError


def test_figures_may_be_given_as_what_they_are() -> None:
    options = RunOptions.of(
        {"set": {"time.limit_s": 60, "tmp.default_mb": "512", "gpu.kind": None, "a": [1, 2]}}
    )

    assert options.set == {
        "time.limit_s": "60",
        "tmp.default_mb": "512",
        "gpu.kind": "null",
        "a": "[1, 2]",
    }


def test_a_platform_s_file_may_be_a_path() -> None:
    assert RunOptions.of({"emulate": Path("a/mine.json")}).emulate == "a/mine.json"


@pytest.mark.parametrize(
    ("fields", "kind", "told"),
    [
        ({"emulate": None}, PlatformError, "emulate is None"),
        ({"emulate": 5}, PlatformError, "emulate is 5"),
        ({"set": {5: "6"}}, PlatformError, "given as a mapping"),
        ({"set": [("a", "b")]}, PlatformError, "given as a mapping"),
        ({"dilation": True}, PlatformError, "dilation is True"),
        ({"dilation": 0.5}, PlatformError, "dilation is 0.5"),
        ({"dilation": float("nan")}, PlatformError, "dilation is nan"),
        ({"memory_mb": 512.0}, PlanError, "memory_mb is 512.0"),
        ({"memory_mb": []}, PlanError, r"memory_mb is \[\]"),
        ({"memory_mb": {512}}, PlanError, "memory_mb is"),
        ({"memory_mb": [512, 0]}, PlanError, r"memory_mb\[1\] is 0"),
        ({"emulate_seed": 1.5}, PlatformError, "emulate_seed is 1.5"),
        ({"emulate": "none", "memory_mb": 512}, PlatformError, "memory_mb with emulate='none'"),
        ({"emulate": "none", "dilation": 2}, PlatformError, "dilation with emulate='none'"),
        ({"emulate": "none", "set": {"time.limit_s": 5}}, PlatformError, "set with emulate="),
        ({"recompute": True}, PlanError, "recompute is True; give 'none', 'all', or the numbers"),
        ({"recompute": "always"}, PlanError, "recompute is 'always'"),
        ({"recompute": ()}, PlanError, r"recompute is \(\)"),
        ({"recompute": -1}, PlanError, r"recompute is \(-1,\)"),
        ({"recompute": (0, 1.0)}, PlanError, r"recompute is \(0, 1.0\)"),
        ({"recompute": [0, [1]]}, PlanError, r"recompute is \(0, \[1\]\)"),
        ({"recompute": (0, 0)}, PlanError, r"each once, counted from 0"),
        ({"recompute": {0}}, PlanError, "recompute is {0}"),
    ],
)
def test_what_cannot_be_is_refused(
    fields: dict[str, Any], kind: type[FuncpipeError], told: str
) -> None:
    with pytest.raises(kind, match=told):
        RunOptions.of(fields)


@pytest.mark.parametrize(
    ("given", "taken"), [("all", "all"), ("none", "none"), (1, (1,)), ([0, 2], (0, 2)), (0, (0,))]
)
def test_stages_that_recompute_are_named_in_one_way(given: object, taken: object) -> None:
    assert RunOptions.of({"recompute": given}).recompute == taken
