"""The command line: parse, call the API, print. It decides nothing about a run by itself."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from funcpipe import __version__
from funcpipe.cli_calibrate import add_calibrate
from funcpipe.cli_doctor import add_doctor
from funcpipe.cli_options import GROUPS, OPTIONS
from funcpipe.cli_output import OutputLost, watched_output
from funcpipe.cli_plan import add_plan
from funcpipe.cli_plan_options import BY_NAME, PLANNER, flag_of
from funcpipe.cli_platforms import add_platforms
from funcpipe.cli_profile import add_profile
from funcpipe.errors import FuncpipeError, Stopped

if TYPE_CHECKING:
    from funcpipe.report.progress import Progress
    from funcpipe.report.summary import Summary

__all__ = ["build_parser", "main"]

FAILED, USAGE = 1, 2
STOPPED = 128 + signal.SIGINT
PIPE_BROKEN = 128 + signal.SIGPIPE
RUNS = Path("runs")
MOST_USAGE_LETTERS = 500
MOST_LETTERS = 20_000  # of an error that is printed; the summary has all of it

_TRAIN = """\
Cut the job's model into stages, run each as functions that talk only through an object
store, and write the trained model. Where the cuts are, and what functions there are, is planned
from measurements of the layers, unless a plan or its shape is given. The run's folder gets
model.safetensors, summary.json, events.jsonl, plan.json and logs/.
"""
_TRAIN_EXAMPLES = """\
examples:
  funcpipe train job.py
      measure the layers, choose the cheapest plan and run it, over a local S3 server that comes
      and goes with the run
  funcpipe train job.py --objective min-time --max-functions 8
      the fastest plan with at most eight functions
  funcpipe train job.py --stages 2
      two stages, one function each, without measuring and planning
  funcpipe train job.py --stages 3 --replicas 2,2,1 --schedule 1f1b --in-flight 6
      three stages, two of them twice; six micro-batches in flight at the first one
  funcpipe train job.py --plan runs/20270105-101502-3fa2c1/plan.json --run-dir again
      with the plan of an earlier run, into the folder `again`
  funcpipe train my.package.module:job --store s3://bucket/prefix --endpoint http://127.0.0.1:9000
      a job in a module, over an S3 server that already runs; credentials from AWS_* variables
  funcpipe train job.py --steps 5 --json > summary.json
      five training steps; progress goes to stderr, the summary as JSON to stdout

