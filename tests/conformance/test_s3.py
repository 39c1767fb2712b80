"""What only a store behind a network can do wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Iterator

import numpy as np
import pytest

from funcpipe.errors import BucketMissing, ObjectMissing, StoreDenied, StoreUnavailable
from funcpipe.store.credentials import Credentials
from funcpipe.store.open import open_store
from funcpipe.store.probe import probe
from funcpipe.store.retry import Retrying, RetryPolicy
from funcpipe.store.s3 import S3Store, ensure_bucket
from funcpipe.store.shape import Link, Shaped

from .servers import BUCKET, Server

pytestmark = pytest.mark.server


@pytest.fixture
def store(server: Server) -> Iterator[S3Store]:
    made = S3Store(
        BUCKET, prefix="s3-only", endpoint=server.endpoint, credentials=server.credentials
    )
    yield made
    made.delete(made.list(""))
    made.close()


class Gate:
    """A pace that looks at the store each time bytes are about to pass."""

    chunk_bytes = 100_000

    def __init__(self, store: S3Store, key: str) -> None:
        self.store = store
        self.key = key
        self.passed: list[int] = []
        self.seen_early = False

    def __call__(self, num_bytes: int) -> None:
        self.passed.append(num_bytes)
        self.seen_early |= self.key in set(self.store.list(""))


def run_script(script: str, server: Server) -> str:
    answer = subprocess.run(
        [sys.executable, "-c", script, server.endpoint, BUCKET],
        env={**os.environ, **server.credentials.to_environment()},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


@pytest.mark.parametrize(
    "changed",
    ["access_key", "secret_key"],
)
def test_wrong_credentials_are_denied_without_being_told(server: Server, changed: str) -> None:
    right = server.credentials
    wrong = Credentials(
        access_key="intruder0000" if changed == "access_key" else right.access_key,
        secret_key="not-the-secret-key-0000",
    )
    store = open_store(server.url, endpoint=server.endpoint, credentials=wrong)

    for attempt in (
        lambda: store.put("k", b"x"),
        lambda: store.put("k", bytes(1_000_000)),
        lambda: store.get("k"),
        lambda: store.delete(["k"]),
        lambda: list(store.list("")),
        lambda: probe(store, "run"),
        lambda: ensure_bucket(BUCKET, endpoint=server.endpoint, credentials=wrong),
    ):
        with pytest.raises(StoreDenied) as caught:
            attempt()
        assert BUCKET in caught.value.message
        assert server.endpoint in caught.value.message
        assert "AWS_SECRET_ACCESS_KEY" in caught.value.message
        whole_text = "".join(traceback.format_exception(caught.value))
        assert wrong.secret_key not in whole_text
        assert right.secret_key not in whole_text


def test_a_bucket_that_is_not_there_is_named(server: Server) -> None:
    store = open_store(
        "s3://not-a-bucket-of-ours/x", endpoint=server.endpoint, credentials=server.credentials
    )

    for attempt in (
        lambda: store.put("k", b"x"),
        lambda: store.get("k"),
        lambda: list(store.list("")),
        lambda: probe(store, "run"),
    ):
        with pytest.raises(BucketMissing, match="not-a-bucket-of-ours"):
            attempt()


def test_a_bucket_is_made_once(server: Server) -> None:
    assert not ensure_bucket(BUCKET, endpoint=server.endpoint, credentials=server.credentials)


def test_a_prefix_keeps_stores_in_one_bucket_apart(server: Server, store: S3Store) -> None:
    other = S3Store(
        BUCKET, prefix="s3-only-too", endpoint=server.endpoint, credentials=server.credentials
    )
    store.put("k", b"mine")

    with pytest.raises(ObjectMissing, match="s3-only-too/k"):
        other.get("k")
    assert list(other.list("")) == []
    assert list(store.list("")) == ["k"]


def test_a_proxy_does_not_capture_loopback(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    store = S3Store(
        BUCKET, prefix="proxied", endpoint=server.endpoint, credentials=server.credentials
    )

    store.put("k", b"direct")

    assert bytes(store.get("k")) == b"direct"
    store.delete(["k"])


def test_an_object_appears_after_its_last_byte_has_passed(store: S3Store) -> None:
    gate = Gate(store, "k")
    data = np.random.default_rng(0).bytes(450_000)

    store.put("k", [data[:150_000], data[150_000:]], pace=gate)

    assert sum(gate.passed) == 450_000
    assert max(gate.passed) <= gate.chunk_bytes
    assert not gate.seen_early
    assert bytes(store.get("k")) == data


def test_what_is_got_passes_the_gate_once(store: S3Store) -> None:
    store.put("k", bytes(450_000))
    gate = Gate(store, "absent")

    store.get("k", start=1, pace=gate)

    assert sum(gate.passed) == 449_999
    assert max(gate.passed) <= gate.chunk_bytes


def test_small_objects_are_paced_too(store: S3Store) -> None:
    gate = Gate(store, "k")

    store.put("k", [b"one", b"two"], pace=gate)
    store.get("k", pace=gate)
    store.put("k", b"", pace=gate)

    assert gate.passed == [3, 3, 6]


def test_a_shaped_store_gives_back_what_it_took(server: Server) -> None:
    link = Link(up_bytes_per_s=50e6, down_bytes_per_s=50e6, latency_s=0.001)
    url = f"{server.url}/shaped"
    plain = open_store(url, endpoint=server.endpoint, credentials=server.credentials)
    shaped = Shaped(plain, link)
    data = np.random.default_rng(1).bytes(1_000_000)

    shaped.put("k", [data[:10], data[10:]])

    assert bytes(shaped.get("k")) == data
    shaped.delete(["k"])
    assert list(shaped.list("")) == []


MEMORY_SCRIPT = """
import sys
from pathlib import Path
from funcpipe.store.open import open_store

