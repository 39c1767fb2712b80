"""What goes over the wire, and what is made of what comes back, against a scripted server."""

from __future__ import annotations

import base64
import hashlib
import traceback
import zlib
from collections.abc import Iterator

import pytest

from funcpipe.errors import (
    BucketMissing,
    ObjectExists,
    ObjectMissing,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from funcpipe.store.credentials import Credentials
from funcpipe.store.retry import Retrying, RetryPolicy
from funcpipe.store.s3 import S3Store, ensure_bucket

from .scripted import Answer, Scripted, s3_error, scripted_server

SECRET = "the-secret-key-of-this-test"
TOKEN = "the-session-token-of-this-test"
KEYS = Credentials(access_key="AKIAEXAMPLE", secret_key=SECRET, session_token=TOKEN)


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Scripted, S3Store]]:
    """Making a client takes a third of a second: one for all tests."""
    with pytest.MonkeyPatch.context() as patch, scripted_server() as script:
        for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
            patch.delenv(name, raising=False)
        store = S3Store(
            "bucket", prefix="pre", endpoint=script.endpoint, credentials=KEYS, read_timeout_s=20
        )
        yield script, store
        store.close()


@pytest.fixture
def script(shared: tuple[Scripted, S3Store]) -> Scripted:
    shared[0].reset()
    return shared[0]


@pytest.fixture
def store(shared: tuple[Scripted, S3Store]) -> S3Store:
    return shared[1]


def retrying(store: S3Store) -> tuple[Retrying, list[float]]:
    pauses: list[float] = []
    return Retrying(store, RetryPolicy(tries=3), sleep=pauses.append), pauses


def test_a_put_is_one_plain_request(script: Scripted, store: S3Store) -> None:
    big = [b"a" * 300_000, b"b" * 300_000, b"c"]

    store.put("k/1", [b"small ", b"body"])
    store.put("k/2", big)
    store.put("k/3", b"", if_absent=True)

    assert [(one.method, one.path) for one in script.asked] == [
        ("PUT", f"/bucket/pre/k/{number}") for number in (1, 2, 3)
    ]
    assert [one.body for one in script.asked] == [b"small body", b"".join(big), b""]
    for one in script.asked:
        assert one.headers["Content-Length"] == str(len(one.body))
        assert one.headers["X-Amz-Content-SHA256"] == "UNSIGNED-PAYLOAD"
        assert not {"Expect", "Transfer-Encoding", "Content-MD5"} & set(one.headers)
        assert not [name for name in one.headers if "checksum" in name.lower()]
    assert [one.headers.get("If-None-Match") for one in script.asked] == [None, None, "*"]


def test_requests_one_after_the_other_use_one_connection(script: Scripted, store: S3Store) -> None:
    for body in (b"abc", b"", b"x" * 1_000_000):
        script.answers += [Answer(), Answer(body=body)]
        store.put("k", body)
        assert bytes(store.get("k")) == body

    assert len(script.connections) == 1


@pytest.mark.parametrize(
    ("start", "stop", "header"),
    [(0, None, None), (5, None, "bytes=5-"), (5, 9, "bytes=5-8"), (0, 1, "bytes=0-0")],
)
def test_ranges_are_asked_for(
    script: Scripted, store: S3Store, start: int, stop: int | None, header: str | None
) -> None:
    script.answers.append(Answer(status=206 if header else 200, body=b"part"))

    assert bytes(store.get("k", start=start, stop=stop)) == b"part"
    assert script.asked[0].headers.get("Range") == header


def test_a_server_that_ignores_ranges_is_told_of(script: Scripted, store: S3Store) -> None:
    script.answers.append(Answer(status=200, body=b"all of it"))

    with pytest.raises(StoreError, match="ignores the Range header"):
        store.get("k", start=2, stop=4)


def test_a_delete_carries_the_digest_that_minio_demands(script: Scripted, store: S3Store) -> None:
    script.answers.append(Answer(body=b"<DeleteResult></DeleteResult>"))

    store.delete(["a", "b"])

    (asked,) = script.asked
    digest = hashlib.md5(asked.body, usedforsecurity=False).digest()
    assert asked.headers["Content-MD5"] == base64.b64encode(digest).decode()
    crc = zlib.crc32(asked.body).to_bytes(4, "big")
    assert asked.headers["x-amz-checksum-crc32"] == base64.b64encode(crc).decode()
    assert b"<Key>pre/a</Key>" in asked.body
    assert b"<Quiet>true</Quiet>" in asked.body


