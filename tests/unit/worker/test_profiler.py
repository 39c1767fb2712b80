"""A function that measures, in this process: what it leaves in the store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from funcpipe.worker.profiler import main
from funcpipe.worker.profiler_bytes import HEAP_FACTOR
from tests.unit.worker.profiled import JOB, ROOT, Stored

BYTE_FIELDS = {
    *("parameter_bytes", "trained_bytes", "optimizer_bytes", "activation_bytes", "output_bytes"),
    *("output_gradient_bytes", "workspace_bytes", "fixed_workspace_bytes"),
    "step_workspace_bytes",
}


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    return Stored(tmp_path)


def test_a_whole_model_is_measured(stored: Stored) -> None:
    # When a function measures all layers
    task = stored.task()
    assert stored.profile(task) == 0
    found = stored.said(stored.run.profile_result(task.token))
    # then every layer has a time for every size, and exact bytes
    layers = found["layers"]
    assert [layer["name"] for layer in layers] == ["0 Linear", "1 ReLU", "2 Linear"]
    for layer in layers:
        assert len(layer["forward_s"]) == len(layer["backward_s"]) == 2
        assert min(layer["forward_s"] + layer["backward_s"]) >= 0
        assert set(layer) == {"name", "forward_s", "backward_s", "step_s", *BYTE_FIELDS}
    assert [layer["parameter_bytes"] for layer in layers] == [4 * 9 * 16, 0, 4 * 17]
    assert [layer["trained_bytes"] for layer in layers] == [4 * 9 * 16, 0, 4 * 17]
    assert [layer["optimizer_bytes"] for layer in layers] == [8 * 9 * 16 + 8, 0, 8 * 17 + 8]
    # the input; nothing; the ReLU's result, and output and target for the loss
    kept = [layer["activation_bytes"] for layer in layers]
    assert kept == [HEAP_FACTOR * num for num in (32, 0, 64 + 4 + 4)]
    assert [layer["output_bytes"] for layer in layers] == [64, 64, 4]
    assert layers[1]["step_s"] == 0
    assert found["input_bytes"] == 32
    assert found["sizes"] == [1, 4]
    assert all(number >= 2 for number in found["passes"])
    assert found["base_bytes"] > 0
    assert set(found["transport"]) == {
        *("put_cpu_s", "get_cpu_s", "put_byte_cpu_s", "get_byte_cpu_s", "miss_cpu_s"),
    }
    # and how far it was, was told; of what it tried nothing is left
    assert stored.said(stored.run.profile_progress(task.token, 0)) == {"size": 1, "done": 0.5}
    assert stored.said(stored.run.profile_progress(task.token, 1)) == {"size": 4, "done": 1.0}
    assert list(stored.store.list(f"{ROOT}/profile/part/")) == []


def test_ranges_are_measured_one_after_the_other(stored: Stored) -> None:
    # Given the first two layers measured, and without bytes and requests
    first = stored.task(0, 2, memory=False, transport=False)
    assert stored.profile(first) == 0
    found = stored.said(stored.run.profile_result(first.token))
    assert found["transport"] is None
    assert not any(set(layer) & BYTE_FIELDS for layer in found["layers"])
    # when the last one is measured, then it takes what those have left
    last = stored.task(2, 3)
    assert stored.profile(last) == 0
    (layer,) = stored.said(stored.run.profile_result(last.token))["layers"]
    assert layer["activation_bytes"] == HEAP_FACTOR * (64 + 4 + 4)
    assert layer["output_gradient_bytes"] == 4


def test_a_range_whose_input_nobody_left_says_so(stored: Stored) -> None:
    task = stored.task(2, 3)
    assert stored.profile(task) == 1
    said = stored.said(stored.run.profile_fault(task.token))
    assert "nobody has left an input of 1 samples for layer 2" in said["message"]


def test_an_error_of_the_users_code_is_told(tmp_path: Path) -> None:
    stored = Stored(tmp_path, JOB.replace("FAILS = False", "FAILS = True"))
    task = stored.task()
    assert stored.profile(task) == 1
    said = stored.said(stored.run.profile_fault(task.token))
    assert said["type"] == "UserCodeError"
    assert "no such loss" in said["message"]


def test_a_payload_of_another_version_is_refused(
    stored: Stored, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main({**json.loads(stored.task().encode()), "format": 9}) == 1
    assert "deploy again" in capsys.readouterr().out
