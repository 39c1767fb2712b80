from __future__ import annotations

import hashlib
import io

import pytest

from funcpipe.store.credentials import Credentials
from funcpipe.store.s3 import S3Store
from funcpipe.store.s3_body import Body
from funcpipe.store.s3_client import is_aws, make_client

KEYS = Credentials(access_key="AKIAEXAMPLE", secret_key="the-secret")


def client_of(endpoint: str | None, region: str | None = "eu-west-1") -> object:
    return make_client(
        endpoint=endpoint,
        region=region,
        credentials=KEYS,
        max_connections=7,
        connect_timeout_s=1.5,
        read_timeout_s=2.5,
    )


@pytest.mark.parametrize(
    ("endpoint", "aws"),
    [
        (None, True),
        ("https://s3.eu-west-1.amazonaws.com", True),
        ("https://s3.cn-north-1.amazonaws.com.cn", True),
        ("https://amazonaws.com.example.org", False),
        ("http://127.0.0.1:9000", False),
    ],
)
def test_amazon_is_told_from_others(endpoint: str | None, aws: bool) -> None:
    assert is_aws(endpoint) is aws


@pytest.mark.parametrize("endpoint", [None, "http://127.0.0.1:9000", "https://minio.example.org"])
def test_settings_that_hold_everywhere(endpoint: str | None) -> None:
    config = client_of(endpoint).meta.config  # type: ignore[attr-defined]

    assert config.request_checksum_calculation == "when_required"
    assert config.response_checksum_validation == "when_required"
    assert config.retries["total_max_attempts"] == 1
    assert (config.connect_timeout, config.read_timeout) == (1.5, 2.5)
    assert config.max_pool_connections == 7
    assert config.tcp_keepalive is True


def test_off_aws_paths_name_the_bucket_and_payloads_are_not_signed() -> None:
    config = client_of("https://minio.example.org").meta.config  # type: ignore[attr-defined]

    assert config.s3["addressing_style"] == "path"
    assert config.s3["payload_signing_enabled"] is False
    assert not client_of(None).meta.config.s3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("endpoint", "proxies"),
    [
        ("http://127.0.0.1:9000", {}),
        ("http://localhost:9000", {}),
        ("http://[::1]:9000", {}),
        ("https://minio.example.org", None),
        (None, None),
    ],
)
def test_proxies_are_for_what_is_not_on_this_machine(
    endpoint: str | None, proxies: dict[str, str] | None
) -> None:
    assert client_of(endpoint).meta.config.proxies == proxies  # type: ignore[attr-defined]


def test_a_region_is_needed_by_amazon_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")

    client = client_of("http://127.0.0.1:9000", region=None)

    assert client.meta.region_name == "us-east-1"  # type: ignore[attr-defined]


def test_the_endpoint_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9001/")
    store = S3Store("bucket", credentials=KEYS)

    config = store._client.meta.config

    assert store._client.meta.endpoint_url == "http://127.0.0.1:9001"
    assert (config.s3["addressing_style"], config.proxies) == ("path", {})


class Recorder:
    chunk_bytes = 4

    def __init__(self) -> None:
        self.passed: list[int] = []

    def __call__(self, num_bytes: int) -> None:
        self.passed.append(num_bytes)


def body_of(pace: Recorder | None = None) -> Body:
    return Body([memoryview(b"abcdef"), memoryview(b"ghi"), memoryview(b"j")], pace)


def test_a_body_reads_as_a_file_does() -> None:
    body = body_of()

    assert len(body) == 10
    assert [bytes(body.read(4)) for _ in range(5)] == [b"abcd", b"ef", b"ghi", b"j", b""]
    assert body.tell() == 10


@pytest.mark.parametrize("position", range(12))
def test_a_body_seeks_as_a_file_does(position: int) -> None:
    body = body_of()

    assert body.seek(position) == min(position, 10)
    assert body.read() == b"abcdefghij"[position:]
    assert body.seek(-3, io.SEEK_END) == 7
    assert body.seek(1, io.SEEK_CUR) == 8
    assert bytes(body.read(-1)) == b"ij"


def test_reading_to_sign_is_not_paced_and_sending_is() -> None:
    pace = Recorder()
    body = body_of(pace)
    digest = hashlib.sha256()
    for part in iter(lambda: body.read(3), b""):
        digest.update(part)
    assert pace.passed == []
    assert digest.hexdigest() == hashlib.sha256(b"abcdefghij").hexdigest()

    body.begin_sending()
    sent = b"".join(iter(lambda: body.read(1), b""))

    assert sent == b"abcdefghij"
    assert pace.passed == [4, 2, 3, 1]


def test_a_body_sent_again_starts_over() -> None:
    pace = Recorder()
    body = body_of(pace)
    body.begin_sending()
    body.read(1)
    body.seek(0)
    body.begin_sending()

    assert b"".join(iter(lambda: body.read(1), b"")) == b"abcdefghij"
    assert pace.passed == [4, 4, 2, 3, 1]
