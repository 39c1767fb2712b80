"""MinIO, from a binary that the user has."""

from __future__ import annotations

from collections.abc import Mapping

from funcpipe.emulator.credentials import Credentials
from funcpipe.emulator.juicefs import HEALTH_DOORS
from funcpipe.emulator.recipe import Kind, Recipe

__all__ = ["MINIO"]


def _recipe(binary: str, ports: Mapping[str, int], credentials: Credentials) -> Recipe:
    return Recipe(
        server=[
            *(binary, "server", "--quiet", "--address", f"127.0.0.1:{ports['s3']}"),
            *("--console-address", f"127.0.0.1:{ports['console']}", "data"),
        ],
        setup=[["/bin/mkdir", "data"]],
        environment={
            "MINIO_ROOT_USER": credentials.access_key,
            "MINIO_ROOT_PASSWORD": credentials.secret_key,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
            "GOMEMLIMIT": "512MiB",
        },
    )


MINIO = Kind(
    name="minio",
    binary="minio",
    how_to_get="go install github.com/minio/minio@latest (put it on PATH, or name it in "
    "FUNCPIPE_MINIO)",
    roles=("s3", "console"),
    open_doors=HEALTH_DOORS,
    recipe=_recipe,
)
