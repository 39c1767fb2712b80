"""What a template process holds before anything is forked from it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BaseMemory"]


@dataclass(frozen=True, kw_only=True)
class BaseMemory:
    """The template's RssAnon and RssFile; both 0 for a process that was not forked from one.

    A forked child shares these pages: it holds them as a fresh process would, and is not charged.
    """

    anon_bytes: int = 0
    file_bytes: int = 0

    def __post_init__(self) -> None:
        if self.anon_bytes < 0 or self.file_bytes < 0:
            raise ValueError(f"a process cannot hold less than nothing: {self}")
