"""What a platform gives a function beside its payload."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from funcpipe.clock import REAL, Clock
from funcpipe.store.shape import LinkSpec
from funcpipe.store.tally import Tally

__all__ = ["Context"]


@dataclass(frozen=True, kw_only=True)
class Context:
    """The function's surroundings; all seconds and rates are those of `clock`.

    clock: the platform's. link: the function's network, if that is emulated.
    init_s: how long the platform took to start the function, 0 if it was warm; None: as long as
    this process is old. unseen_file_bytes: memory of program files that a function would hold, but
    that does not show in a process which was forked from another. threads: how many torch may
    use; None leaves it as it is. tally: where requests and bytes are counted; None: nobody but
    the function itself wants to know.
    """

    clock: Clock = REAL
    link: LinkSpec | None = None
    init_s: float | None = None
    unseen_file_bytes: int = 0
    threads: int | None = None
    tally: Tally | None = None

    def __post_init__(self) -> None:
        if self.init_s is not None and not 0 <= self.init_s < math.inf:
            raise ValueError(f"init_s must be 0 or more, or None; found {self.init_s}")
        if self.unseen_file_bytes < 0:
            raise ValueError(f"unseen_file_bytes must be 0 or more, found {self.unseen_file_bytes}")
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads must be 1 or more, or None; found {self.threads}")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, without the tally: that is a descriptor, handed on by other means."""
        return {
            "dilation": self.clock.dilation,
            "link": None if self.link is None else self.link.to_dict(),
            "init_s": self.init_s,
            "unseen_file_bytes": self.unseen_file_bytes,
            "threads": self.threads,
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any], *, meter: int | None) -> Context:
        """The inverse of `to_dict`; what is missing is as in `Context()`.

        meter: descriptor of a tally's memory. `ValueError` for what a context does not have.
        """
        given = dict(data)
        clock = Clock(given.pop("dilation", REAL.dilation))
        link = given.pop("link", None)
        tally = None if meter is None else Tally.on(meter)
        known = ("init_s", "unseen_file_bytes", "threads")
        if unknown := sorted(set(given) - set(known)):
            raise ValueError(f"a function's context has no {', '.join(unknown)}")
        return Context(
            clock=clock,
            link=None if link is None else LinkSpec.from_dict(link),
            tally=tally,
            **given,
        )
