"""What an answer rests on beside the model, in words: the profile's source, unverified figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from funcpipe.partitioner.limits import is_number
from funcpipe.partitioner.setting import Setting

__all__ = ["grounds"]

# What no estimate looks at: the bill of a run does.
_UNUSED = ("price.list", "price.stored_gb_month", "price.internet_out_gb", "price.granularity_ms")
_OF_STARTS = ("price.invocation", "price.bills_initialisation", "time.cold_start_s")
_MOST_OFF = 1e9
_USED = ("price.", "network.up", "network.down", "network.latency", "cpu.vcpu", "memory.tiers")


def grounds(setting: Setting) -> tuple[str, ...]:
    """Notes; none for a profile that says nothing of itself on a platform of verified figures."""
    notes = []
    if setting.profile.source:
        notes.append(f"profile: {setting.profile.source}")
    notes += _calibrated(setting.profile.measured.get("calibrated"))
    paths = [figure.path for figure in setting.platform.figures if not figure.is_verified]
    names = ", ".join(path for path in paths if _matters(path, setting))
    if names:
        notes.append(f"figures of {setting.platform.name} without a public source: {names}")
    return tuple(notes)


def _calibrated(told: object) -> Iterator[str]:
    """How far off the profile was when it was last held beside a run; the file may be anyone's."""
    if not isinstance(told, Mapping):
        return
    off: Any = told.get("off")
    if not is_number(off) or not -1 <= off <= _MOST_OFF:
        return
    run = f" {told['run']:.80}" if isinstance(told.get("run"), str) and told["run"] else ""
    where = f" on {told['platform']:.80}" if isinstance(told.get("platform"), str) else ""
    yield (
        f"the profile was calibrated by run{run}{where}; before, it had a step {abs(off):.1%} too "
        f"{'short' if off < 0 else 'long'}"
    )


def _matters(path: str, setting: Setting) -> bool:
    if path in _OF_STARTS:
        return setting.num_steps is not None
    return path.startswith(_USED) and path not in _UNUSED
