"""The keys of a local store server: made anew for each, and gone with it."""

from __future__ import annotations

import secrets

from funcpipe.store.credentials import Credentials

__all__ = ["Credentials", "generate"]


def generate() -> Credentials:
    """A fresh pair of keys of the length and the alphabet that every S3 server takes."""
    return Credentials(
        access_key=secrets.token_hex(10).upper(), secret_key=secrets.token_urlsafe(30)
    )
