"""What the documents show is what the project does: commands, code, outputs, links and tables."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from funcpipe import cli, cli_profile
from funcpipe.cli_plan_options import GROUPS, flag_of
from funcpipe.cli_plan_options import OPTIONS as PLANNED
from funcpipe.driver.options import RunOptions
from funcpipe.driver.profile_options import ProfileOptions
from funcpipe.emulator.server import KINDS, OPEN_DOORS
from funcpipe.partitioner.platform import load_platform
from funcpipe.planning import PlanOptions
from funcpipe.schedule.count import requests_per_step
from funcpipe.schedule.order import compute_order, to_text
from funcpipe.schedule.program import Shape, training_program

from .documents import DESIGN, DOCUMENTS, README, ROOT, blocks, marked


def test_every_block_that_could_be_wrong_is_checked() -> None:
    for text in (README, DESIGN):
        for block in blocks(text):
            assert block.mark or block.language == "text", block
            assert block.mark or "──>" in block.text, block
    marks = {block.mark.partition(":")[0] for text in (README, DESIGN) for block in blocks(text)}
    assert marks == {"", "example", *PRINTED}


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


OPTIONS: dict[str, tuple[tuple[str, ...], Any]] = {
    "train": (cli.OPTIONS, RunOptions),
    "plan": (PLANNED, PlanOptions),
    "profile": (cli_profile.OPTIONS, ProfileOptions),
}


def command_lines(text: str) -> list[str]:
    """Every ``funcpipe ...`` in fenced or indented blocks."""
    return re.findall(r"^(?:\$ | {4})(funcpipe [^#\n]*?)(?: +#.*)?$", text, re.M)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_is_understood(path: Path) -> None:
    for line in command_lines(path.read_text(encoding="utf-8")):
        arguments = cli.build_parser().parse_args(shlex.split(line)[1:])
        command = shlex.split(line)[1]
        names, options = OPTIONS.get(command, ((), PlanOptions))
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
