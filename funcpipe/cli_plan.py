"""``funcpipe plan``: the best plan for a model's profile on a platform, without training."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from funcpipe.cli_plan_file import check_output, is_stdout, write_output
from funcpipe.cli_plan_options import GROUPS, OPTIONS, flag_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from funcpipe.partitioner.baselines import Baseline
    from funcpipe.partitioner.planner import Answer, Front
    from funcpipe.planning import Question

__all__ = ["EXAMPLES", "add_plan"]

_DESCRIPTION = """\
Choose where to cut a model into stages, the memory and the number of functions of each stage, and
the size of micro-batches, so that a training step on a platform is as cheap or as fast as can be;
prove that no plan is better, and say what it takes. Needs a profile of the model, and no torch.
"""
EXAMPLES = """\
examples:
  funcpipe plan --profile examples/plan/bert-large.json
      the cheapest plan on AWS Lambda
  funcpipe plan --profile examples/plan/bert-large.json --objective weighted:0.5 --compare
      half time, half money; and what other ways to choose would take
  funcpipe plan --profile examples/plan/bert-large.json --max-time 60 --batch-size 32
      the cheapest one whose steps of 32 samples take at most a minute
  funcpipe plan --profile examples/plan/bert-large.json --pareto
      all gpipe plans than which no other is both faster and cheaper
  funcpipe plan --profile examples/plan/digits.json --objective min-time -o plan.json
      a plan in a file, for `funcpipe train job.py --plan plan.json`

exit codes: 0 a plan was found, 1 there is none or something is wrong, 2 wrong usage, 130 stopped
"""


def add_plan(commands: Any, add_common: Callable[[argparse.ArgumentParser, str], None]) -> None:
    """Add the command to the subparsers `commands`; add_common: adds options that all have."""
    parser = commands.add_parser(
        "plan",
        help="choose the best plan for a model on a platform, without training",
        usage="funcpipe plan --profile FILE [options]",
        description=_DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--profile", metavar="FILE", required=True, help="what the layers of the "
                        "model take: a profile of funcpipe's, or one of the published formats "
                        "below")  # fmt: skip
    for title, options in GROUPS.items():
        group = parser.add_argument_group(title)
        for name, settings in options.items():
            rest = {key: value for key, value in settings.items() if key != "flag"}
            flag = flag_of(name, settings)
            group.add_argument(flag, dest=name, default=argparse.SUPPRESS, **rest)
    group = parser.add_argument_group("the answer")
    group.add_argument("-o", "--output", metavar="FILE", help="write the plan to FILE, replacing "
                       "it, for `funcpipe train --plan`")  # fmt: skip
    group.add_argument("--compare", action="store_true", help="also show what other ways to choose "
                       "a plan would take")  # fmt: skip
    group.add_argument("--pareto", action="store_true", help="instead of one plan, show all "
                       "gpipe plans than which no other is both faster and cheaper")  # fmt: skip
    add_common(parser, "print it as JSON, alone, on stdout")
    parser.set_defaults(command=_plan, parser=parser)


def _plan(arguments: argparse.Namespace, _: object) -> int:
    from funcpipe.planning import PlanOptions, question

    given = {name: getattr(arguments, name) for name in OPTIONS if hasattr(arguments, name)}
    if arguments.pareto:
        _refuse_beside_pareto(arguments, given)
    if arguments.output is not None and is_stdout(arguments.output):
        arguments.parser.error(
            f"-o {arguments.output}: the answer is printed there, and the two would be mixed; name "
            "a file, or take the plan from what --json prints"
        )
    asked = question(arguments.profile, PlanOptions.of(given))
    if arguments.output is not None:
        check_output(arguments.output, arguments.profile)
    if arguments.pareto:
        with _searching(asked):
            front = asked.front()
        _show(arguments, lambda: _front_parts(asked, front), lambda: _front_dict(front))
        return 0
    others: list[Baseline] = []
    with _searching(asked) as tell:
        answer = asked.answer()
        if arguments.compare:
            begin = lambda name: tell(f"comparing: what {name} would choose")  # noqa: E731
            answer, others = asked.compared(answer, begin=begin)
    if arguments.output is not None:
        write_output(Path(arguments.output), json.dumps(answer.plan.to_dict(), indent=2) + "\n")
    _show(
        arguments,
        lambda: _answer_parts(asked, answer, others),
        lambda: _answer_dict(asked, answer) | _others_dict(others, compared=arguments.compare),
    )
    return 0


def _refuse_beside_pareto(arguments: argparse.Namespace, given: Mapping[str, Any]) -> None:
    reasons = {
        "--objective": "objective" in given and "it is the best plans for all objectives",
        "--solver": "solver" in given and "there is one search for it",
        "--compare": arguments.compare and "others choose a single plan",
        "-o": arguments.output is not None
        and "a file holds one plan; choose one with --max-time "
        "or --max-cost, or take all of them from --json",
    }
    for option, reason in reasons.items():
        if reason:
            arguments.parser.error(f"--pareto and {option} do not go together: {reason}")


@contextmanager
def _searching(asked: Question) -> Iterator[Callable[[str], object]]:
    """Tells whoever looks at stderr that this may take a while; gives what tells of more."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    limit = "" if asked.time_limit_s is None else f", for at most {asked.time_limit_s:g} s"
    with console.status(f"searching{limit}") as status:
        yield status.update