exit codes: 0 done, 1 failed, 2 wrong usage, 130 stopped (Ctrl-C)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; its exit code. Raises SystemExit for --help, --version and wrong usage."""
    try:
        with watched_output():
            return _dispatch(argv)
    except BrokenPipeError:
        return PIPE_BROKEN
    except OutputLost as error:
        _say(f"error: cannot write to standard output: {error}")
        return FAILED


def _dispatch(argv: Sequence[str] | None) -> int:
    arguments = _parse(argv)
    trace = arguments.traceback or os.environ.get("FUNCPIPE_TRACEBACK", "0") not in ("", "0")
    run = _Run()
    try:
        return int(arguments.command(arguments, run))
    except (BrokenPipeError, OutputLost):
        raise
    except (KeyboardInterrupt, Exception) as error:  # noqa: BLE001 - told, its trace on demand
        return _explain(error, run, trace=trace)


# -- commands --------------------------------------------------------------------------------


def _train(arguments: argparse.Namespace, run: _Run) -> int:
    from rich.console import Console

    from funcpipe import api
    from funcpipe.cli_chosen import chosen_parts
    from funcpipe.report.plan_text import print_parts, width_of
    from funcpipe.report.profile_progress import measuring_progress
    from funcpipe.report.progress import progress_for

    names = (*OPTIONS, *PLANNER)
    given = {name: getattr(arguments, name) for name in names if hasattr(arguments, name)}
    run.as_json = arguments.json
    # With --json standard output is the summary alone, whatever the job file prints.
    with redirect_stdout(sys.stderr) if arguments.json else nullcontext():
        with run.shown_by(measuring_progress(Console(stderr=True))):
            chosen = api.choose(arguments.job, on_event=run.update, **given)
        if chosen is not None:
            print_parts(list(chosen_parts(chosen, width=width_of(Console()))), Console())
            print(flush=True)
            given = {name: given[name] for name in OPTIONS if name in given and name != "memory_mb"}
            given |= {"plan": chosen.answer.plan, "profile": chosen.profiled.profile}
        with run.shown_by(progress_for(Console(stderr=True))):
            summary = api.train(arguments.job, on_event=run.update, **given)
    _show(summary, as_json=arguments.json)
    return 0


def _report(arguments: argparse.Namespace, _: _Run) -> int:
    from funcpipe.report.events import read_events
    from funcpipe.report.remains import WHY, remains, remains_text
    from funcpipe.report.summary import read_summary

    folder = _run_folder(arguments.run)
    summary, events = folder / "summary.json", folder / "events.jsonl"
    if summary.is_file():
        _show(read_summary(summary), as_json=arguments.json)
    elif events.is_file():
        told = read_events(events)
        _say(f"{folder}: {WHY}")
        _print(_as_json(remains(told)) if arguments.json else remains_text(told))
    else:
        raise FuncpipeError(
            f"{folder} is not the folder of a run: it has neither summary.json nor events.jsonl"
        )
    return 0


def _run_folder(name: str) -> Path:
    """The folder that `name` is, or that the run of that id has in ``runs``."""
    for folder in (Path(name), RUNS / name):
        if folder.is_dir():
            return folder
    known = sorted(path.name for path in RUNS.iterdir() if path.is_dir()) if RUNS.is_dir() else []
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        hint = f"did you mean {near[0]}?"
    elif known:
        hint = f"the last ones in {RUNS} are {', '.join(known[-3:])}"
    else:
        hint = f"there is no {RUNS} folder with runs here"
    raise FuncpipeError(f"no run folder {name!r}, nor {str(RUNS / name)!r}; {hint}")


# -- output ----------------------------------------------------------------------------------


class _Run:
    """What the command has heard of the run: where it lies; and the display, while it is there."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.as_json = False
        self._progress: Progress | None = None

    def shown_by(self, progress: Progress) -> Self:
        self._progress = progress
        return self

    def update(self, event: Mapping[str, Any]) -> None:
        if event["kind"] == "run_started":
            self.folder = Path(event["folder"])
        if self._progress is not None:
            try:
                self._progress.update(event)
            except OSError:
                self._progress = None  # nobody looks any more; the training goes on

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            with contextlib.suppress(OSError):
                self._progress.__exit__(kind, error, trace)


def _show(summary: Summary, *, as_json: bool) -> None:
    if as_json:
        _print(_as_json(summary.to_dict()))
        return
    from rich.console import Console

    from funcpipe.report.text import print_summary

    print_summary(summary, Console())


def _as_json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, allow_nan=False, indent=1) + "\n"


def _print(text: str) -> None:
    print(text, end="")


def _say(text: str) -> None:
    """To stderr, which may be gone. Letters that would steer a terminal are shown and not sent."""
    if len(text) > MOST_LETTERS:
        text = f"{text[:MOST_LETTERS]} ... ({len(text):,} letters)"
    safe = "".join(one if one.isprintable() or one in "\n\t" else ascii(one)[1:-1] for one in text)
    with contextlib.suppress(OSError):
        print(safe, file=sys.stderr, flush=True)


def _explain(error: BaseException, run: _Run, *, trace: bool) -> int:
    """Tell about the error that ended the command; the exit code."""
    stopped = isinstance(error, KeyboardInterrupt | Stopped)
    if trace and not stopped:
        _say("".join(traceback.format_exception(error)).rstrip())
    if run.as_json and run.folder is not None and (run.folder / "summary.json").is_file():
        from funcpipe.report.summary import read_summary

        _show(read_summary(run.folder / "summary.json"), as_json=True)
    if stopped:
        text = str(error) or "interrupted"
        _say(text if text.startswith("stopped") else f"stopped: {text}")
    elif isinstance(error, FuncpipeError):
        _say(f"error: {error}")
    else:
        _say(f"error: unexpected {type(error).__name__}: {error}")
    if run.folder is not None:
        logs = run.folder / "logs"
        places = f"events.jsonl and {logs.name}/" if logs.is_dir() else "events.jsonl"
        _say(f"  what it did is written down in {run.folder}: {places}")
    if not trace and _is_ours(error):
        _say("  a defect of funcpipe, by all appearances; --traceback shows where it happened")
    return STOPPED if stopped else FAILED


