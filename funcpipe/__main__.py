"""``python -m funcpipe`` is the command ``funcpipe``."""

from __future__ import annotations

import sys

from funcpipe.cli import main

if __name__ == "__main__":
    sys.exit(main())
