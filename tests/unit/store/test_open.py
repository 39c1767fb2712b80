from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from funcpipe.clock import Clock
from funcpipe.errors import StoreDenied, StoreError, StoreUnavailable
from funcpipe.store.credentials import Credentials
from funcpipe.store.directory import DirectoryStore
from funcpipe.store.faulty import Fault, Faulty
from funcpipe.store.memory import MemoryStore
from funcpipe.store.open import StoreSpec, open_store
from funcpipe.store.retry import Retrying
from funcpipe.store.s3 import S3Store

KEYS = Credentials(access_key="AKIAEXAMPLE", secret_key="the-secret", session_token="the-token")


@pytest.fixture(autouse=True)
def no_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No credentials but those that a test gives."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))


def test_memory_is_shared_by_name_in_a_process() -> None:
    first = open_store("memory:shared-by-name")
    first.put("k", b"x")

    assert isinstance(first, MemoryStore)
    assert bytes(open_store("memory:shared-by-name").get("k")) == b"x"
    assert list(open_store("memory:another").list("")) == []


def test_directories_are_named_plainly_or_by_url(tmp_path: Path) -> None:
    plain = open_store(str(tmp_path / "a place"))
    plain.put("k", b"x")

    assert bytes(open_store(f"file://{tmp_path}/a%20place").get("k")) == b"x"
    assert isinstance(open_store(str(tmp_path), retries=None), DirectoryStore)


def test_tries_are_spaced_in_the_seconds_of_a_clock(tmp_path: Path) -> None:
    # given a directory store whose requests all fail, and a clock that stands still meanwhile
    slept: list[float] = []

    class Still(Clock):
        def now(self) -> float:
            return sum(slept)

        def sleep(self, seconds: float) -> None:
            slept.append(seconds)

    store = StoreSpec(url=str(tmp_path)).open(clock=Still())
    assert isinstance(store, Retrying)
    failing = Faulty(MemoryStore(), lambda *_: Fault.BEFORE)
    store._store = failing

    with pytest.raises(StoreUnavailable, match="tried 6 times"):
        store.get("k")

    assert len(slept) == 5


def test_s3_is_opened_without_a_request() -> None:
    url = "s3://bucket/a/prefix/"
    store = open_store(url, endpoint="http://127.0.0.1:9", credentials=KEYS)

    assert isinstance(store, Retrying)
    bare = open_store(url, endpoint="http://127.0.0.1:9", credentials=KEYS, retries=None)
    assert isinstance(bare, S3Store)


@pytest.mark.parametrize(
    "url",
    [
        *("", "s3:", "s3://", "s3://Upper_Case", "s3://bucket/../x", "s3://bucket/p?x=1"),
        *("gs://bucket", "http://host/bucket", "file:relative", "file://host/dir"),
    ],
)
def test_what_is_no_store_is_refused(url: str) -> None:
    with pytest.raises(StoreError, match=r"not a store|not a bucket name"):
        open_store(url, credentials=KEYS)


@pytest.mark.parametrize(
    "endpoint", ["127.0.0.1:9000", "ftp://host", "http://", "http://host:99999", "http://h/?a=b"]
)
def test_what_is_no_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(StoreError, match=r"not an endpoint.*expected a URL such as"):
        open_store("s3://bucket", endpoint=endpoint, credentials=KEYS)


def test_keys_in_a_url_are_refused_and_not_repeated() -> None:
    for spec in (
        {"url": "s3://AKIAEXAMPLE:the-secret@bucket/x"},
        {"url": "s3://bucket", "endpoint": "http://user:the-secret@host:9000"},
    ):
        with pytest.raises(StoreError, match="user name or password") as caught:
            StoreSpec(**spec)
        assert "the-secret" not in str(caught.value)
        with pytest.raises(StoreError, match="user name or password"):
            open_store(spec["url"], endpoint=spec.get("endpoint"))


def test_no_credentials_at_all_is_said_at_once() -> None:
    with pytest.raises(StoreDenied, match=r"no credentials.*AWS_ACCESS_KEY_ID"):
        open_store("s3://bucket", endpoint="http://127.0.0.1:9")


def test_half_of_the_credentials_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")

    with pytest.raises(StoreDenied, match=r"aws_secret_access_key|AWS_SECRET_ACCESS_KEY"):
        open_store("s3://bucket", endpoint="http://127.0.0.1:9")


def test_an_unknown_profile_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")

    with pytest.raises(StoreDenied, match="nobody"):
        open_store("s3://bucket")


def test_a_spec_survives_json_and_opens(tmp_path: Path) -> None:
    spec = StoreSpec(url=str(tmp_path), region="eu-west-1")

    again = StoreSpec.from_dict(json.loads(json.dumps(spec.to_dict())))

    assert again == spec
    again.open().put("k", b"x")
    assert (tmp_path / "k").read_bytes() == b"x"


def test_credentials_do_not_show() -> None:
    assert repr(KEYS) == "Credentials()"
    assert str(KEYS) == "Credentials()"
    assert KEYS.to_environment() == {
        "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "the-secret",
        "AWS_SESSION_TOKEN": "the-token",
    }
    assert "AWS_SESSION_TOKEN" not in Credentials(access_key="a", secret_key="b").to_environment()


@pytest.mark.parametrize("value", ["", "the-secret\n", "the secret", "the-secrét"])
def test_credentials_that_were_copied_wrongly_are_refused_unseen(value: str) -> None:
    with pytest.raises(ValueError, match=r"secret_key.*copy it again") as caught:
        Credentials(access_key="a", secret_key=value)

    assert "the" not in str(caught.value).replace("other", "").replace("the store's", "")


def test_the_package_imports_without_sdk_or_torch() -> None:
    script = (
        "import sys, funcpipe.store\n"
        "print([name for name in ('boto3', 'botocore', 'torch') if name in sys.modules])"
    )

    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert answer.stdout.strip() == "[]"