@pytest.mark.parametrize(
    ("codes", "kind"),
    [
        (["InternalError"], StoreUnavailable),
        (["SlowDown", "AccessDenied"], StoreDenied),
        (["NoSuchKey"], None),
    ],
)
def test_errors_of_single_keys_are_looked_at(
    script: Scripted, store: S3Store, codes: list[str], kind: type[StoreError] | None
) -> None:
    errors = "".join(
        f"<Error><Key>pre/{code}</Key><Code>{code}</Code><Message>m</Message></Error>"
        for code in codes
    )
    script.answers.append(Answer(body=f"<DeleteResult>{errors}</DeleteResult>".encode()))

    if kind is None:
        store.delete(codes)
    else:
        with pytest.raises(kind, match=f"pre/{codes[-1]}"):
            store.delete(codes)


def test_a_body_cut_short_is_got_again(script: Scripted, store: S3Store) -> None:
    body = bytes(range(256)) * 4000
    script.answers += [Answer(body=body, short=1), Answer(body=body, short=len(body))]
    script.answers += [Answer(body=body)]
    again, pauses = retrying(store)

    assert bytes(again.get("k")) == body
    assert len(pauses) == 2
    assert len(script.asked) == 3


def test_a_body_that_is_always_short_is_never_returned(script: Scripted, store: S3Store) -> None:
    script.answers += [Answer(body=b"12345", short=1)] * 3
    again, _ = retrying(store)

    with pytest.raises(StoreUnavailable, match=r"4 read.* 5\..*tried 3 times"):
        again.get("k")


def test_a_body_of_unknown_length_is_refused(script: Scripted, store: S3Store) -> None:
    script.answers.append(Answer(body=b"12345", sized=False))

    with pytest.raises(StoreError, match="does not say how long"):
        store.get("k")


def test_a_retried_put_sends_its_whole_body_again(script: Scripted, store: S3Store) -> None:
    data = [b"x" * 300_000, b"y" * 300_000]
    script.answers += [s3_error("SlowDown", 503), Answer(silent=True), Answer()]
    again, pauses = retrying(store)

    again.put("k", data)

    assert [one.body for one in script.asked] == [b"".join(data)] * 3
    assert len(pauses) == 2


def test_botocore_tries_nothing_again_by_itself(script: Scripted, store: S3Store) -> None:
    script.answers += [s3_error("InternalError", 500)] * 2

    with pytest.raises(StoreUnavailable):
        store.put("k", b"x")
    with pytest.raises(StoreUnavailable):
        store.get("k")

    assert len(script.asked) == 2


def test_a_lost_answer_to_a_claim_is_told_from_a_lost_claim(
    script: Scripted, store: S3Store
) -> None:
    again, _ = retrying(store)
    refusal = s3_error("PreconditionFailed", 412)

    script.answers += [Answer(silent=True), refusal, Answer(body=b"my token")]
    again.put("lease", b"my token", if_absent=True)

    script.answers += [Answer(silent=True), refusal, Answer(body=b"another's")]
    with pytest.raises(ObjectExists):
        again.put("lease", b"my token", if_absent=True)


ERRORS = [
    ("NoSuchKey", 404, ObjectMissing),
    ("NoSuchBucket", 404, BucketMissing),
    ("AccessDenied", 403, StoreDenied),
    ("InvalidAccessKeyId", 403, StoreDenied),
    ("SignatureDoesNotMatch", 403, StoreDenied),
    ("ExpiredToken", 400, StoreDenied),
    ("RequestTimeTooSkewed", 403, StoreDenied),
    ("SomethingNew", 401, StoreDenied),
    ("SomethingNew", 403, StoreDenied),
    ("PreconditionFailed", 412, ObjectExists),
    ("SomethingNew", 412, ObjectExists),
    ("ConditionalRequestConflict", 409, StoreUnavailable),
    ("SlowDown", 503, StoreUnavailable),
    ("ServiceUnavailable", 503, StoreUnavailable),
    ("InternalError", 500, StoreUnavailable),
    ("RequestTimeout", 400, StoreUnavailable),
    ("SomethingNew", 429, StoreUnavailable),
    ("SomethingNew", 502, StoreUnavailable),
    ("XMinioStorageFull", 507, StoreFull),
    ("InsufficientStorage", 507, StoreFull),
    ("QuotaExceeded", 403, StoreFull),
    ("SomethingNew", 507, StoreFull),
    ("PermanentRedirect", 400, StoreError),
    ("InvalidRequest", 400, StoreError),
]


