from __future__ import annotations

import socket

import pytest

from funcpipe.emulator import ports


def test_ports_are_distinct_and_free_with_their_pairs() -> None:
    found = ports.free_ports(12)

    assert len(set(found)) == 12
    assert ports.all_free(found)
    assert ports.all_free([port + ports.PAIR_OFFSET for port in found])


@pytest.mark.parametrize("offset", [0, ports.PAIR_OFFSET])
def test_a_port_in_use_is_not_offered(monkeypatch: pytest.MonkeyPatch, offset: int) -> None:
    [taken, other] = ports.free_ports(2)
    low, high = sorted((taken, other))
    monkeypatch.setattr(ports, "_FIRST", low)
    monkeypatch.setattr(ports, "_STOP", high + 1)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", taken + offset))
        holder.listen()

        with pytest.raises(OSError, match="free loopback ports"):
            ports.free_ports(high - low + 1)
