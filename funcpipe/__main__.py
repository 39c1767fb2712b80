"""``python -m funcpipe`` is the command ``funcpipe``.

Both begin here: the command line and all that it imports are loaded where Ctrl-C is already told as
one line, like every other end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import NoReturn

STOPPED = 128 + signal.SIGINT


def main() -> int:
    """The command; its exit code."""
    # While modules are loaded there is nothing to clean up, and an exception may get lost in them.
    # Whoever started us may have turned Ctrl-C off: then it stays off.
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if usual:
        signal.signal(signal.SIGINT, _leave)
    from funcpipe.cli import main as run

    try:
        if usual:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return run()
    except KeyboardInterrupt:
        _leave()


def _leave(*_: object) -> NoReturn:
    with contextlib.suppress(OSError):
        os.write(2, b"stopped: interrupted\n")
    os._exit(STOPPED)


if __name__ == "__main__":
    sys.exit(main())
