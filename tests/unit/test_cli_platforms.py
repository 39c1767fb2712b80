"""`funcpipe platforms`: the list, the figures of one, and its file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from funcpipe import cli
from funcpipe.partitioner.figures import KINDS
from funcpipe.partitioner.platform import PlatformSpec, known_platforms, load_platform

ROOT = Path(__file__).resolve().parents[2]


def run(line: str, capsys: pytest.CaptureFixture[str], *, code: int = 0) -> str:
    assert cli.main(["platforms", *line.split()]) == code
    shown = capsys.readouterr()
    return shown.err if code else shown.out


def test_it_lists_what_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    text = run("", capsys)
    assert [line.split()[0] for line in text.splitlines()[: len(known_platforms())]] == (
        known_platforms()
    )
    assert json.loads(run("--json", capsys)).keys() == set(known_platforms())


@pytest.mark.parametrize("name", known_platforms())
def test_it_shows_every_figure_and_its_origin(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    lines = run(name, capsys).splitlines()
    for figure in load_platform(name).figures:
        (at,) = (n for n, line in enumerate(lines) if line.startswith(f"{figure.path} "))
        if figure.value is not None:
            assert figure.unit in lines[at]
        if figure.is_verified:
            assert lines[at + 1] == f"    {figure.source}, {figure.date}"
        else:
            assert lines[at + 1] == f"    UNVERIFIED: {figure.unverified}"
        assert figure.note is None or lines[at + 2] == f"    note: {figure.note}"


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("price.gb_s", "0.0000166667 USD per GB-s of memory (1 GB = 1,024 MB)"),
        ("price.put", "0.000005 USD per request"),
        ("memory.most_mb", "10,240 MB"),
        ("invocation.retry_delays_s", "60, 120 s"),
        ("network.up_bytes_per_s", "70,000,000 bytes/s at every memory size"),
        ("cpu.cores", "visible cores: 2 at 128 MB, 3 at 3,009 MB, 4 at 5,308 MB, 5 at 7,077 MB, "
                      "6 at 8,846 MB (in steps)"),
        ("price.bills_initialisation", "yes"),
        ("gpu.kind", "none"),
    ],
)  # fmt: skip
def test_values_are_written_as_one_reads_them(
    capsys: pytest.CaptureFixture[str], path: str, shown: str
) -> None:
    (line,) = re.findall(rf"^{re.escape(path)} +(.*)$", run("aws-lambda", capsys), re.M)
    assert line == shown


def test_changes_are_shown_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    text = run("aws-lambda --set network.latency_s=0.05 --set time.limit_s=none", capsys)
    assert re.search(r"^network\.latency_s +0\.05 s per request\n    set by the user$", text, re.M)
    assert re.search(r"^time\.limit_s +none\n    set by the user$", text, re.M)


def test_its_file_is_a_start_for_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given the file that is printed, saved
    text = run("aliyun-fc --json --set time.limit_s=5", capsys)
    file = tmp_path / "mine.json"
    file.write_text(text, encoding="utf-8")
    # When it is shown
    again = run(f"{file} --json", capsys)
    # Then it is the same platform
    assert again == text
    assert PlatformSpec.from_dict(json.loads(text)).time.limit_s == 5


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("aws-lamda", "error: there is no platform 'aws-lamda'; did you mean aws-lambda?"),
        ("nothing.json", "error: platform nothing.json: cannot be read"),
        ("aws-lambda --set time.limit=5", "did you mean time.limit_s?"),
        ("aws-lambda --set time.limit_s=x", "time.limit_s was set to 'x'"),
    ],
)
def test_what_is_wrong_is_told(capsys: pytest.CaptureFixture[str], line: str, told: str) -> None:
    assert told in run(line, capsys, code=1)


@pytest.mark.parametrize(
    "line", ["--set time.limit_s=5", "aws-lambda --set time.limit_s", "aws-lambda --set =5", "a b"]
)
def test_wrong_usage(capsys: pytest.CaptureFixture[str], line: str) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["platforms", *line.split()])
    shown = capsys.readouterr()
    assert (ended.value.code, shown.out) == (2, "")
    assert shown.err.startswith("usage: funcpipe platforms")


def test_the_examples_in_the_help_are_understood(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["platforms", "--help"])
    examples = re.findall(r"^  funcpipe platforms ?(.*)$", capsys.readouterr().out, re.M)
    assert len(examples) == 3
    for line in examples:
        run(line.partition(" >")[0], capsys)


def test_the_document_explains_every_figure_with_its_unit() -> None:
    text = (ROOT / "docs" / "platforms.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+\.\w+)` \| (.*?) \| (.*?) \|$", text, re.M)
    assert [(path, unit) for path, unit, _ in rows] == [
        (path, kind.unit or "-") for path, kind in KINDS.items()
    ]
    assert all(meaning for _, _, meaning in rows)


def test_the_example_in_the_document_is_a_figure() -> None:
    text = (ROOT / "docs" / "platforms.md").read_text(encoding="utf-8")
    found = re.findall(r"^```json\n(.*?)^```$", text, re.M | re.S)
    assert len(found) >= 2
    data = load_platform("aws-lambda").to_dict()
    for block in found:
        data["figures"].update(json.loads(block))
    PlatformSpec.from_dict(data)
