"""What sending and receiving objects takes of the time in which a function computes.

One thread does it, so more than one vCPU makes it no faster, and less than one stretches it.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from funcpipe.partitioner.profile import ModelProfile

__all__ = ["Amount", "get_s", "put_s", "thread_share"]

Amount = TypeVar("Amount", float, NDArray[np.float64])


def thread_share(vcpu: float) -> float:
    """CPU seconds that one thread gets in a second."""
    return min(vcpu, 1.0)


def put_s(profile: ModelProfile, num_bytes: Amount, share: Amount) -> Amount:
    """Seconds of sending an object, or arrays of them. share: `thread_share`."""
    return (profile.put_cpu_s + num_bytes * profile.put_byte_cpu_s) / share


def get_s(profile: ModelProfile, num_bytes: Amount, share: Amount) -> Amount:
    """Likewise of receiving one."""
    return (profile.get_cpu_s + num_bytes * profile.get_byte_cpu_s) / share