def _is_ours(error: BaseException) -> bool:
    """Whether it is no error of the user's, the store's or the machine's."""
    if isinstance(error, KeyboardInterrupt | Stopped | OSError):
        return False
    if not isinstance(error, FuncpipeError):
        return True
    return type(error) is FuncpipeError and error.message.startswith("unexpected ")


# -- arguments -------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Takes no abbreviations, which would break when options are added."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["allow_abbrev"] = False
        super().__init__(*args, **kwargs)

    def options(self) -> list[str]:
        return [text for text in self._option_string_actions if text.startswith("--")]

    def refuse(self, extras: Sequence[str]) -> NoReturn:
        """Wrong usage: name what was not understood, and what it may have been meant for."""
        for text in extras:
            near = difflib.get_close_matches(text.partition("=")[0], self.options(), n=1)
            if text.startswith("--") and near:
                self.error(f"unknown option {text}; did you mean {near[0]}?")
        self.error(f"unrecognized arguments: {' '.join(extras)}")

    def error(self, message: str) -> NoReturn:
        """Ends with 2, without repeating all of what may have been pasted."""
        if len(message) > MOST_USAGE_LETTERS:
            half = MOST_USAGE_LETTERS // 2  # what was expected may stand at either end
            message = f"{message[:half]} ... {message[-half:]}"
        super().error(message)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    arguments, extras = build_parser().parse_known_args(argv)
    if extras:
        arguments.parser.refuse(extras)
    return arguments


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command; what it returns has `command`, a function, and `parser`."""
    parser = _Parser(
        prog="funcpipe",
        description="Train PyTorch models on serverless functions that talk only through an "
        "object store.",
        epilog="funcpipe COMMAND --help says more about each.",
    )
    parser.add_argument("--version", action="version", version=f"funcpipe {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_train(commands)
    add_profile(commands, _add_common)
    add_plan(commands, _add_common)
    _add_report(commands)
    add_calibrate(commands, _add_common, _run_folder)
    add_platforms(commands, _add_common)
    add_doctor(commands, _add_common)
    return parser


def _add_train(commands: Any) -> None:
    train = commands.add_parser(
        "train",
        help="train a job, then print what it did",
        usage="funcpipe train JOB [options]",
        description=_TRAIN,
        epilog=_TRAIN_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    train.add_argument("job", metavar="JOB", help="path/to/job.py or package.module; :NAME after "
                       "it if the job in there is not called `job`")  # fmt: skip
    for title, options in GROUPS.items():
        group = train.add_argument_group(title)
        for name, settings in options.items():
            option = "--" + name.replace("_", "-")
            group.add_argument(option, dest=name, default=argparse.SUPPRESS, **settings)
    group = train.add_argument_group(
        "the search for a plan, where none of the options of the plan above is given (see "
        "`funcpipe plan`)"
    )
    for name in PLANNER:
        settings = BY_NAME[name]
        rest = {key: value for key, value in settings.items() if key != "flag"}
        group.add_argument(flag_of(name, settings), dest=name, default=argparse.SUPPRESS, **rest)
    _add_common(train, "print the summary as JSON, alone, on stdout")
    train.set_defaults(command=_train, parser=train)


def _add_report(commands: Any) -> None:
    report = commands.add_parser(
        "report",
        help="print again what a run did",
        usage="funcpipe report RUN [options]",
        description="Print the summary of a run from its folder. A run that left none (its driver "
        "was killed, or it still goes on) is told from its events.",
    )
    report.add_argument("run", metavar="RUN", help="a run's folder, or its id: the folder's name "
                        "under runs/")  # fmt: skip
    _add_common(report, "print it as JSON")
    report.set_defaults(command=_report, parser=report)


def _add_common(parser: argparse.ArgumentParser, json_help: str) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help=json_help)
    group.add_argument("--traceback", action="store_true", help="show where in the code an error "
                       "came up (so does the variable FUNCPIPE_TRACEBACK=1)")  # fmt: skip
