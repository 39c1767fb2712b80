"""The keys of a local store server: made anew for each, and gone with it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

__all__ = ["Credentials", "generate"]


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """Never printed, never on a command line: they travel in a process's environment only."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)

    def to_environment(self) -> dict[str, str]:
        """The variables that every AWS client reads."""
        variables = {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
        }
        if self.session_token is not None:
            variables["AWS_SESSION_TOKEN"] = self.session_token
        return variables


def generate() -> Credentials:
    """A fresh pair of keys of the length and the alphabet that every S3 server takes."""
    return Credentials(
        access_key=secrets.token_hex(10).upper(), secret_key=secrets.token_urlsafe(30)
    )
