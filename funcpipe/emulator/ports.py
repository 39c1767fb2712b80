"""Free loopback ports for servers that need several of them at once."""

from __future__ import annotations

import random
import socket

__all__ = ["PAIR_OFFSET", "all_free", "free_ports"]

PAIR_OFFSET = 10_000
# Below the range from which the kernel takes the ports of outgoing connections (32768 and up),
# with its pair too: a connection cannot take such a port between the look and the server's bind.
_FIRST, _STOP = 10_240, 22_700


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def all_free(ports: list[int]) -> bool:
    return all(_is_free(port) for port in ports)


def free_ports(num_ports: int) -> list[int]:
    """Distinct ports, each of them free now together with the port `PAIR_OFFSET` above it.

    Another process may still take one before it is used: the caller tries again with others.
    """
    chosen: list[int] = []
    candidates = random.SystemRandom().sample(range(_FIRST, _STOP), _STOP - _FIRST)
    for port in candidates:
        if len(chosen) == num_ports:
            break
        if all_free([port, port + PAIR_OFFSET]):
            chosen.append(port)
    if len(chosen) < num_ports:
        raise OSError(f"found only {len(chosen)} of {num_ports} free loopback ports")
    return chosen
