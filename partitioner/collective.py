"""How long synchronising one stage takes, by method: closed forms, exact in the simulator.

n replicas with equal links exchange s bytes in parts of s / n. U and W are the seconds for which a
part occupies the uplink and the downlink, h the latency that comes on top of each transfer without
occupying either. All replicas begin together; if some begin earlier, the last one is done no
earlier for it. An object can be read once its last byte has arrived, so every transfer is stored
and then forwarded.
"""

from __future__ import annotations

from collections.abc import Callable

from funcpipe.errors import PlanError

__all__ = ["sync_s"]


def pipelined_s(n: int, up_s: float, down_s: float, hop_s: float) -> float:
    """FuncPipe's pipelined scatter-reduce (Liu et al. 2022, section 3.3).

    The n - 1 shares go up back to back and come down one behind: max(U + (n-1) W, (n-1) U + W).
    Then the own sum goes up, U, and the others' come down, (n-1) W. For U = W that is 2 n U = 2 s /
    w, as published; the paper counts n + 2 latencies, here it is 4 h beside those in U and W.
    """
    shares = max(up_s + (n - 1) * down_s, (n - 1) * up_s + down_s)
    return shares + up_s + (n - 1) * down_s + 4 * hop_s


def three_phase_s(n: int, up_s: float, down_s: float, hop_s: float) -> float:
    """LambdaML's scatter-reduce (Jiang et al. 2021): all shares up, all down, then the sums.

    3 s / w - 2 s / (n w) + 4 latencies, as published, where U = W and latency occupies no lane.
    """
    return n * up_s + 2 * (n - 1) * down_s + 4 * hop_s


_METHODS: dict[str, Callable[[int, float, float, float], float]] = {
    "pipelined": pipelined_s,
    "three-phase": three_phase_s,
}


def sync_s(method: str, *, degree: int, up_s: float, down_s: float, hop_s: float = 0.0) -> float:
    """Seconds of a synchronisation; 0 for one replica. up_s, down_s: of one part of 1/degree."""
    if degree == 1:
        return 0.0
    if method not in _METHODS:
        raise PlanError(f"unknown synchronisation method {method!r}; known: {', '.join(_METHODS)}")
    return _METHODS[method](degree, up_s, down_s, hop_s)
