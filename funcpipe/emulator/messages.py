"""JSON messages between a driver and its template process, with descriptors beside them."""

from __future__ import annotations

import array
import json
import socket
from collections.abc import Sequence
from typing import Any

__all__ = ["MESSAGE_BYTES", "receive", "send"]

MESSAGE_BYTES = 1 << 17
_MOST_DESCRIPTORS = 4


def send(target: socket.socket, data: bytes, descriptors: Sequence[int] = ()) -> None:
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
    target.sendmsg([data], [rights] if descriptors else [])


def receive(source: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """The next message, None when the other end has gone; no program inherits the descriptors."""
    descriptors = array.array("i")
    space = socket.CMSG_SPACE(_MOST_DESCRIPTORS * descriptors.itemsize)
    # Not `socket.recv_fds`, which drops the flags.
    data, ancillary, _, _ = source.recvmsg(MESSAGE_BYTES, space, socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(content[: len(content) // 4 * 4])
    return (json.loads(data) if data else None), list(descriptors)
