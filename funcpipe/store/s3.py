"""Objects in a bucket of any server that speaks S3."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from botocore.exceptions import ClientError

from funcpipe.errors import ObjectMissing, StoreError, StoreUnavailable
from funcpipe.store.base import DELETE_BATCH_KEYS, Data, Pace
from funcpipe.store.buffers import (
    aligned_buffer,
    batches,
    check_key,
    check_prefix,
    check_range,
    is_key,
    pieces,
)
from funcpipe.store.credentials import Credentials
from funcpipe.store.s3_body import Body
from funcpipe.store.s3_client import endpoint_in_use, make_client
from funcpipe.store.s3_errors import TRANSPORT_ERRORS, Place, translate, translate_code
from funcpipe.store.wait import wait_for

__all__ = ["S3Store", "check_bucket", "ensure_bucket"]

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.\-]{1,61}[a-z0-9]")
_JOINED_BYTES = 64 << 10  # below this, one copy costs less than a second packet
_READ_BYTES = 256 << 10


class S3Store:
    """Key ``k`` is the object ``PREFIX/k`` of the bucket.

    Its client is made at once, before there are threads, and made anew in a process that has
    inherited it through a fork: two processes on one connection would read each other's answers.
    No retries here: wrap it in `Retrying`, as `open_store` does. Opening it makes no request.
    """

    def __init__(
        self,
        bucket: str,
        *,
        prefix: str = "",
        endpoint: str | None = None,
        region: str | None = None,
        credentials: Credentials | None = None,
        max_connections: int = 32,
        page_keys: int = DELETE_BATCH_KEYS,
        connect_timeout_s: float = 5.0,
        read_timeout_s: float = 30.0,
    ) -> None:
        self._bucket = check_bucket(bucket)
        folder = check_prefix(prefix.strip("/"))
        self._prefix = f"{folder}/" if folder else ""
        self._endpoint = endpoint_in_use(endpoint)
        self._page_keys = page_keys
        self._options: dict[str, Any] = {
            "endpoint": self._endpoint,
            "region": region,
            "credentials": credentials,
            "max_connections": max_connections,
            "connect_timeout_s": connect_timeout_s,
            "read_timeout_s": read_timeout_s,
        }
        self._owned: tuple[int, Any] = (os.getpid(), _client(bucket, self._options))
        self._inherited: Any = None

    def put(
        self, key: str, data: Data, *, if_absent: bool = False, pace: Pace | None = None
    ) -> None:
        name = self._name(key)
        condition = {"IfNoneMatch": "*"} if if_absent else {}
        views = pieces(data)
        num_bytes = sum(view.nbytes for view in views)
        body: Body | bytes = Body(views, pace)
        if num_bytes == 0 or (num_bytes <= _JOINED_BYTES and pace is None):
            body = b"".join(views)
        try:
            self._client.put_object(
                Bucket=self._bucket, Key=name, Body=body, ContentLength=num_bytes, **condition
            )
        except TRANSPORT_ERRORS as error:
            raise translate(error, self._place("put", key)) from error

    def get(
        self, key: str, *, start: int = 0, stop: int | None = None, pace: Pace | None = None
    ) -> memoryview:
        name = self._name(key)
        check_range(start, stop)
        place = self._place("get", key)
        try:
            if stop is not None and stop <= start:
                self._client.head_object(Bucket=self._bucket, Key=name)
                return aligned_buffer(0)
            bounds = _bounds(start, stop)
            answer = self._client.get_object(Bucket=self._bucket, Key=name, **bounds)
            if bounds and answer["ResponseMetadata"]["HTTPStatusCode"] != 206:
                answer["Body"].close()
                raise StoreError(f"{place} failed: this server ignores the Range header")
            return _received(answer, place, pace)
        except ClientError as error:
            if error.response["ResponseMetadata"].get("HTTPStatusCode") == 416:
                return aligned_buffer(0)
            raise translate(error, place) from error
        except TRANSPORT_ERRORS as error:
            raise translate(error, place) from error

    def wait(self, key: str, *, deadline_s: float) -> memoryview:
        return wait_for(self, key, deadline_s=deadline_s).data

    def delete(self, keys: Iterable[str]) -> None:
        names = [self._name(key) for key in keys]
        for batch in batches(names, DELETE_BATCH_KEYS):
            self._delete_batch(batch)

    def list(self, prefix: str) -> Iterator[str]:
        check_prefix(prefix)
        return self._listed(f"{self._prefix}{prefix}")

    def close(self) -> None:
        process, client = self._owned
        if process == os.getpid():
            client.close()

    def _delete_batch(self, names: Sequence[str]) -> None:
        request = {"Objects": [{"Key": name} for name in names], "Quiet": True}
        try:
            answer = self._client.delete_objects(Bucket=self._bucket, Delete=request)
        except TRANSPORT_ERRORS as error:
            raise translate(error, self._place("delete", None)) from error
        failed = [
            translate_code(
                str(found.get("Code", "")),
                0,
                str(found.get("Message", "")),
                self._place("delete", str(found.get("Key", ""))),
            )
            for found in answer.get("Errors", [])
        ]
        lasting = [error for error in failed if not isinstance(error, ObjectMissing)]
        if lasting:
            # What a retry cannot mend is told first.
            raise min(lasting, key=lambda error: isinstance(error, StoreUnavailable))

    def _listed(self, prefix: str) -> Iterator[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket,
            Prefix=prefix,
            PaginationConfig={"PageSize": self._page_keys},
        )
        try:
            for page in pages:
                for found in page.get("Contents", []):
                    key = found["Key"][len(self._prefix) :]
                    if is_key(key):  # and not a folder, which some servers list as "folder/"
                        yield key
        except TRANSPORT_ERRORS as error:
            raise translate(error, self._place("list", None)) from error

    @property
    def _client(self) -> Any:
        process, client = self._owned
        if process != os.getpid():
            # No lock: it could have been held at the fork. Two threads may each make a client
            # here; both work, and the last one stays. The parent's is kept from being collected,
            # which would close connections that the parent uses.
            self._inherited = client
            client = _client(self._bucket, self._options)
            self._owned = (os.getpid(), client)
        return client

    def _name(self, key: str) -> str:
        return f"{self._prefix}{check_key(key)}"

    def _place(self, operation: str, key: str | None) -> Place:
        name = None if key is None else f"{self._prefix}{key}"
        return Place(operation=operation, bucket=self._bucket, endpoint=self._shown, key=name)

    @property
    def _shown(self) -> str:
        return self._endpoint or "AWS"


def check_bucket(bucket: str) -> str:
    """`bucket` if S3 allows such a name, else `StoreError`."""
    if not _BUCKET.fullmatch(bucket) or ".." in bucket:
        raise StoreError(
            f"not a bucket name: {bucket!r}; it has 3 to 63 lower-case letters, digits, dots and "
            "hyphens, and begins and ends with a letter or digit"
        )
    return bucket


def ensure_bucket(
    bucket: str,
    *,
    endpoint: str | None = None,
    region: str | None = None,
    credentials: Credentials | None = None,
) -> bool:
    """Create the bucket unless it is there and ours; returns whether it was created.

    `StoreDenied` if it belongs to somebody else or may not be created.
    """
    check_bucket(bucket)
    endpoint = endpoint_in_use(endpoint)
    client = _client(
        bucket,
        {
            "endpoint": endpoint,
            "region": region,
            "credentials": credentials,
            "max_connections": 1,
            "connect_timeout_s": 5.0,
            "read_timeout_s": 30.0,
        },
    )
    place = Place(operation="creation", bucket=bucket, endpoint=endpoint or "AWS")
    try:
        return _create(client, bucket)
    except TRANSPORT_ERRORS as error:
        raise translate(error, place) from error
    finally:
        client.close()


def _create(client: Any, bucket: str) -> bool:
    try:
        client.head_bucket(Bucket=bucket)
    except ClientError as error:
        if error.response["ResponseMetadata"].get("HTTPStatusCode") != 404:
            raise
    else:
        return False
    # us-east-1 is the one region that may not be named.
    region = client.meta.region_name
    where = {}
    if region not in (None, "us-east-1", "aws-global"):
        where = {"CreateBucketConfiguration": {"LocationConstraint": region}}
    try:
        client.create_bucket(Bucket=bucket, **where)
    except ClientError as error:
        if error.response["Error"].get("Code") != "BucketAlreadyOwnedByYou":
            raise
        return False
    return True


def _client(bucket: str, options: dict[str, Any]) -> Any:
    try:
        return make_client(**options)
    except TRANSPORT_ERRORS as error:
        place = Place(operation="opening", bucket=bucket, endpoint=options["endpoint"] or "AWS")
        raise translate(error, place) from error


def _bounds(start: int, stop: int | None) -> dict[str, str]:
    if start == 0 and stop is None:
        return {}
    return {"Range": f"bytes={start}-" if stop is None else f"bytes={start}-{stop - 1}"}


def _received(answer: dict[str, Any], place: Place, pace: Pace | None) -> memoryview:
    """The body in one buffer; a short one is `StoreUnavailable`, never returned."""
    stream = answer["Body"]
    if "ContentLength" not in answer:
        stream.close()
        raise StoreError(f"{place} failed: this server does not say how long its answer is")
    body = aligned_buffer(answer["ContentLength"])
    chunk_bytes = _READ_BYTES if pace is None else pace.chunk_bytes
    done = 0
    try:
        while done < body.nbytes:
            num_bytes = stream.readinto(body[done : done + chunk_bytes])
            if not num_bytes:
                break
            if pace is not None:
                pace(num_bytes)
            done += num_bytes
        if not body.nbytes:
            stream.read()  # nothing is left; it gives the connection back
    except TRANSPORT_ERRORS as error:
        stream.close()
        raise translate(error, place) from error
    if done != body.nbytes:
        stream.close()
        raise StoreUnavailable(
            f"{place} failed: the body ended after {done} of {body.nbytes} bytes"
        )
    return body
