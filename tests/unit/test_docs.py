"""What the documents show is what the project does: commands, code, outputs, links and tables."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from funcpipe import cli
from funcpipe.cli_plan_options import GROUPS, flag_of
from funcpipe.cli_plan_options import OPTIONS as PLANNED
from funcpipe.driver.options import RunOptions
from funcpipe.emulator.server import KINDS, OPEN_DOORS
from funcpipe.partitioner.plan import Plan
from funcpipe.partitioner.platform import load_platform
from funcpipe.planning import PlanOptions
from funcpipe.report.summary import read_summary
from funcpipe.report.text import summary_text
from funcpipe.schedule.count import requests_per_step
from funcpipe.schedule.order import compute_order, to_text
from funcpipe.schedule.program import Shape, training_program

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/*.md"))
    if path.is_file()
)
README = (ROOT / "README.md").read_text(encoding="utf-8")
DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Block:
    """A fenced block; `mark` is the comment right before it, as in ``<!-- example: run -->``."""

    mark: str
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        lines = re.findall(r"^\$ (.*)$", self.text, re.M)
        return [line.partition(" #")[0].strip() for line in lines]

    @property
    def output(self) -> str:
        return re.sub(r"^\$ .*\n", "", self.text, flags=re.M)


def blocks(text: str) -> Iterator[Block]:
    for mark, language, body in re.findall(
        r"(?:^<!-- (.*?) -->\n)?^```(\w*)\n(.*?)^```$", text, re.M | re.S
    ):
        yield Block(mark, language, body)


def marked(mark: str, text: str = README) -> list[Block]:
    names = [(block, block.mark.partition(": ")[2].split()) for block in blocks(text)]
    found = [block for block, words in names if words[:1] == [mark]]
    assert found, f"no block is marked {mark!r}"
    return found


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


def test_every_block_that_could_be_wrong_is_checked() -> None:
    for text in (README, DESIGN):
        for block in blocks(text):
            assert block.mark or block.language == "text", block
            assert block.mark or "──>" in block.text, block
    marks = {block.mark.partition(":")[0] for text in (README, DESIGN) for block in blocks(text)}
    assert marks == {"", "example", *PRINTED}


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
    # When all that it says is planned
    lines = [line for block in marked("plan") for line in block.commands]
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


def test_the_doctor_says_what_the_readme_shows(capsys: pytest.CaptureFixture[str]) -> None:
    # Given
    (block,) = marked("doctor")
    (command,) = block.commands
    # When
    cli.main(shlex.split(command)[1:])
    # Then it tells of the same limits, whatever this machine can do about them
    feature = r"^  (\S(?: ?\S)*) {2,}\S"
    real = capsys.readouterr().out.partition("Limits of a platform")[2]
    assert len(re.findall(feature, block.text, re.M)) >= 8
    assert re.findall(feature, block.text, re.M) == re.findall(feature, real, re.M)


def test_the_platforms_that_are_named_exist() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
    named = set(re.findall(r"(?:--emulate|funcpipe platforms) ([a-z./][\w./-]*)", text))
    named.remove("./mine.json")
    assert {"none", "aws-lambda", "aws-lambda-arm64"} < named
    for name in named:
        load_platform(str(ROOT / name) if "/" in name else name)


def command_lines(text: str) -> list[str]:
    """Every ``funcpipe ...`` in fenced or indented blocks."""
    return re.findall(r"^(?:\$ | {4})(funcpipe [^#\n]*?)(?: +#.*)?$", text, re.M)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_is_understood(path: Path) -> None:
    for line in command_lines(path.read_text(encoding="utf-8")):
        arguments = cli.build_parser().parse_args(shlex.split(line)[1:])
        command = shlex.split(line)[1]
        names, options = {"train": (cli.OPTIONS, RunOptions), "plan": (PLANNED, PlanOptions)}.get(
            command, ((), PlanOptions)
        )
        options.of({name: getattr(arguments, name) for name in names if hasattr(arguments, name)})
        if hasattr(arguments, "job") and arguments.job.startswith("examples/"):
            assert (ROOT / arguments.job).is_file()


def test_commands_are_found() -> None:
    assert len(command_lines(README)) >= 4
    assert command_lines("$ funcpipe train x.py   # so\n    funcpipe report r\n") == [
        "funcpipe train x.py",
        "funcpipe report r",
    ]


def test_the_options_in_the_text_exist() -> None:
    parsed = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "funcpipe").glob("cli*.py")
    )
    known = {"--" + name.replace("_", "-") for name in (*cli.OPTIONS, *PLANNED)} | {"--help"}
    known |= set(re.findall(r'"(--[a-z-]+)"', parsed))
    ours = re.sub(r"systemd-run .*?\bfuncpipe", "", README, flags=re.S)
    used = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", ours))
    assert len(used) > 10
    assert used <= known


def test_every_option_of_plan_is_in_the_table_with_its_field() -> None:
    text = (ROOT / "docs" / "planning.md").read_text(encoding="utf-8")
    table = text.partition("| option | field |")[2].partition("\n\n")[0]
    rows = [re.findall(r"`([^`]+)`", cell) for row in table.splitlines() for cell in row.split("|")]
    pairs = {
        pair
        for flags, names in pairwise(rows)
        if flags and flags[0].startswith("--")
        for pair in zip(flags, names, strict=True)
    }
    groups = (options for group in GROUPS.values() for options in group.items())
    assert pairs == {(flag_of(name, settings), name) for name, settings in groups}


def test_make_has_the_targets_that_are_named() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lines = [line for block in marked("make") for line in block.commands]
    named = [line.split()[1] for line in lines if line.startswith("make ")]
    assert named == ["demo", "test", "install"]
    assert [name for name in named if not re.search(rf"^{name}:", makefile, re.M)] == []


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", text):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name) if name else path
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.M)
            assert anchor in map(slug, headings), target


def test_the_open_doors_are_those_of_the_code() -> None:
    # Given the README's table
    rows = re.findall(r"^\| ([\w, ]+) \| (S3|volume) \| (`/.*`) \| (.*) \|$", README, re.M)
    told = {
        (server.strip(), port.lower(), path, shows)
        for servers, port, paths, shows in rows
        for server in servers.split(",")
        for path in re.findall(r"`(/[^`]*)`", paths)
    }
    # Then it is what the servers declare
    assert told == {
        (name, door.role, door.path, door.shows) for name, doors in OPEN_DOORS.items()
        for door in doors
    }  # fmt: skip
    assert {row[0] for row in told} == set(KINDS)


# -- what the design document says the code prints -------------------------------------------


def printed_order(arguments: dict[str, Any]) -> str:
    return to_text(compute_order(**{"replica": 0, "degree": 1, **arguments}))


def shape_of(degrees: list[int]) -> Shape:
    return Shape(degrees=tuple(degrees), trains=(True,) * len(degrees))


def printed_program(arguments: dict[str, Any]) -> str:
    return training_program(shape_of(arguments.pop("degrees")), **arguments).text()


def printed_requests(arguments: dict[str, Any]) -> str:
    counts = requests_per_step(shape_of(arguments.pop("degrees")), **arguments)
    return ", ".join(f"{name} {number}" for name, number in counts.items())


PRINTED: dict[str, Callable[[dict[str, Any]], str]] = {
    "order": printed_order,
    "program": printed_program,
    "requests": printed_requests,
}


def test_the_design_shows_what_the_code_prints() -> None:
    checked = []
    for block in blocks(DESIGN):
        name, _, arguments = block.mark.partition(": ")
        if name in PRINTED:
            assert block.text.strip() == PRINTED[name](json.loads(arguments))
            checked.append(name)
    assert set(checked) == set(PRINTED)
    assert len(checked) >= 6


def test_the_design_lists_every_kind_of_key() -> None:
    from funcpipe import keys

    drawn = re.findall(r"^    (RUN/\S+)", keys.__doc__ or "", re.M)
    assert len(drawn) >= 12
    table = set(re.findall(r"`(RUN/[^`]+)`", DESIGN))
    assert set(drawn) <= table


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_lines_stay_readable(path: Path) -> None:
    for line in path.read_text(encoding="utf-8").splitlines():
        assert len(line) <= 130 or line.startswith(("|", "error:")), line
