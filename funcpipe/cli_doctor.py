"""``funcpipe doctor local``: what of a platform this machine can enforce, how to get the rest."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from funcpipe.emulator.doctor import Diagnosis

__all__ = ["add_doctor"]

_DESCRIPTION = """\
Try what this machine can enforce of a platform that is emulated on it (memory, vCPUs, the size of
/tmp, ...), look for what runs need, and say how to get what is missing. Nothing is left behind.
"""
_EPILOG = """\
exit codes: 0 runs are possible, whatever of the platform they lack; 1 they are not; 2 wrong usage
"""
_WIDTH = 100
_INDENT = " " * 24


def add_doctor(commands: Any, add_common: Callable[[argparse.ArgumentParser, str], None]) -> None:
    """Add the command to the subparsers `commands`; add_common: adds options that all have."""
    parser = commands.add_parser(
        "doctor",
        help="say what this machine can enforce of a platform, and how to get the rest",
        usage="funcpipe doctor local [options]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", metavar="local", choices=("local",), help="this machine")
    add_common(parser, "print it as JSON")
    parser.set_defaults(command=_doctor, parser=parser)


def _doctor(arguments: argparse.Namespace, _: object) -> int:
    from funcpipe.emulator.doctor import examine

    diagnosis = examine()
    if arguments.json:
        print(json.dumps(diagnosis.to_dict(), indent=1))
    else:
        print("\n".join(_lines(diagnosis)))
    return 0 if diagnosis.possible else 1


def _lines(diagnosis: Diagnosis) -> Iterator[str]:
    yield "This machine"
    yield from _row("CPUs", f"{diagnosis.cpus:g}")
    yield from _row("memory", f"{diagnosis.memory_bytes / 1e9:.1f} GB, "
                    f"{diagnosis.memory_free_bytes / 1e9:.1f} GB of them free")  # fmt: skip
    for check in diagnosis.checks:
        yield from _row(check.name, check.found)
        if check.problem is not None:
            yield from _told("NOT POSSIBLE" if check.fatal else "note", check.problem)
            yield from _told("to do", check.remedy)
    yield ""
    yield "Store servers"
    for store in diagnosis.stores:
        yield from _row(store.kind, store.path or f"not found; {store.how_to_get}")
    yield ""
    yield "Limits of a platform"
    for one in diagnosis.capabilities:
        yield from _row(one.feature, one.how or "NOT ENFORCED")
        yield from _told("note", one.missing)
        yield from _told("to do", one.remedy)
    yield ""
    if not diagnosis.possible:
        yield "No runs are possible here: see NOT POSSIBLE above."
    else:
        lacking = [one.feature for one in diagnosis.capabilities if one.how is None and one.remedy]
        more = f"; not enforced, and could be: {', '.join(lacking)}" if lacking else ""
        yield f"Runs are possible{more}."


def _row(name: str, text: str) -> Iterator[str]:
    yield from textwrap.wrap(
        text,
        width=_WIDTH,
        initial_indent=f"  {name:21} ",
        subsequent_indent=_INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _told(label: str, text: str) -> Iterator[str]:
    if text:
        yield from textwrap.wrap(
            f"{label}: {text}",
            width=_WIDTH,
            initial_indent=_INDENT,
            subsequent_indent=_INDENT + "  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
