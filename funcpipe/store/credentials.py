"""Keys to an S3 store, held so that they do not end up in a log."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Credentials"]


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """Never printed, never part of a payload: they travel in a process's environment only."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("access_key", "secret_key", "session_token"):
            value = getattr(self, name)
            if value is None and name == "session_token":
                continue
            # A line break in a header would make the HTTP client print the header in its error.
            if not value or not value.isascii() or not value.isprintable() or " " in value:
                raise ValueError(
                    f"{name} of the store's credentials is empty or holds spaces, line breaks or "
                    "other characters that no key has: copy it again"
                )

    def to_environment(self) -> dict[str, str]:
        """The variables that every AWS client reads."""
        variables = {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
        }
        if self.session_token is not None:
            variables["AWS_SESSION_TOKEN"] = self.session_token
        return variables
