"""``funcpipe profile``: measure what the layers of a job's model take, for planning."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from funcpipe.cli_options import Figures, count, figure
from funcpipe.cli_plan_file import check_output, is_stdout, write_output
from funcpipe.partitioner.limits import shown

if TYPE_CHECKING:
    from rich.console import RenderableType

    from funcpipe.driver.profiling import Profiled

__all__ = ["GROUPS", "OPTIONS", "add_profile"]

MOST_REPEATS = 1000

_DESCRIPTION = """\
Measure what each layer of a job's model takes: time at several shares of CPUs and micro-batch
sizes, memory, and the bytes that cross a cut; on the functions of an emulated platform, with the
code that training runs. `funcpipe plan` plans with it. A profile is kept, and measured again only
if the model, the data's shapes, the platform or this machine has changed; what has is told.
"""
EXAMPLES = """\
examples:
  funcpipe profile examples/digits/job.py
      measure it, or show the profile that is kept
  funcpipe profile examples/digits/job.py -o digits.json
      and write it to a file, for `funcpipe plan --profile digits.json`
  funcpipe profile job.py --emulate aliyun-fc --tiers 2048,8192 --fresh
      for another platform, with two memory sizes, in any case anew

exit codes: 0 done, 1 failed, 2 wrong usage, 130 stopped (Ctrl-C)
"""


def _repeats(text: str) -> int:
    try:
        number = count(text)
    except argparse.ArgumentTypeError:
        number = 0
    if not 1 <= number <= MOST_REPEATS:
        raise argparse.ArgumentTypeError(
            f"expected a whole number from 1 to {MOST_REPEATS:,}, found {shown(text)}"
        )
    return number


def _counts(text: str) -> tuple[int, ...]:
    return tuple(count(part.strip()) for part in text.split(","))


# The fields of `ProfileOptions` in funcpipe.driver.profile_options: a test compares. `flag` where
# it is named otherwise.
GROUPS: dict[str, dict[str, dict[str, Any]]] = {
    "the platform": {
        "emulate": {"metavar": "NAME|FILE", "help": "a name that `funcpipe platforms` lists, or a "
                    "file of your own (default: aws-lambda)"},
        "set": {"type": figure, "action": Figures, "metavar": "FIGURE=VALUE", "help": "change a "
                "figure of it, such as network.latency_s=0.05; may be given several times"},
        "store": {"metavar": "STORE", "help": "where functions find the model: as for `funcpipe "
                  "train` (default: auto)"},
        "endpoint": {"metavar": "URL", "help": "with s3://: the server. Credentials come from "
                     "AWS_* variables"},
        "region": {"metavar": "R", "help": "with s3://: the bucket's region"},
        "threads": {"type": count, "metavar": "N", "help": "threads of the numerical libraries in "
                    "each function (default: what the platform gives a function of its memory)"},
    },
    "what is measured": {
        "tiers_mb": {"flag": "--tiers", "type": _counts, "metavar": "MB[,MB..]", "help": "memory "
                     "sizes, each with its share of CPUs (default: those of about 0.5, 1, 2 and 4 "
                     "vCPU, and the largest)"},
        "micro_batch_sizes": {"flag": "--micro-batches", "type": _counts, "metavar": "B[,B..]",
                              "help": "samples of a micro-batch (default: the batch and parts of "
                              "it, down to 1)"},
        "repeats": {"type": _repeats, "metavar": "N", "help": "passes of each micro-batch size, at "
                    "least (default: 5)"},
    },
}  # fmt: skip
OPTIONS = tuple(name for group in GROUPS.values() for name in group)


class _Run(Protocol):
    """What the command line keeps of a command while it runs."""

    def shown_by(self, progress: Any) -> AbstractContextManager[object]: ...

    def update(self, event: Mapping[str, Any]) -> None: ...


def add_profile(commands: Any, add_common: Callable[[argparse.ArgumentParser, str], None]) -> None:
    """Add the command to the subparsers `commands`; add_common: adds options that all have."""
    parser = commands.add_parser(
        "profile",
        help="measure what the layers of a job's model take, for planning",
        usage="funcpipe profile JOB [options]",
        description=_DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("job", metavar="JOB", help="path/to/job.py or package.module; :NAME after "
                        "it if the job in there is not called `job`")  # fmt: skip
    for title, options in GROUPS.items():
        group = parser.add_argument_group(title)
        for name, settings in options.items():
            rest = {key: value for key, value in settings.items() if key != "flag"}
            flag = settings.get("flag", "--" + name.replace("_", "-"))
            group.add_argument(flag, dest=name, default=argparse.SUPPRESS, **rest)
    group = parser.add_argument_group("the answer")
    group.add_argument("-o", "--output", metavar="FILE", help="write the profile to FILE, "
                       "replacing it, for `funcpipe plan --profile`")  # fmt: skip
    group.add_argument("--fresh", action="store_true", help="measure even if a profile is kept "
                       "that still holds")  # fmt: skip
    add_common(parser, "print it as JSON, alone, on stdout")
    parser.set_defaults(command=_profile, parser=parser)


def _profile(arguments: argparse.Namespace, run: _Run) -> int:
    from rich.console import Console

    from funcpipe import api
    from funcpipe.report.profile_progress import measuring_progress

    given = {name: getattr(arguments, name) for name in OPTIONS if hasattr(arguments, name)}
    output = arguments.output
    if output is not None and is_stdout(output):
        arguments.parser.error(
            f"-o {output}: the answer is printed there, and the two would be mixed; name a "
            "file, or take the profile from what --json prints"
        )
    # With --json standard output is the profile alone, whatever the job file prints.
    quiet = redirect_stdout(sys.stderr) if arguments.json else nullcontext()
    if output is not None:
        with quiet:
            job_file = str(api.job_file(arguments.job))
        check_output(output, job_file, what="profile", source="the job")
    with run.shown_by(measuring_progress(Console(stderr=True))), quiet:
        found = api.profiled(arguments.job, on_event=run.update, fresh=arguments.fresh, **given)
    if output is not None:
        text = json.dumps(found.profile.to_dict(), indent=1) + "\n"
        write_output(Path(output), text, what="profile")
    _show(found, output, as_json=arguments.json)
    return 0


def _show(found: Profiled, output: str | None, *, as_json: bool) -> None:
    if as_json:
        from funcpipe.report.plain import jsonable

        told = {
            "profile": found.profile.to_dict(),
            "cached": found.cached,
            "reasons": list(found.reasons),
            "path": None if found.path is None else str(found.path),
        }
        print(json.dumps(jsonable(told), allow_nan=False, indent=1))
        return
    from rich.console import Console

    from funcpipe.report.plan_text import print_parts

    print_parts(_parts(found, output), Console())


def _parts(found: Profiled, output: str | None) -> list[RenderableType]:
    from funcpipe.report.profile_text import profile_parts

    said = [("measured", f"now: {'; '.join(found.reasons)}")]
    if found.cached:
        told = found.profile.measured.get("at")
        at = told if isinstance(told, str) and told.isprintable() else "before"
        said = [("measured", f"{at}; it still holds (--fresh measures again)")]
    said += [("kept in", str(found.path))] if found.path is not None else []
    said += [("written to", output)] if output is not None else []
    return list(profile_parts(found.profile, said=said))