def kilobytes(field):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])

def peak_over_now(action):
    Path("/proc/self/clear_refs").write_text("5")
    before = kilobytes("VmRSS")
    result = action()
    return kilobytes("VmHWM") - before, result

store = open_store(f"s3://{sys.argv[2]}/memory", endpoint=sys.argv[1])
buffers = [bytearray(bytes([number]) * (8 << 20)) for number in range(8)]
store.put("warm", buffers[:1])
store.get("warm")
sent, _ = peak_over_now(lambda: store.put("big", buffers))
got, body = peak_over_now(lambda: store.get("big"))
same = all(body[n * (8 << 20)] == n and body[(n + 1) * (8 << 20) - 1] == n for n in range(8))
store.delete(["warm", "big"])
print(sent, got, same)
"""


def test_sending_and_receiving_64_megabytes_makes_no_second_copy(server: Server) -> None:
    sent_kb, got_kb, same = run_script(MEMORY_SCRIPT, server).split()

    assert int(sent_kb) < 8 << 10
    assert int(got_kb) < (64 + 8) << 10
    assert same == "True"


FORK_SCRIPT = """
import os, sys
from funcpipe.store.open import open_store
from funcpipe.store.s3 import S3Store

store = S3Store(sys.argv[2], prefix="forked", endpoint=sys.argv[1])
store.put("parent", b"parent")
inherited = store._client
child = os.fork()
if child == 0:
    store.put("child", b"child")
    alike = bytes(store.get("parent")) == b"parent"
    os._exit(0 if alike and store._client is not inherited else 1)
status = os.waitpid(child, 0)[1]
print(status, bytes(store.get("child")).decode(), store._client is inherited)
store.delete(["parent", "child"])
"""


def test_a_client_inherited_through_a_fork_is_made_anew(server: Server) -> None:
    assert run_script(FORK_SCRIPT, server).split() == ["0", "child", "True"]


def test_an_endpoint_where_nobody_listens_is_given_up(server: Server) -> None:
    pauses: list[float] = []
    inner = S3Store(BUCKET, endpoint="http://127.0.0.1:9", credentials=server.credentials)
    store = Retrying(inner, RetryPolicy(tries=4), sleep=pauses.append)

    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:9.*tried 4 times"):
        store.put("k", b"x")
    with pytest.raises(StoreUnavailable):
        store.wait("k", deadline_s=10.0)
    assert len(pauses) == 6