@pytest.mark.parametrize(("code", "status", "kind"), ERRORS)
def test_what_servers_say_is_translated_and_placed(
    script: Scripted, store: S3Store, code: str, status: int, kind: type[StoreError]
) -> None:
    script.answers.append(s3_error(code, status))

    with pytest.raises(StoreError) as caught:
        store.get("run/k")

    assert type(caught.value) is kind
    for part in ("get", "'pre/run/k'", "'bucket'", script.endpoint, code, "as scripted"):
        assert part in caught.value.message


def test_a_conditional_put_that_met_a_delete_is_to_be_tried_again(
    script: Scripted, store: S3Store
) -> None:
    script.answers.append(s3_error("NoSuchKey", 404))

    with pytest.raises(StoreUnavailable):
        store.put("k", b"x", if_absent=True)


def test_a_missing_bucket_is_told_without_a_code_too(script: Scripted, store: S3Store) -> None:
    script.answers.append(Answer(status=404))

    with pytest.raises(BucketMissing):
        list(store.list(""))


def test_what_is_no_s3_server_is_named(script: Scripted, store: S3Store) -> None:
    script.answers.append(Answer(status=200, body=b"<html><p>hello</html>"))

    with pytest.raises(StoreUnavailable, match="check that the endpoint is right"):
        list(store.list(""))


def test_a_server_that_does_not_answer_is_given_up(script: Scripted) -> None:
    store = S3Store("bucket", endpoint=script.endpoint, credentials=KEYS, read_timeout_s=0.1)
    script.answers.append(Answer(silent=True))

    with pytest.raises(StoreUnavailable):
        store.get("k")


def test_no_error_tells_the_secret_key(script: Scripted, store: S3Store) -> None:
    answers = [s3_error(code, status) for code, status, _ in ERRORS]
    answers += [Answer(silent=True), Answer(body=b"<html"), Answer(body=b"12345", short=2)]
    for answer in answers:
        for attempt in (
            lambda: store.put("k", b"x"),
            lambda: store.get("k", start=1),
            lambda: store.delete(["k"]),
            lambda: list(store.list("")),
        ):
            script.answers[:] = [answer]
            try:
                attempt()
            except StoreError as error:
                text = "".join(traceback.format_exception(error)) + repr(error) + str(error)
                assert SECRET not in text
                assert TOKEN not in text


@pytest.mark.parametrize(
    ("region", "constraint"),
    [(None, None), ("us-east-1", None), ("eu-central-1", b"eu-central-1")],
)
def test_a_bucket_is_made_in_its_region(
    script: Scripted, region: str | None, constraint: bytes | None
) -> None:
    script.answers += [Answer(status=404), Answer()]

    made = ensure_bucket("bucket", endpoint=script.endpoint, region=region, credentials=KEYS)

    assert made is True
    head, create = script.asked
    assert (head.method, create.method, create.path) == ("HEAD", "PUT", "/bucket")
    if constraint is None:
        assert create.body == b""
    else:
        assert b"<LocationConstraint>" + constraint + b"</LocationConstraint>" in create.body


def test_a_bucket_that_is_there_is_left_alone(script: Scripted) -> None:
    assert ensure_bucket("bucket", endpoint=script.endpoint, credentials=KEYS) is False
    script.answers += [Answer(status=404), s3_error("BucketAlreadyOwnedByYou", 409)]
    assert ensure_bucket("bucket", endpoint=script.endpoint, credentials=KEYS) is False


def test_somebody_elses_bucket_is_denied(script: Scripted) -> None:
    script.answers += [Answer(status=403)]
    with pytest.raises(StoreDenied, match="'bucket'"):
        ensure_bucket("bucket", endpoint=script.endpoint, credentials=KEYS)
    script.answers += [Answer(status=404), s3_error("BucketAlreadyExists", 409)]
    with pytest.raises(StoreDenied, match="BucketAlreadyExists"):
        ensure_bucket("bucket", endpoint=script.endpoint, credentials=KEYS)
