"""The documents, and their fenced blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
