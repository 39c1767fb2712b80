"""Names of the objects of a run: pure functions, no IO.

Everything that makes an object unique is in its key. Intermediates lie under their attempt, so
an object of one attempt is never read by another; what outlives attempts lies under the run.
No key is ever a directory-like prefix of another one (``k`` and ``k/x``): some stores keep
objects as files and cannot hold both.

::

    RUN/control/000001.json              the control object, one immutable version after another
    RUN/bundle/SHA256.zip                the user's code
    RUN/model/manifest.json              what the layers are
    RUN/model/l00007.safetensors         initial weights of a layer
    RUN/final/l00007.safetensors         trained weights of a layer
    RUN/profile/result/TOKEN.json        what the function of that token measured
    RUN/profile/fault/TOKEN.json         why it could not
    RUN/profile/report/TOKEN.00000012    how far it is, in sequence
    RUN/profile/act/00007.00016          an activation of 16 samples that layer 7 takes
    RUN/profile/part/TOKEN.4096          an object of 4,096 bytes, sent to see what that takes
    RUN/a0001/lease/S.R.SEGMENT          who runs stage S, replica R
    RUN/a0001/fault/first.json           the first error of the attempt
    RUN/a0001/report/S.R.00000012.json   progress of a worker, in sequence
    RUN/a0001/result/S.R.json            what a worker says when it is done
    RUN/a0001/t00000012/act/S.00003      activation that stage S sends for micro-batch 3 of step 12
    RUN/a0001/t00000012/grad/S.00003     gradient of that activation, sent back by stage S + 1
    RUN/a0001/t00000012/part/S.O.R.C     replica R's share of chunk C of owner O's part
    RUN/a0001/t00000012/sum/S.O.C        the summed chunk, sent by its owner
    RUN/a0001/e00000012/act/S.00003      the same as act/, in the evaluation after step 12
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KINDS", "Attempt", "Pass", "Run", "kind_of"]

KINDS = (
    *("control", "bundle", "model", "final"),
    *("lease", "fault", "report", "result"),
    *("act", "grad", "part", "sum"),
    "other",
)
"""What `kind_of` may say; ``other`` is the last."""


@dataclass(frozen=True)
class Run:
    """Keys that outlive attempts. `root` is the run's prefix without a trailing slash."""

    root: str

    def control(self, version: int) -> str:
        return f"{self.root}/control/{version:06d}.json"

    def bundle(self, digest: str) -> str:
        return f"{self.root}/bundle/{digest}.zip"

    def manifest(self) -> str:
        return f"{self.root}/model/manifest.json"

    def layer(self, index: int) -> str:
        return f"{self.root}/model/l{index:05d}.safetensors"

    def final_layer(self, index: int) -> str:
        return f"{self.root}/final/l{index:05d}.safetensors"

    def profile_result(self, token: str) -> str:
        return f"{self.root}/profile/result/{token}.json"

    def profile_fault(self, token: str) -> str:
        return f"{self.root}/profile/fault/{token}.json"

    def profile_progress(self, token: str, number: int) -> str:
        return f"{self.root}/profile/report/{token}.{number:08d}"

    def profile_value(self, layer: int, size: int) -> str:
        return f"{self.root}/profile/act/{layer:05d}.{size:05d}"

    def profile_probe(self, token: str, num_bytes: int) -> str:
        return f"{self.root}/profile/part/{token}.{num_bytes}"

    def attempt(self, number: int) -> Attempt:
        return Attempt(f"{self.root}/a{number:04d}")


@dataclass(frozen=True)
class Attempt:
    """Keys of one attempt."""

    root: str

    def lease(self, stage: int, replica: int, segment: int) -> str:
        return f"{self.root}/lease/{stage}.{replica}.{segment}"

    def fault(self) -> str:
        return f"{self.root}/fault/first.json"

    def report(self, stage: int, replica: int, sequence: int) -> str:
        return f"{self.root}/report/{stage}.{replica}.{sequence:08d}.json"

    def result(self, stage: int, replica: int) -> str:
        return f"{self.root}/result/{stage}.{replica}.json"

    def training(self, step: int) -> Pass:
        return Pass(f"{self.root}/t{step:08d}")

    def evaluation(self, step: int) -> Pass:
        return Pass(f"{self.root}/e{step:08d}")


@dataclass(frozen=True)
class Pass:
    """Keys of one training step or of one evaluation."""

    root: str

    def activation(self, stage: int, micro_batch: int) -> str:
        return f"{self.root}/act/{stage}.{micro_batch:05d}"

    def gradient(self, stage: int, micro_batch: int) -> str:
        return f"{self.root}/grad/{stage}.{micro_batch:05d}"

    def partial(self, stage: int, owner: int, replica: int, chunk: int) -> str:
        return f"{self.root}/part/{stage}.{owner}.{replica}.{chunk}"

    def sum(self, stage: int, owner: int, chunk: int) -> str:
        return f"{self.root}/sum/{stage}.{owner}.{chunk}"


def kind_of(key: str) -> str:
    """The kind of a key (``act``, ``sum``, ``control`` ...), for meters; ``other`` if not ours."""
    segments = key.split("/")
    if len(segments) < 2:
        return "other"
    kind = segments[-2]
    return kind if kind in KINDS else "other"
