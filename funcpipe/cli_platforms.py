"""``funcpipe platforms``: what is known of each platform, figure by figure, and from where."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from funcpipe.partitioner.limits import shown

if TYPE_CHECKING:
    from funcpipe.partitioner.curve import Curve
    from funcpipe.partitioner.figures import Figure
    from funcpipe.partitioner.platform import PlatformSpec

__all__ = ["add_platforms"]

_DESCRIPTION = """\
List the platforms that are known, or show one: each figure with its unit, and either the source
and the date at which it was seen there, or that it is not verified. With --json the platform is
printed as a file, which is a start for one's own.
"""
_EXAMPLES = """\
examples:
  funcpipe platforms
      the names that --emulate and planning know
  funcpipe platforms aws-lambda --set network.latency_s=0.05
      every figure of AWS Lambda, one of them changed
  funcpipe platforms aws-lambda --json > mine.json
      a platform file of one's own, to be edited and named wherever a name is
"""


def add_platforms(
    commands: Any, add_common: Callable[[argparse.ArgumentParser, str], None]
) -> None:
    """Add the command to the subparsers `commands`; add_common: adds options that all have."""
    parser = commands.add_parser(
        "platforms",
        help="list the platforms that are known, or show the figures of one",
        usage="funcpipe platforms [PLATFORM] [options]",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="PLATFORM", nargs="?", help="a platform's name, or a file "
                        "of one's own that ends in .json")  # fmt: skip
    parser.add_argument("--set", dest="changes", action="append", default=[], type=_change,
                        metavar="FIGURE=VALUE", help="show it with this figure changed, such as "
                        "time.limit_s=60; again for more figures")  # fmt: skip
    add_common(parser, "print it as a platform file (without PLATFORM: the list, as JSON)")
    parser.set_defaults(command=_platforms, parser=parser)


def _change(text: str) -> tuple[str, str]:
    path, sign, value = text.partition("=")
    if not sign or not path.strip() or not value.strip():
        raise argparse.ArgumentTypeError(
            f"expected FIGURE=VALUE such as network.latency_s=0.05; found {shown(text)}"
        )
    return path.strip(), value.strip()


def _platforms(arguments: argparse.Namespace, _: object) -> int:
    from funcpipe.partitioner.platform import known_platforms, load_platform

    if arguments.name is None:
        if arguments.changes:
            arguments.parser.error("--set needs the PLATFORM whose figure it changes")
        specs = [load_platform(name) for name in known_platforms()]
        if arguments.json:
            print(json.dumps({spec.name: spec.title for spec in specs}, indent=1))
        else:
            print("\n".join(_list(specs)))
        return 0
    spec = load_platform(arguments.name, changes=dict(arguments.changes))
    if arguments.json:
        print(json.dumps(spec.to_dict(), indent=1, ensure_ascii=False))
    else:
        print("\n".join(_show(spec)))
    return 0


def _list(specs: list[PlatformSpec]) -> Iterator[str]:
    width = max(len(spec.name) for spec in specs)
    for spec in specs:
        yield f"{spec.name:{width}}  {spec.title}; {_count(spec)}"
    yield ""
    yield "funcpipe platforms PLATFORM shows the figures of one, and where they come from."


def _count(spec: PlatformSpec) -> str:
    open_ones = sum(not figure.is_verified for figure in spec.figures)
    return f"{open_ones} of {len(spec.figures)} figures unverified"


def _show(spec: PlatformSpec) -> Iterator[str]:
    yield f"{spec.name}: {spec.title}"
    yield _count(spec)
    group = ""
    for figure in spec.figures:
        name = figure.path.partition(".")[0]
        if name != group:
            group = name
            yield ""
        yield f"{figure.path:30} {_value(figure)}"
        yield f"    {_origin(figure)}"
        if figure.note is not None:
            yield f"    note: {figure.note}"


def _origin(figure: Figure) -> str:
    if figure.unverified is not None:
        return f"UNVERIFIED: {figure.unverified}"
    return ", ".join(text for text in (figure.source, figure.date) if text is not None)


def _value(figure: Figure) -> str:
    from funcpipe.partitioner.curve import Curve

    value, unit = figure.value, figure.unit
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Curve):
        return _curve(value, unit)
    if isinstance(value, tuple):
        # Without commas inside of numbers, which would look like those between them.
        text = ", ".join(_number(one).replace(",", "") for one in value) or "none"
    else:
        text = value if isinstance(value, str) else _number(value)
    return f"{text} {unit}".rstrip()


def _curve(curve: Curve, unit: str) -> str:
    (_, first), *others = curve.points
    if not others:
        return f"{_number(first)} {unit} at every memory size"
    sizes = ", ".join(f"{_number(y)} at {_number(size)} MB" for size, y in curve.points)
    return f"{unit}: {sizes} ({_BETWEEN[curve.between]})"


_BETWEEN: Mapping[str, str] = {"linear": "straight lines between", "step": "in steps"}


def _number(value: float) -> str:
    """Digits as one reads them: no exponent that hides a price's size, no float's last digits."""
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.15f}".rstrip("0")
