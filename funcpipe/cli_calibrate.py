"""``funcpipe calibrate``: a run beside what was predicted, and a profile corrected by it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from funcpipe.cli_plan_file import check_output, is_stdout, write_output

if TYPE_CHECKING:
    from rich.console import RenderableType

    from funcpipe.calibration.folder import Calibration

__all__ = ["add_calibrate"]

_DESCRIPTION = """\
Hold what a run took (time and dollars of a step, computation, transfers and memory of each stage)
beside what the performance model says of its plan, and write a profile that is corrected by it,
for the next `funcpipe plan --profile`. Needs no torch.
"""
_EXAMPLES = """\
examples:
  funcpipe calibrate runs/20270105-101502-3fa2c1 --profile digits.json -o better.json
      correct the profile that the plan was made with
  funcpipe plan --profile better.json
      plan again

exit codes: 0 done, 1 the run shows nothing or something is wrong, 2 wrong usage
"""


def add_calibrate(
    commands: Any,
    add_common: Callable[[argparse.ArgumentParser, str], None],
    run_folder: Callable[[str], Path],
) -> None:
    """Add the command to the subparsers `commands`; add_common: adds options that all have;
    run_folder: finds a run by what it is called."""
    parser = commands.add_parser(
        "calibrate",
        help="correct a profile by what a run took",
        usage="funcpipe calibrate RUN [options]",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", metavar="RUN", help="a run's folder, or its id: the folder's name "
                        "under runs/")  # fmt: skip
    parser.add_argument("--profile", metavar="FILE", help="what the plan was made with (default: "
                        "RUN/profile.json)")  # fmt: skip
    parser.add_argument("-o", "--output", metavar="FILE", help="where the corrected profile goes, "
                        "replacing what is there (default: RUN/calibrated.json)")  # fmt: skip
    add_common(parser, "print it as JSON, alone, on stdout")
    parser.set_defaults(
        command=lambda arguments, _: _calibrate(arguments, run_folder), parser=parser
    )


_LEFT = ("plan.json", "summary.json", "platform.json", "timeline.json", "events.jsonl",
         "profile.json", "model.safetensors")  # fmt: skip
"""Files of a run's folder."""


def _calibrate(arguments: argparse.Namespace, run_folder: Callable[[str], Path]) -> int:
    from funcpipe.calibration.folder import calibrate_run

    if arguments.output is not None and is_stdout(arguments.output):
        arguments.parser.error(
            f"-o {arguments.output}: the comparison is printed there, and the two would be mixed; "
            "name a file, or take the profile from what --json prints"
        )
    folder = run_folder(arguments.run)
    read = folder / "profile.json" if arguments.profile is None else Path(arguments.profile)
    output = folder / "calibrated.json" if arguments.output is None else Path(arguments.output)
    found = calibrate_run(folder, profile=None if arguments.profile is None else read)
    check_output(str(output), str(read), what="profile")
    for name in _LEFT:
        check_output(str(output), str(folder / name), what="profile", source="the run")
    text = json.dumps(found.profile.to_dict(), indent=1) + "\n"
    write_output(output, text, what="profile")
    if arguments.json:
        from funcpipe.report.plain import jsonable

        data = found.to_dict() | {"written_to": str(output)}
        print(json.dumps(jsonable(data), allow_nan=False, indent=1))
        return 0
    from rich.console import Console

    from funcpipe.report.plan_text import print_parts

    print_parts(list(_parts(found, output)), Console())
    return 0


def _parts(found: Calibration, output: Path) -> Iterator[RenderableType]:
    from rich.text import Text

    from funcpipe.report.beside import beside_table

    steps = found.observed.num_steps
    yield Text(
        f"Run {found.run_id} on {found.platform}, {steps} steady step{'' if steps == 1 else 's'} "
        f"(quartiles {found.observed.spread:.1%} apart)"
    )
    yield beside_table(found.before)
    yield Text("With the corrected profile")
    yield beside_table(found.after)
    yield Text(f"The corrected profile is in {output}")