# -- what is printed -------------------------------------------------------------------------


def _show(
    arguments: argparse.Namespace,
    parts: Callable[[], Iterable[RenderableType]],
    data: Callable[[], Mapping[str, Any]],
) -> None:
    if arguments.json:
        from funcpipe.report.plain import jsonable

        print(json.dumps(jsonable(data()), allow_nan=False, indent=1))
        return
    from rich.console import Console

    from funcpipe.report.plan_text import print_parts

    print_parts(list(parts()), Console())


def _answer_parts(
    asked: Question, answer: Answer, others: list[Baseline]
) -> Iterable[RenderableType]:
    from rich.console import Console

    from funcpipe.report.front_text import compare_parts
    from funcpipe.report.plan_text import plan_parts, width_of

    width = width_of(Console())
    yield from plan_parts(
        asked.setting,
        answer,
        gpipe_alone=asked.gpipe_alone,
        merged_to=asked.merged_to,
        width=width,
    )
    if others:
        yield from compare_parts(answer, others, width=width)


def _front_parts(asked: Question, front: Front) -> Iterable[RenderableType]:
    from funcpipe.report.front_text import front_parts

    return front_parts(asked.setting, front, merged_to=asked.merged_to)


def _answer_dict(asked: Question, answer: Answer) -> dict[str, Any]:
    return {
        "plan": answer.plan.to_dict(),
        "objective": str(answer.objective),
        "value": answer.value,
        "bound": answer.bound,
        "gap": answer.gap,
        "status": answer.status.value,
        "schedules": list(asked.space.schedules),
        "gpipe_proven": answer.gpipe_proven,
        "solver": answer.solver,
        "seconds": answer.seconds,
        "notes": list(answer.notes),
        "estimate": answer.estimate.to_dict(),
    }


def _others_dict(others: list[Baseline], *, compared: bool) -> dict[str, Any]:
    """Figures are null where nothing was found."""
    if not compared:
        return {}
    return {
        "compared": [
            {
                "name": one.name,
                "plan": None if one.plan is None else one.plan.to_dict(),
                "step_s": one.time_s,
                "dollars": one.dollars,
                "value": one.value,
                "why": one.why,
            }
            for one in others
        ]
    }


def _front_dict(front: Front) -> dict[str, Any]:
    return {
        "schedules": ["gpipe"],
        "complete": front.complete,
        "spacing": front.spacing,
        "seconds": front.seconds,
        "notes": list(front.notes),
        "plans": [
            {
                "step_s": answer.estimate.step_s,
                "dollars": answer.estimate.dollars,
                "plan": answer.plan.to_dict(),
            }
            for answer in front.answers
        ],
    }
