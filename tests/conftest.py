"""For every test: one thread, so that bits do not depend on the machine's cores."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
