"""What S3 servers and botocore say, as our errors: one table."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

import urllib3.exceptions
from botocore import exceptions as botocore_errors
from botocore.parsers import ResponseParserError

from funcpipe.errors import (
    BucketMissing,
    ObjectExists,
    ObjectMissing,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
)

__all__ = ["TRANSPORT_ERRORS", "Place", "translate", "translate_code"]

TRANSPORT_ERRORS = (
    botocore_errors.BotoCoreError,
    botocore_errors.ClientError,
    ResponseParserError,
    urllib3.exceptions.HTTPError,
    OSError,
)
"""Everything that a botocore call, or reading its body, raises for reasons that are not ours."""

_BY_CODE: dict[str, type[StoreError]] = {
    "NoSuchKey": ObjectMissing,
    "NoSuchBucket": BucketMissing,
    "AccessDenied": StoreDenied,
    "AccountProblem": StoreDenied,
    "AllAccessDisabled": StoreDenied,
    "BucketAlreadyExists": StoreDenied,
    "ExpiredToken": StoreDenied,
    "InvalidAccessKeyId": StoreDenied,
    "InvalidToken": StoreDenied,
    "NotSignedUp": StoreDenied,
    "RequestTimeTooSkewed": StoreDenied,
    "SignatureDoesNotMatch": StoreDenied,
    "TokenRefreshRequired": StoreDenied,
    "PreconditionFailed": ObjectExists,
    # Two conditional writes at once: neither has won yet, so the put is to be tried again.
    "ConditionalRequestConflict": StoreUnavailable,
    "OperationAborted": StoreUnavailable,
    "BadDigest": StoreUnavailable,
    "IncompleteBody": StoreUnavailable,
    "InternalError": StoreUnavailable,
    "RequestLimitExceeded": StoreUnavailable,
    "RequestTimeout": StoreUnavailable,
    "ServiceUnavailable": StoreUnavailable,
    "SlowDown": StoreUnavailable,
    "SlowDownRead": StoreUnavailable,
    "SlowDownWrite": StoreUnavailable,
    "Throttling": StoreUnavailable,
    "ThrottlingException": StoreUnavailable,
    "XMinioServerNotInitialized": StoreUnavailable,
    "InsufficientStorage": StoreFull,
    "QuotaExceeded": StoreFull,
    "XMinioAdminBucketQuotaExceeded": StoreFull,
    "XMinioStorageFull": StoreFull,
}

_BY_STATUS: dict[int, type[StoreError]] = {
    401: StoreDenied,
    403: StoreDenied,
    408: StoreUnavailable,
    409: StoreUnavailable,
    412: ObjectExists,
    429: StoreUnavailable,
    507: StoreFull,
}

_REMEDY: dict[type[StoreError], str] = {
    BucketMissing: "create the bucket, or correct its name in the store's URL",
    ObjectExists: "the key is taken",
    ObjectMissing: "no such object",
    StoreDenied: (
        "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN or the profile, that "
        "they may use this bucket (s3:ListBucket too, or AWS refuses to read a missing object), "
        "and this machine's clock"
    ),
    StoreError: "check the store's URL, endpoint and region",
    StoreFull: "free some space where the store keeps its bytes",
    StoreUnavailable: "check that the endpoint is right, reachable and up",
}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a request was going; what every message names."""

    operation: str
    bucket: str
    endpoint: str
    key: str | None = None

    def __str__(self) -> str:
        key = "" if self.key is None else f" of {self.key!r}"
        return f"{self.operation}{key} in bucket {self.bucket!r} at {self.endpoint}"


def translate(error: BaseException, place: Place) -> StoreError:
    """The error to raise for `error`; its text holds no credentials."""
    if isinstance(error, botocore_errors.ClientError):
        found = error.response.get("Error", {})
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return translate_code(
            str(found.get("Code", "")), status, str(found.get("Message", "")), place
        )
    return _made(_kind_of_failure(error), f"{type(error).__name__}: {error}", place)


def translate_code(code: str, status: int, message: str, place: Place) -> StoreError:
    """The error for what a server answered, for a whole request or one key of it."""
    kind = _BY_CODE.get(code)
    if kind is None:
        kind = _by_status(status, place)
    if kind is ObjectMissing and place.operation == "put":
        kind = StoreUnavailable  # a delete overtook a conditional write: to be tried again
    answer = " ".join(part for part in (code or f"HTTP {status}", message) if part)
    return _made(kind, answer, place)


def _by_status(status: int, place: Place) -> type[StoreError]:
    if status == 404:
        return ObjectMissing if place.key is not None else BucketMissing
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return StoreUnavailable if status >= 500 else StoreError


def _kind_of_failure(error: BaseException) -> type[StoreError]:
    if isinstance(
        error,
        (
            botocore_errors.NoCredentialsError,
            botocore_errors.PartialCredentialsError,
            botocore_errors.CredentialRetrievalError,
            botocore_errors.TokenRetrievalError,
            botocore_errors.ProfileNotFound,
        ),
    ):
        return StoreDenied
    if isinstance(error, botocore_errors.SSLError) and _is_about_certificate(error):
        return StoreError
    if isinstance(
        error,
        (
            botocore_errors.ConnectionError,
            botocore_errors.HTTPClientError,
            botocore_errors.IncompleteReadError,
            botocore_errors.ResponseStreamingError,
            ResponseParserError,
            urllib3.exceptions.HTTPError,
            OSError,
        ),
    ):
        return StoreUnavailable
    return StoreError


def _is_about_certificate(error: BaseException) -> bool:
    """Whether a refused certificate is behind `error`: a further try would be refused too."""
    seen: BaseException | None = error
    while seen is not None:
        if any(isinstance(found, ssl.SSLCertVerificationError) for found in (seen, *seen.args)):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _made(kind: type[StoreError], answer: str, place: Place) -> StoreError:
    remedy = _REMEDY[kind]
    if kind is StoreUnavailable and place.operation == "put":
        # SeaweedFS answers InternalError, and JuiceFS not at all, when its disk is full.
        remedy += ", and that its disk is not full (some servers do not say so)"
    return kind(f"{place} failed ({answer.strip()}): {remedy}")
