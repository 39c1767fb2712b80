"""`funcpipe plan`: what it parses, what it prints where, what it writes, and how it ends."""

from __future__ import annotations

import argparse
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

import funcpipe as fp
from funcpipe import cli, cli_plan, cli_plan_file, planning
from funcpipe.cli_plan_options import GROUPS, OPTIONS, flag_of
from funcpipe.errors import Infeasible
from funcpipe.partitioner import planner
from funcpipe.partitioner.baselines import BASELINES
from funcpipe.partitioner.importers import format_names
from funcpipe.partitioner.plan import METHODS, SCHEDULES, Plan
from funcpipe.partitioner.solvers import SOLVERS
from funcpipe.partitioner.space import RECOMPUTE
from funcpipe.planning import PlanOptions

ROOT = Path(__file__).resolve().parents[2]
FEW = ["--micro-batch-sizes", "2,4", "--degrees", "1,2", "--tiers-mb", "1769,3538"]
Shown = pytest.CaptureFixture[str]


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of three layers, in the working folder."""
    layer = {
        "forward_s": [[0.2]],
        "backward_s": [[0.4]],
        "parameter_bytes": 4e6,
        "activation_bytes": 1e6,
        "output_bytes": 1e5,
    }
    layers = tuple(fp.LayerProfile(name=name, **layer) for name in ("a", "b", "c"))  # type: ignore[arg-type]
    fp.ModelProfile(name="toy", layers=layers, batch_size=8).save(tmp_path / "toy.json")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FUNCPIPE_TRACEBACK", raising=False)
    return "toy.json"


def run(capsys: Shown, *arguments: str, code: int = 0) -> tuple[str, str]:
    """What goes to stdout and to stderr."""
    assert cli.main(["plan", *arguments]) == code
    shown = capsys.readouterr()
    return shown.out, shown.err


def refused(capsys: Shown, *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main(["plan", *arguments])
    shown = capsys.readouterr()
    assert (ended.value.code, shown.out) == (2, "")
    return shown.err


# -- options -----------------------------------------------------------------------------------


def actions() -> dict[str, argparse.Action]:
    parser = cli.build_parser()
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return {action.dest: action for action in commands.choices["plan"]._actions}


def test_the_options_are_those_of_planning() -> None:
    own = {"help", "profile", "output", "compare", "pareto", "json", "traceback"}

    assert set(OPTIONS) == {one.name for one in fields(PlanOptions)}
    assert set(actions()) == {*OPTIONS, *own}


def test_every_option_explains_itself_and_its_default() -> None:
    defaults = {one.name: one.default for one in fields(PlanOptions)}
    for name in OPTIONS:
        text, default = str(actions()[name].help), defaults[name]
        assert len(text) > 10
        if isinstance(default, tuple):
            default = ",".join(map(str, default))
        if default is not None and default is not MISSING and not isinstance(default, bool):
            number = f"{default:g}" if isinstance(default, float) else default
            assert re.search(rf"\(default: {re.escape(str(number))}\b", text), name


def test_choices_are_those_that_exist() -> None:
    known = actions()
    assert set(known["solver"].choices or ()) == set(SOLVERS)
    assert set(known["format"].choices or ()) == set(format_names())
    assert tuple(known["recompute"].choices or ()) == RECOMPUTE
    assert all(name in str(known["schedules"].help) for name in SCHEDULES)
    assert all(name in str(known["sync"].help) for name in METHODS)


def test_every_option_reaches_the_planner(
    profile: str, monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    # Given every option at once
    seen: list[PlanOptions] = []

    def ask(path: str, options: PlanOptions) -> Any:
        assert path == profile
        seen.append(options)
        raise Infeasible("so")

    monkeypatch.setattr(planning, "question", ask)
    given = (
        "--objective weighted:0.3 --max-time 2.5 --max-cost 0.01 --platform mine.json "
        "--set price.put=0 --set price.get=0 --batch-size 64 --steps 100 --micro-batch-sizes 1,2 "
        "--degrees 1,2,4 --per-stage --schedules gpipe,1f1b --depths 1,3 --recompute choose "
        "--sync pipelined,three-phase --tiers-mb 512,1769 --max-functions 9 --min-stages 2 "
        "--max-stages 5 --solver highs --time-limit 7 --merge 20 --format pipedream --samples 32 "
        "--slowdown 60 --parallel 0.9 --profile-vcpus 0.5,2 --optimizer-factor 0"
    )
    # When
    run(capsys, "--profile", profile, *given.split(), code=1)
    # Then all of them are there
    assert seen == [
        PlanOptions(
            objective="weighted:0.3",
            max_time_s=2.5,
            max_cost=0.01,
            platform="mine.json",
            set={"price.put": "0", "price.get": "0"},
            batch_size=64,
            num_steps=100,
            micro_batch_sizes=(1, 2),
            degrees=(1, 2, 4),
            per_stage=True,
            schedules=("gpipe", "1f1b"),
            depths=(1, 3),
            recompute="choose",
            sync=("pipelined", "three-phase"),
            tiers_mb=(512, 1769),
            max_functions=9,
            min_stages=2,
            max_stages=5,
            solver="highs",
            time_limit_s=7.0,
            merge=20,
            format="pipedream",
            samples=32,
            slowdown=60.0,
            parallel=0.9,
            profile_vcpus=(0.5, 2.0),
            optimizer_factor=0.0,
        )
    ]
    flags = {flag_of(name, one) for group in GROUPS.values() for name, one in group.items()}
    assert flags == set(re.findall(r"--[a-z-]+", given))


def test_the_examples_in_the_help_work(capsys: Shown, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        cli.main(["plan", "--help"])
    examples = re.findall(r"^  funcpipe plan (.*)$", capsys.readouterr().out, re.M)
    assert len(examples) == 5
    for line in examples:
        placed = line.replace("examples/", f"{ROOT}/examples/")
        placed = placed.replace("plan.json", str(tmp_path / "plan.json"))
        out, _ = run(capsys, *placed.split())
        assert "bert-large" in out or "digits" in out
    assert Plan.load(tmp_path / "plan.json").num_layers == 11


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("", "--profile"),
        ("--profile toy.json --degree 2", "unknown option --degree; did you mean --degrees?"),
        ("--profile toy.json --degrees 1,x", "--degrees: expected a whole number from 1"),
        ("--profile toy.json --max-time -1", "expected a number above 0, found '-1'"),
        ("--profile toy.json --max-cost nan", "expected a number above 0, found 'nan'"),
        ("--profile toy.json --time-limit inf", "expected a number above 0, found 'inf'"),
        ("--profile toy.json --max-time 1_0", "expected a number above 0, found '1_0'"),
        ("--profile toy.json --parallel ٠.٥", "expected a number from 0, found '٠.٥'"),
        ("--profile toy.json --slowdown 1e400", "expected a number above 0, found '1e400'"),
        (f"--profile toy.json --batch-size 1{'0' * 25}", "from 1 to 1,000,000,000, found '10000"),
        (f"--profile toy.json --degrees 1,{'9' * 5000}", f"found '{'9' * 56}..."),
        (f"--profile toy.json --solver {'9' * 5000}", "choose from 'auto', 'search'"),
        ("--profile toy.json --steps 1_0", "from 1 to 1,000,000,000, found '1_0'"),
        ("--profile toy.json -o /dev/stdout --json", "-o /dev/stdout: the answer is printed there"),
        (
            "--profile toy.json -o /proc/self/fd/1",
            "-o /proc/self/fd/1: the answer is printed",
        ),
        ("--profile toy.json --optimizer-factor -1", "expected a number from 0, found '-1'"),
        ("--profile toy.json --solver glpk", "'glpk'"),
        ("--profile toy.json --set price.put", "such as network.latency_s=0.05"),
        ("--profile toy.json --pareto --compare", "--pareto and --compare do not go together"),
        ("--profile toy.json --pareto -o x", "--pareto and -o do not go together"),
        ("--profile toy.json --pareto --objective min-time", "--pareto and --objective"),
        ("--profile toy.json --pareto --solver cbc", "--pareto and --solver"),
    ],
    ids=lambda value: value[:60],
)
def test_wrong_usage_ends_with_2_and_says_what_is_wrong(
    profile: str, capsys: Shown, line: str, told: str
) -> None:
    err = refused(capsys, *line.split())

    assert told in " ".join(err.split())
    assert max(map(len, err.splitlines())) < 600
    assert "invalid count" not in err


# -- what it prints ----------------------------------------------------------------------------


def test_the_plan_goes_to_stdout(profile: str, capsys: Shown) -> None:
    out, err = run(capsys, "--profile", profile, *FEW)

    assert out.startswith("Plan for toy on aws-lambda, min-cost: ")
    assert re.search(r"^stage 0 \|[FBU.fbu]+\|$", out, re.M)
    assert err == ""


def test_json_stands_alone_and_holds_it_all(profile: str, capsys: Shown) -> None:
    out, err = run(capsys, "--profile", profile, "--json", "--objective", "weighted:0.5", *FEW)

    told = json.loads(out)
    plan = Plan.from_dict(told["plan"])
    assert plan == fp.plan(
        profile, objective="weighted:0.5", micro_batch_sizes=(2, 4), degrees=(1, 2),
        tiers_mb=(1769, 3538),
    )  # fmt: skip
    assert told["estimate"] == fp.evaluate(plan, profile).to_dict()
    assert (told["objective"], told["status"]) == ("weighted:0.5", "optimal")
    assert told["bound"] <= told["value"]
    assert {"gap", "seconds", "solver", "notes"} < set(told)
    assert "compared" not in told
    assert err == ""


def test_others_are_shown_beside_it(profile: str, capsys: Shown) -> None:
    out, _ = run(capsys, "--profile", profile, "--compare", *FEW)
    told = json.loads(run(capsys, "--profile", profile, "--compare", "--json", *FEW)[0])

    assert re.search(r"^this plan +[\d.]+ +1\.00 ", out, re.M)
    names = [one["name"] for one in told["compared"]]
    assert len(names) >= 5
    assert all(re.search(rf"^{name}[ :]", out, re.M) for name in names)
    best = told["value"] * (1 - 1e-9)
    # What has a reason beside it is not within the choices, or no plan at all
    rivals = [one["value"] for one in told["compared"] if not one["why"]]
    assert len(rivals) >= 3
    assert min(rivals) >= best


def test_a_comparison_says_on_a_terminal_what_it_is_at(
    profile: str, monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    # Given a terminal
    told: list[str] = []

    @contextmanager
    def terminal(_: Any) -> Iterator[Any]:
        yield told.append

    monkeypatch.setattr(cli_plan, "_searching", terminal)
    # When
    run(capsys, "--profile", profile, "--compare", *FEW)
    # Then
    assert told == [f"comparing: what {name} would choose" for name in BASELINES]


def test_ctrl_c_ends_the_comparison_and_the_plan_stays(
    profile: str, monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    # Given Ctrl-C in the third one
    names = list(BASELINES)

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setitem(BASELINES, names[2], interrupted)
    line = ("--profile", profile, "--compare", *FEW)
    # When
    out, err = run(capsys, *line)
    told = json.loads(run(capsys, *line, "--json", "-o", "plan.json")[0])
    # Then
    note = f"Ctrl-C ended the comparison, which lacks {', '.join(names[2:])}"
    assert err == ""
    assert out.startswith("Plan for toy on aws-lambda, min-cost: ")
    assert note in " ".join(out.split())
    assert [one["name"] for one in told["compared"]] == names[:2]
    assert note in told["notes"]
    assert Plan.load(Path("plan.json")).num_layers == 3


def test_the_notes_are_the_same_in_text_json_and_plan(profile: str, capsys: Shown) -> None:
    line = ("--profile", profile, "--batch-size", "7", *FEW)
    out, _ = run(capsys, *line)
    told = json.loads(run(capsys, *line, "--json")[0])

    assert any("the time is an upper bound" in note for note in told["notes"])
    assert any("network.latency_s" in note for note in told["notes"])
    shown = " ".join(out.split())
    assert all(f"note {note}" in shown for note in told["notes"])
    assert told["plan"]["predicted"]["notes"] == told["notes"]


def test_where_the_solver_knows_no_1f1b_a_proof_is_said_to_be_among_gpipe_plans(
    profile: str, capsys: Shown
) -> None:
    line = ("--profile", profile, *FEW)
    alone, _ = run(capsys, *line, "--solver", "cbc")
    told = json.loads(run(capsys, *line, "--solver", "cbc", "--json")[0])
    chosen, _ = run(capsys, *line, "--solver", "cbc", "--schedules", "gpipe")
    both, _ = run(capsys, *line)

    assert alone.splitlines()[0].endswith(": proven optimal among gpipe plans")
    assert told["schedules"] == ["gpipe"]
    assert told["notes"][-2].startswith("among gpipe plans: cbc knows no other")
    assert chosen.splitlines()[0].endswith(": proven optimal")
    assert "among gpipe plans" not in chosen + both


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--pareto"], "(among gpipe plans; one of 1f1b may do: ask for one plan instead of all)"),
        (["--solver", "cbc"], "(among gpipe plans; one of 1f1b may do: the solver search looks at"),
        (["--pareto", "--schedules", "gpipe"], None),
        ([], None),
    ],
)
def test_what_no_gpipe_plan_can_keep_one_of_1f1b_may(
    profile: str, capsys: Shown, options: list[str], told: str | None
) -> None:
    line = ("--profile", profile, "--max-time", "0.001", *FEW, *options)
    _, err = run(capsys, *line, code=1)

    assert (told or "") in err
    assert ("among gpipe plans" in err) == (told is not None)


def test_what_an_imported_profile_takes_for_granted_is_told(capsys: Shown) -> None:
    path = str(ROOT / "tests" / "profiles" / "pipedream" / "alexnet.graph.txt")
    line = ("--profile", path, "--degrees", "1", "--micro-batch-sizes", "64", "--slowdown", "60")
    out, _ = run(capsys, *line)
    told = json.loads(run(capsys, *line, "--pareto", "--json")[0])

    assert "one vCPU takes 60 times as long as the measured device" in " ".join(out.split())
    assert any("60 times as long as the measured device" in note for note in told["notes"])


def test_a_front_is_a_table_or_json(profile: str, capsys: Shown) -> None:
    out, _ = run(capsys, "--profile", profile, "--pareto", *FEW)
    told = json.loads(run(capsys, "--profile", profile, "--pareto", "--json", *FEW)[0])

    assert told["complete"] is True
    assert told["schedules"] == ["gpipe"]
    assert "plans of 1f1b were not looked at: one may be both faster and cheaper" in told["notes"]
    assert out.startswith("gpipe plans for toy on aws-lambda than which no other gpipe plan ")
    assert len(told["plans"]) >= 2
    assert len(re.findall(r"^[\d.]+ +\$", out, re.M)) >= len(told["plans"])
    times = [one["step_s"] for one in told["plans"]]
    assert times == sorted(times)
    for one in told["plans"]:
        estimate = fp.evaluate(Plan.from_dict(one["plan"]), profile)
        assert one["step_s"] == pytest.approx(estimate.step_s)


@pytest.mark.parametrize("options", [[], ["--json"], ["--pareto"]])
def test_no_plan_is_a_failure_with_its_reason(
    profile: str, capsys: Shown, options: list[str]
) -> None:
    out, err = run(capsys, "--profile", profile, "--max-time", "0.001", *FEW, *options, code=1)

    assert out == ""
    assert err.startswith("error: ")
    assert len(err) > 30
    assert "Traceback" not in err
    assert "defect" not in err


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--profile gone.json", "gone.json"),
        ("--profile toy.json --platform aws-lamda", "did you mean aws-lambda?"),
        ("--profile toy.json --platform none", "no platform to plan for"),
        ("--profile toy.json --objective fast", "unknown objective 'fast'"),
        ("--profile toy.json --set price.pt=1", "price.put"),
        ("--profile toy.json --set price.put=1e300", "at least 0 and at most 1,000,000"),
        ("--profile toy.json --objective weighted:0_1", "unknown objective 'weighted:0_1'"),
        ("--profile toy.json --time-limit 1e300", "at most 31,622,400"),
        ("--profile toy.json --schedules 2f2b", "known: gpipe, 1f1b"),
    ],
)
def test_what_is_wrong_is_told(profile: str, capsys: Shown, line: str, told: str) -> None:
    out, err = run(capsys, *line.split(), code=1)

    assert out == ""
    assert told in err


def test_ctrl_c_without_a_plan_ends_with_130(
    profile: str, capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(planner, "plan_for", interrupted)

    assert run(capsys, "--profile", profile, code=130) == ("", "stopped: interrupted\n")


# -- the file ----------------------------------------------------------------------------------


def test_the_plan_is_written_and_can_be_read(profile: str, capsys: Shown) -> None:
    out, _ = run(capsys, "--profile", profile, "-o", "plan.json", *FEW, "--json")

    plan = Plan.load(Path("plan.json"))
    assert plan == Plan.from_dict(json.loads(out)["plan"])
    assert plan.predicted is not None
    assert plan.predicted["model"] == "toy"
    assert sorted(path.name for path in Path().iterdir()) == ["plan.json", "toy.json"]


def test_a_file_that_is_there_is_replaced_with_its_permissions(profile: str, capsys: Shown) -> None:
    # Given an older plan, named through a link
    old = Path("old.json")
    old.write_text("{}", encoding="utf-8")
    old.chmod(0o640)
    Path("link.json").symlink_to("old.json")
    # When
    run(capsys, "--profile", profile, "-o", "link.json", *FEW)
    # Then
    assert Path("link.json").is_symlink()
    assert Plan.load(old).num_layers == 3
    assert stat.S_IMODE(old.stat().st_mode) == 0o640


def test_a_device_is_written_into(profile: str, capsys: Shown) -> None:
    run(capsys, "--profile", profile, "-o", os.devnull, *FEW)

    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("nowhere/plan.json", "No such file or directory"),
        ("folder", "it is a folder"),
        ("toy.json/plan.json", "Not a directory"),
        ("toy.json", "it is the profile that is read"),
        ("link.json", "it is the profile that is read"),
        ("hard.json", "it is the profile that is read"),
        ("loop.json", "Too many levels of symbolic links"),
    ],
)
def test_a_file_that_cannot_be_written_is_told_before_the_search(
    profile: str, capsys: Shown, monkeypatch: pytest.MonkeyPatch, path: str, told: str
) -> None:
    Path("folder").mkdir()
    Path("link.json").symlink_to("toy.json")
    Path("hard.json").hardlink_to("toy.json")
    Path("loop.json").symlink_to("loop.json")
    monkeypatch.setattr(planner, "plan_for", lambda *_, **__: pytest.fail("it was searched"))

    out, err = run(capsys, "--profile", profile, "-o", path, code=1)

    assert out == ""
    assert err.startswith(f"error: cannot write the plan to {path}: ")
    assert told in err


@pytest.mark.parametrize(
    ("name", "told"), [("", "its name is empty"), ("a\0b", "its name has a NUL byte in it")]
)
def test_a_name_that_no_file_can_have_is_told(
    profile: str, capsys: Shown, name: str, told: str
) -> None:
    assert told in run(capsys, "--profile", profile, "-o", name, code=1)[1]


def test_a_link_to_standard_output_is_standard_output(profile: str, capsys: Shown) -> None:
    Path("out").symlink_to("/dev/stdout")
    Path("again").symlink_to("out")

    assert "the answer is printed there" in refused(capsys, "--profile", profile, "-o", "again")


def test_a_plan_that_fails_half_way_leaves_the_old_one(
    profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Path("plan.json")
    target.write_text("old", encoding="utf-8")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(fp.FuncpipeError, match="No space left on device"):
        cli_plan_file.write_output(target, "new")
    assert target.read_text(encoding="utf-8") == "old"
    assert sorted(path.name for path in Path().iterdir()) == ["plan.json", "toy.json"]


# -- then trained ------------------------------------------------------------------------------

JOB = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
import funcpipe as fp

def data():
    inputs = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))

job = fp.Job(
    model=lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)),
    loss=nn.functional.mse_loss,
    optimizer=lambda params: torch.optim.SGD(params, lr=0.05),
    train_data=data,
    batch_size=4,
)
"""


@pytest.mark.parametrize("recompute", ["never", "always"])
def test_a_plan_from_the_planner_is_trained(profile: str, recompute: str, capsys: Shown) -> None:
    # Given a plan of two stages for another batch than the job's
    asked = ("-o", "plan.json", "--min-stages", "2", "--recompute", recompute)
    run(capsys, "--profile", profile, *asked, *FEW)
    Path("job.py").write_text(JOB, encoding="utf-8")
    line = "train job.py --plan plan.json --emulate none --steps 2 --store s --run-dir out --json"
    # When
    done = subprocess.run(
        [sys.executable, "-m", "funcpipe", *line.split()],
        capture_output=True,
        text=True,
        check=False,
    )
    # Then the run keeps the whole plan, and says what of it has no meaning here
    assert done.returncode == 0, done.stderr
    told, plan = json.loads(done.stdout), Plan.load(Path("plan.json"))
    assert told["status"] == "done"
    assert {stage.recompute for stage in plan.stages} == {recompute == "always"}
    assert told["plan"] == plan.to_dict() == json.loads(Path("out/plan.json").read_text())
    notes = " ".join(told["notes"])
    assert "memory sizes do nothing here" in notes
    assert "batches of 8 samples, and the job has 4" in notes
