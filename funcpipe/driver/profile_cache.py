"""Where measured profiles are kept between runs: one file for each job and platform."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from funcpipe.errors import ProfileError
from funcpipe.files import replacing
from funcpipe.locate import LoadedJob
from funcpipe.partitioner.profile import ModelProfile

__all__ = ["cache_path", "load_cached", "name_of", "save_cached"]


def name_of(loaded: LoadedJob) -> str:
    """A short name for a job: its folder's if the file is a ``job.py``, else the file's."""
    stem = loaded.file.stem
    name = loaded.file.parent.name if stem == "job" else stem
    name = name if loaded.attribute == "job" else f"{name}-{loaded.attribute}"
    return "".join(letter for letter in name if letter.isprintable()) or "job"


def cache_path(loaded: LoadedJob, platform: str) -> Path:
    """The file of a job's profile for the platform of that name."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The specification has relative ones ignored.
    folder = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    place = f"{os.path.realpath(loaded.file)}:{loaded.attribute}"
    digest = hashlib.sha256(place.encode(errors="surrogateescape")).hexdigest()[:12]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", name_of(loaded))[:60]
    return folder / "funcpipe" / "profiles" / f"{name}-{digest}-{platform}.json"


def load_cached(path: Path) -> tuple[ModelProfile | None, str]:
    """The profile there, or None and why there is none."""
    if not os.path.lexists(path):
        return None, "none is kept of this job"
    try:
        return ModelProfile.load(path), ""
    except ProfileError as error:
        return None, f"the one that is kept is damaged: {error.message}"


def save_cached(profile: ModelProfile, path: Path) -> None:
    """All of it or nothing: two runs at once leave one of the two. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        profile.save(partial)
