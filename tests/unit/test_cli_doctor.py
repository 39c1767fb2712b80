"""`funcpipe doctor local`: its table, its JSON and its exit code."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from funcpipe import cli
from funcpipe.emulator import capability, doctor
from funcpipe.emulator.capability import Findings, capabilities
from funcpipe.emulator.doctor import Check, Diagnosis, StoreFound, store_check

STORES = (
    StoreFound(kind="minio", path=None, how_to_get="ask a friend"),
    StoreFound(kind="seaweedfs", path="/opt/weed", how_to_get="pip"),
)
HEALTHY = Diagnosis(
    cpus=2.0,
    memory_bytes=8_000_000_000,
    memory_free_bytes=6_000_000_000,
    checks=(Check(name="torch", found="2.13.0"), store_check(STORES)),
    stores=STORES,
    capabilities=tuple(capabilities(Findings(root=True, cgroups={"memory": 2}))),
)


def run(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    diagnosis: Diagnosis,
    *options: str,
) -> tuple[int, str]:
    monkeypatch.setattr(doctor, "examine", lambda: diagnosis)
    code = cli.main(["doctor", "local", *options])
    return code, capsys.readouterr().out


def test_the_table_says_what_is_there_what_is_missing_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = run(monkeypatch, capsys, HEALTHY)

    assert code == 0
    words = " ".join(text.split())
    assert "CPUs 2 memory 8.0 GB, 6.0 GB of them free" in words
    assert "minio not found; ask a friend seaweedfs /opt/weed" in words
    for one in HEALTHY.capabilities:
        assert f"{one.feature} {one.how or 'NOT ENFORCED'}" in words
        assert not one.missing or f"note: {one.missing}" in words
        assert not one.remedy or f"to do: {one.remedy}" in words
    lacking = "vcpu, tmp size, read-only code, shared memory"
    assert text.endswith(f"\nRuns are possible; not enforced, and could be: {lacking}.\n")
    assert max(map(len, text.splitlines())) <= 100


def test_the_json_holds_it_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = run(monkeypatch, capsys, HEALTHY, "--json")

    told = json.loads(text)
    assert (code, told["possible"], told["cpus"]) == (0, True, 2.0)
    assert [one["feature"] for one in told["capabilities"]][:2] == ["memory", "vcpu"]
    assert told["stores"][1] == {"kind": "seaweedfs", "path": "/opt/weed", "how_to_get": "pip"}


def test_exit_code_1_where_no_run_is_possible(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = Check(name="torch", found="none", problem="no module", remedy="get it", fatal=True)

    code, text = run(monkeypatch, capsys, replace(HEALTHY, checks=(bad,)))

    assert code == 1
    assert "NOT POSSIBLE: no module" in text
    assert "to do: get it" in text
    assert text.endswith("No runs are possible here: see NOT POSSIBLE above.\n")
    assert run(monkeypatch, capsys, replace(HEALTHY, checks=(bad,)), "--json")[0] == 1


def test_without_a_server_there_is_still_the_directory_store() -> None:
    check = store_check(STORES[:1])

    assert not check.fatal
    assert "--store FOLDER" in str(check.problem)
    assert check.remedy == "pip install 'funcpipe-train[emulator]'"


def test_it_examines_this_machine_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(capability, "_try_cgroups", lambda _: ({}, {}))
    diagnosis = doctor.examine(folder=tmp_path)

    assert diagnosis.possible
    assert diagnosis.cpus > 0
    assert 0 < diagnosis.memory_free_bytes <= diagnosis.memory_bytes
    assert [store.kind for store in diagnosis.stores] == ["minio", "seaweedfs", "juicefs"]
    assert [check.name for check in diagnosis.checks] == [
        *("torch", "temporary folder", "loopback ports", "store servers"),
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("found", [True, False])
def test_no_temporary_folder_is_fatal(monkeypatch: pytest.MonkeyPatch, found: bool) -> None:
    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", (lambda: "/nowhere") if found else none)

    check = doctor._temporary_folder(None)

    assert check.fatal
    assert check.found == ("/nowhere" if found else "none")
    assert check.remedy == "name another one in TMPDIR"


def test_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        cli.main(["doctor", "aws"])
    assert error.value.code == 2
    assert "local" in capsys.readouterr().err
