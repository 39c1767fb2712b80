"""Objects under keys: one contract, several places to keep them, wrappers that compose."""

from funcpipe.store.base import Buffer, Data, ObjectStore, Pace, PacedStore
from funcpipe.store.credentials import Credentials
from funcpipe.store.directory import DirectoryStore
from funcpipe.store.memory import MemoryStore
from funcpipe.store.meter import Metered, Usage
from funcpipe.store.open import StoreSpec, open_store
from funcpipe.store.probe import Capabilities, probe
from funcpipe.store.retry import Retrying, RetryPolicy
from funcpipe.store.shape import Link, Shaped
from funcpipe.store.wait import Arrival, Backoff, wait_for

__all__ = [
    "Arrival",
    "Backoff",
    "Buffer",
    "Capabilities",
    "Credentials",
    "Data",
    "DirectoryStore",
    "Link",
    "MemoryStore",
    "Metered",
    "ObjectStore",
    "Pace",
    "PacedStore",
    "RetryPolicy",
    "Retrying",
    "Shaped",
    "StoreSpec",
    "Usage",
    "open_store",
    "probe",
    "wait_for",
]
