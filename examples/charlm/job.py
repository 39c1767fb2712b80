"""A small GPT-style character model on the source text of Python's own standard library.

    funcpipe train examples/charlm/job.py --stages 2 --replicas 2 --steps 40

Eight layers of a plain `nn.Sequential`: embedding, six transformer blocks, head.
"""

from __future__ import annotations

import math
import sysconfig
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

import funcpipe as fp

WINDOW = 128
WIDTH = 128
HEADS = 4
BLOCKS = 6
DROPOUT = 0.1
BATCH_SIZE = 32
NUM_HELD_OUT = 256
WARM_UP_STEPS = 20
STEPS = 400

# Modules that every Python since 3.11 has as source; those not found are passed over, and enough
# are named to fill NUM_CHARACTERS all the same.
MODULES = """
  _pydecimal argparse ast asyncio/base_events bdb calendar codecs collections/__init__ configparser
  copy csv dataclasses datetime difflib dis doctest email/message enum fractions ftplib functools
  gettext gzip heapq http/client http/cookiejar http/server imaplib inspect ipaddress json/decoder
  locale logging/__init__ mailbox mimetypes optparse os pickle pickletools platform plistlib pydoc
  random shutil smtplib socket ssl statistics string subprocess tarfile tempfile textwrap threading
"""
NUM_CHARACTERS = 1_600_000

# Newline, then printable ASCII; whatever else occurs in the sources reads as "?".
VOCABULARY = "\n" + "".join(map(chr, range(32, 127)))
CODE_OF_BYTE = bytes(
    VOCABULARY.index(chr(byte) if chr(byte) in VOCABULARY else "?") for byte in range(256)
)


class Embedding(nn.Module):
    """Character codes (B, T) to vectors (B, T, WIDTH), each with its position added."""

    def __init__(self) -> None:
        super().__init__()
        self.character = nn.Embedding(len(VOCABULARY), WIDTH)
        self.position = nn.Parameter(torch.zeros(WINDOW, WIDTH))
        nn.init.normal_(self.character.weight, std=0.02)
        nn.init.normal_(self.position, std=0.02)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, codes: Tensor) -> Tensor:
        embedded: Tensor = self.dropout(self.character(codes) + self.position[: codes.shape[1]])
        return embedded


class Block(nn.Module):
    """Causal self-attention, then a two-layer perceptron, each beside a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.norm_mlp = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )
        self.dropout = nn.Dropout(DROPOUT)

    def attend(self, hidden: Tensor) -> Tensor:
        batch, length, _ = hidden.shape
        heads = self.query_key_value(hidden).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        projected: Tensor = self.project(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return projected

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.dropout(self.attend(self.norm_attention(hidden)))
        mixed: Tensor = hidden + self.dropout(self.mlp(self.norm_mlp(hidden)))
        return mixed


class Head(nn.Module):
    """Vectors (B, T, WIDTH) to scores of the next character (B, T, characters)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.score = nn.Linear(WIDTH, len(VOCABULARY))

    def forward(self, hidden: Tensor) -> Tensor:
        scores: Tensor = self.score(self.norm(hidden))
        return scores


def build_model() -> nn.Module:
    return nn.Sequential(Embedding(), *(Block() for _ in range(BLOCKS)), Head())


def read_codes() -> Tensor:
    """The text as character codes, one byte each."""
    folder = Path(sysconfig.get_path("stdlib"))
    files = [folder / f"{name}.py" for name in MODULES.split()]
    text = "".join(file.read_text(encoding="utf-8") for file in files if file.is_file())
    if len(text) < NUM_CHARACTERS:
        raise FileNotFoundError(
            f"{folder} holds {len(text)} characters of the standard library's source text, "
            f"expected {NUM_CHARACTERS}: use a Python that was installed with its sources"
        )
    codes = text[:NUM_CHARACTERS].encode("ascii", "replace").translate(CODE_OF_BYTE)
    return torch.frombuffer(bytearray(codes), dtype=torch.uint8)


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Neighbouring windows of the text; the target is the input moved on by one character."""

    def __init__(self, codes: Tensor) -> None:
        self.codes = codes

    def __len__(self) -> int:
        return (len(self.codes) - 1) // WINDOW

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = index * WINDOW
        window = self.codes[start : start + WINDOW + 1].long()
        return window[:-1], window[1:]


def load_train() -> Windows:
    return Windows(read_codes()[: -NUM_HELD_OUT * WINDOW - 1])


def load_test() -> Windows:
    return Windows(read_codes()[-NUM_HELD_OUT * WINDOW - 1 :])


def loss(scores: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), target.flatten())


def bits_per_character(scores: Tensor, target: Tensor) -> Tensor:
    return loss(scores, target) / math.log(2)


def accuracy(scores: Tensor, target: Tensor) -> Tensor:
    return (scores.argmax(dim=-1) == target).float().mean()


def learning_rate(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    def factor(step: int) -> float:
        decay = 0.55 + 0.45 * math.cos(math.pi * min(1.0, step / STEPS))
        return min(1.0, (step + 1) / WARM_UP_STEPS) * decay

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


job = fp.Job(
    model=build_model,
    loss=loss,
    optimizer=lambda params: torch.optim.AdamW(params, lr=3e-3, weight_decay=0.01),
    lr_scheduler=learning_rate,
    train_data=load_train,
    eval_data=load_test,
    metrics={"bits_per_character": bits_per_character, "accuracy": accuracy},
    batch_size=BATCH_SIZE,
    epochs=1,
    seed=0,
)
