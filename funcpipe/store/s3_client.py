"""Making S3 clients: settings that every server understands, and no surprises."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import os
from typing import Any
from urllib.parse import urlsplit

import boto3.session
from botocore.config import Config

from funcpipe.errors import StoreDenied, StoreError
from funcpipe.store.credentials import Credentials
from funcpipe.store.s3_body import Body

__all__ = ["check_endpoint", "endpoint_in_use", "is_aws", "make_client"]

_DEFAULT_REGION = "us-east-1"


def endpoint_in_use(endpoint: str | None) -> str | None:
    """`endpoint`, else what the AWS variables name, else None: Amazon's own."""
    chosen = endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    return check_endpoint(chosen) if chosen else None


def check_endpoint(endpoint: str) -> str:
    """`endpoint` if it is an http(s) URL of a host and nothing else, else `StoreError`."""
    parts = urlsplit(endpoint)
    if "@" in endpoint:
        raise StoreError(
            "the store's endpoint holds a user name or password: give credentials by the AWS "
            "variables or a profile instead, URLs are written to logs"
        )
    try:
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment:
        raise StoreError(
            f"not an endpoint: {endpoint!r}; expected a URL such as http://127.0.0.1:9000 or "
            "https://minio.example.org"
        )
    return endpoint.rstrip("/")


def is_aws(endpoint: str | None) -> bool:
    """Whether requests go to Amazon's own servers."""
    host = urlsplit(endpoint).hostname if endpoint else None
    return endpoint is None or bool(host and host.endswith((".amazonaws.com", ".amazonaws.com.cn")))


def _is_loopback(endpoint: str) -> bool:
    host = urlsplit(endpoint).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def make_client(
    *,
    endpoint: str | None,
    region: str | None,
    credentials: Credentials | None,
    max_connections: int,
    connect_timeout_s: float,
    read_timeout_s: float,
) -> Any:
    """A boto3 S3 client of its own session: safe to share by the threads of this process.

    botocore retries nothing: `Retrying` does. Raises `StoreDenied` when there are no credentials.
    """
    given = {}
    if credentials is not None:
        given = {
            "aws_access_key_id": credentials.access_key,
            "aws_secret_access_key": credentials.secret_key,
            "aws_session_token": credentials.session_token,
        }
    session = boto3.session.Session(**given)  # type: ignore[arg-type]
    if session.get_credentials() is None:
        raise StoreDenied(
            f"no credentials for the store at {endpoint or 'AWS'}: set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        )
    fallback = None if is_aws(endpoint) else _DEFAULT_REGION
    client: Any = session.client(
        "s3",
        endpoint_url=endpoint,
        region_name=region or session.region_name or fallback,
        config=_config(endpoint, max_connections, connect_timeout_s, read_timeout_s),
    )
    events = client.meta.events
    events.register("before-call.s3.DeleteObjects", _add_content_md5)
    events.register("before-sign.s3.PutObject", _drop_expect)
    events.register("before-send.s3.PutObject", _begin_sending)
    return client


def _config(
    endpoint: str | None, max_connections: int, connect_timeout_s: float, read_timeout_s: float
) -> Config:
    s3: Any = {}
    if not is_aws(endpoint):
        s3 = {"addressing_style": "path", "payload_signing_enabled": False}
    return Config(
        s3=s3,
        # An empty mapping, unlike None, keeps HTTP_PROXY from capturing what stays on this machine.
        proxies={} if endpoint is not None and _is_loopback(endpoint) else None,
        signature_version="s3v4",
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        retries={"total_max_attempts": 1, "mode": "standard"},
        connect_timeout=connect_timeout_s,
        read_timeout=read_timeout_s,
        max_pool_connections=max_connections,
        tcp_keepalive=True,
    )


def _add_content_md5(params: dict[str, Any], **_: Any) -> None:
    """MinIO's server code still demands it of a DeleteObjects; botocore sends a CRC only."""
    digest = hashlib.md5(params["body"], usedforsecurity=False).digest()
    params["headers"]["Content-MD5"] = base64.b64encode(digest).decode("ascii")


def _drop_expect(request: Any, **_: Any) -> None:
    """Asking before sending would cost each put of a streamed body a round trip."""
    if "Expect" in request.headers:
        del request.headers["Expect"]


def _begin_sending(request: Any, **_: Any) -> None:
    if isinstance(request.body, Body):
        request.body.begin_sending()
