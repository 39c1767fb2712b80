"""What the README tells to run works, and prints what it shows."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from funcpipe import cli_plan
from funcpipe.partitioner.plan import Plan
from funcpipe.report.summary import read_summary
from funcpipe.report.text import summary_text

from .documents import README, ROOT, marked


def write_files(folder: Path) -> None:
    """The files that the README tells to save."""
    for block in marked("file"):
        (folder / block.mark.rpartition(" ")[2]).write_text(block.text, encoding="utf-8")


def run(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command of the README; trainings are cut short and go through a directory."""
    program, *arguments = shlex.split(line)
    start = {"funcpipe": [sys.executable, "-m", "funcpipe"], "python": [sys.executable]}[program]
    if arguments[0] == "train":
        arguments += ["--steps", "2", "--store", str(folder / "objects")]
    return subprocess.run(
        [*start, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


def test_what_the_readme_shows_works(tmp_path: Path) -> None:
    # Given the files of the README
    write_files(tmp_path)
    # When all that it says is run, in order
    lines = [line for block in marked("run") for line in block.commands]
    done = {line: run(line, tmp_path) for line in lines}
    # Then it works
    assert {line: one.stderr for line, one in done.items() if one.returncode != 0} == {}
    train, report, compare, emulated = done.values()
    assert report.stdout == train.stdout
    ours, plain = re.findall(r"[\d.]+", compare.stdout)
    assert float(ours) == pytest.approx(float(plain), abs=2e-6)
    # And the folder and the summary hold what the README says
    (folder,) = re.findall(r"--run-dir (\S+)", lines[0])
    files = re.findall(r"^\| `([\w./]+)` \| ", README.partition("run's folder")[2], re.M)[:7]
    assert {path.name for path in (tmp_path / folder).iterdir()} == {f.strip("/") for f in files}
    ((shown,),) = [marked("summary")]
    real = summary_text(read_summary(tmp_path / folder / "summary.json"))
    assert_rows_of(real, shown.text.partition("\n\n")[2], at_least=9)
    # And so does what it shows of an emulated platform
    shown_too = "\n".join(block.text for block in marked("emulated"))
    assert_rows_of(emulated.stdout, shown_too, at_least=15)
    (progress,) = marked("progress")
    told = set(map(shape_of_line, emulated.stderr.splitlines()))
    lines = [shape_of_line(line) for line in progress.text.splitlines()]
    assert {line for line in lines if line.startswith("N s ")} <= told


def test_what_the_readme_plans_is_what_comes(tmp_path: Path) -> None:
    # Given the clone's examples, and the README's script
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (script,) = marked("planning")
    (tmp_path / "choose.py").write_text(script.text, encoding="utf-8")
    # When all that it says is planned, but for what the help says too, and its test runs
    told = [line for block in marked("plan") for line in block.commands]
    lines = [line for line in told if f"\n  {line}\n" not in cli_plan.EXAMPLES]
    assert len(lines) >= 3
    done = {line: run(line, tmp_path) for line in [*lines, "python choose.py"]}
    # Then it works, and the first plan is the one that is shown, but for the time that it took
    assert {line: one.stderr for line, one in done.items() if one.returncode != 0} == {}
    (shown,) = marked("planned")
    assert without_seconds(done[lines[0]].stdout) == without_seconds(shown.text)
    assert Plan.load(tmp_path / "plan.json").num_layers == 11
    assert re.match(r"\d+ function\(s\): ", done["python choose.py"].stdout)


def without_seconds(text: str) -> str:
    """Of the search."""
    return re.sub(r"^(found by .* in) .* s$", r"\1 N s", text, flags=re.M)


def test_what_the_readme_says_of_latency_is_so(tmp_path: Path) -> None:
    # Given the two commands that differ in the latency only
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    lines = [line for block in marked("plan") for line in block.commands]
    (low,) = [line for line in lines if "network.latency_s" in line]
    same = low.partition(" --set")[0]
    assert same == lines[0]
    # When
    costs = [json.loads(run(f"{line} --json", tmp_path).stdout)["value"] for line in (low, same)]
    # Then they cost what it says
    (told,) = re.findall(r"cost \$([\d.]+) and not \$([\d.]+)\.$", README, re.M)
    assert [f"{cost:.5f}" for cost in costs] == list(told)


def assert_rows_of(real: str, shown: str, *, at_least: int) -> None:
    """Every row that is shown has its name in a row of the real text."""
    names = [re.split(r" {2,}", line)[0] for line in re.findall(r"^\S.*$", shown, re.M)]
    assert len(names) >= at_least
    assert [name for name in names if not re.search(rf"^{re.escape(name)} +", real, re.M)] == []


def shape_of_line(line: str) -> str:
    """With all numbers alike, and without the reason for a dilation, which the machine decides."""
    line = re.sub(r"(?<![A-Za-z])\d[\d.,]*", "N", " ".join(line.split()))
    return line.partition(", N x slower")[0]


def test_the_error_of_the_readme_is_the_one_that_comes(tmp_path: Path) -> None:
    # Given the README's job, with one label that is out of range
    write_files(tmp_path)
    job = tmp_path / "job.py"
    text = job.read_text(encoding="utf-8")
    bad = text.replace("inputs, ring)", "inputs, ring.index_fill(0, torch.arange(9, 1536), 3))")
    assert bad != text
    job.write_text(bad, encoding="utf-8")
    # When
    (block,) = marked("error")
    done = run(block.commands[0], tmp_path)
    # Then
    assert done.returncode == 1
    expected = re.sub(r"step \d+", "step N", block.output).strip()
    shown = re.sub(r"step \d+", "step N", done.stderr)
    missing = [line for line in expected.splitlines() if line not in shown.splitlines()]
    assert missing == [], done.stderr


def test_a_platform_forbids_what_the_readme_says(tmp_path: Path) -> None:
    # Given the README's job
    write_files(tmp_path)
    (block,) = marked("forbidden")
    # When
    done = run(block.commands[0], tmp_path)
    # Then: which stage is first is chance
    assert done.returncode == 1
    assert shape_of_line(block.output) in map(shape_of_line, done.stderr.splitlines())
