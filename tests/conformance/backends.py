"""What the suite runs against, and what each of them is known to do differently."""

from __future__ import annotations

from dataclasses import dataclass

S3_KINDS = ("seaweedfs", "juicefs", "minio", "endpoint")


@dataclass(frozen=True, kw_only=True)
class Backend:
    """`if_absent`: put(if_absent=True) refuses a key that is taken. `nested_keys`: a key and a
    key below it are both held. `keeps_folders`: the folders of deleted keys stay, and their names
    cannot be keys. The suite asserts both ways, so that it notices a change.
    """

    name: str
    if_absent: bool = True
    nested_keys: bool = True
    keeps_folders: bool = False

    @property
    def is_s3(self) -> bool:
        return self.name in S3_KINDS


BACKENDS = {
    backend.name: backend
    for backend in (
        Backend(name="memory"),
        Backend(name="directory", nested_keys=False),
        Backend(name="seaweedfs"),
        Backend(name="juicefs", if_absent=False, nested_keys=False, keeps_folders=True),
        Backend(name="minio"),
        Backend(name="endpoint"),
        Backend(name="metered"),
        Backend(name="shaped"),
        Backend(name="retrying"),
        Backend(name="faulty"),
        Backend(name="composed"),
    )
}
