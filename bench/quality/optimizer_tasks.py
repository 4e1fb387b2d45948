"""What optimizers are compared on: small trainings that only the dense part's optimizer tells apart.

Shape legend: B rows, F fields, D embedding dim.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from ziggurat.interactions.mlp import MLP
from ziggurat.models.build import ModelConfig, build_model
from ziggurat.models.dlrm import DLRM
from ziggurat.models.model import ModelDims
from ziggurat.models.wukong import Wukong

TABLES_LR = 0.003
"""Of the embeddings' Adam, whatever trains the dense part."""


class Learner(ABC):
    """A model and its data.

    Attributes:
        dense: parameters that the compared optimizer trains, by name.
        others: the optimizer of the others, if there are any.
    """

    dense: dict[str, nn.Parameter]
    others: torch.optim.Optimizer | None = None

    @abstractmethod
    def batches(self, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Of the training rows, for ever, each epoch in another order."""

    @abstractmethod
    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Mean log-loss of a batch."""

    @abstractmethod
    def validation(self) -> float:
        """Mean log-loss of the validation rows."""


@dataclass(frozen=True, slots=True)
class Task:
    """A training to compare optimizers on.

    Attributes:
        name: of it.
        told: for the reader.
        learner: seed -> a fresh one.
        steps: that it takes.
        every: steps from one evaluation to the next.
        optimizers: that are compared on it, AdamW first.
    """

    name: str
    told: str
    learner: Callable[[int], Learner]
    steps: int
    every: int
    optimizers: tuple[str, ...] = ("adamw", "shampoo")


class Rows:
    """Rows to learn, and others to be judged by."""

    def __init__(self, train: tuple[Tensor, Tensor], valid: tuple[Tensor, Tensor]) -> None:
        self.train, self.valid = train, valid

    def batches(self, size: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """For ever; what an epoch has left over is left out."""
        generator = torch.Generator().manual_seed(seed)
        inputs, labels = self.train
        while True:
            order = torch.randperm(len(labels), generator=generator)
            for chosen in order.split(size)[: len(labels) // size]:
                yield inputs[chosen], labels[chosen]


class Recommender(Learner):
    """Ids of F fields, one table for all of them, and a model of ours over what it gives.

    Args:
        rows: ids (N, F) and labels (N,).
        ids: that there are.
        config: of the model.
        seed: of the initial weights.
    """

    def __init__(self, rows: Rows, ids: int, config: ModelConfig, seed: int) -> None:
        torch.manual_seed(seed)
        self._rows = rows
        fields = rows.train[0].shape[1]
        self._table = nn.Embedding(ids, DIM)
        nn.init.normal_(self._table.weight, std=0.01)
        self._model = build_model(config, ModelDims(dense=0, features=fields, dim=DIM))
        self.dense = dict(self._model.named_parameters())
        self.others = torch.optim.Adam(self._table.parameters(), lr=TABLES_LR)

    def batches(self, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        return self._rows.batches(BATCH_SIZE, seed)

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        logits_BT = self._model(torch.zeros(len(inputs), 0), self._table(inputs))
        return F.binary_cross_entropy_with_logits(logits_BT[:, 0], labels)

    @torch.no_grad()
    def validation(self) -> float:
        self._model.eval()
        inputs, labels = self._rows.valid
        pairs = zip(inputs.split(8192), labels.split(8192), strict=True)
        total = sum(float(self.loss(some, truth)) * len(truth) for some, truth in pairs)
        self._model.train()
        return total / len(labels)


class Residual(nn.Module):
    """Two convolutions beside a way past them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels) for _ in range(2)])

    def forward(self, images: Tensor) -> Tensor:
        inner = F.relu(self.norms[0](self.first(images)))
        return F.relu(images + self.norms[1](self.second(inner)))


class Digits(Learner):
    """scikit-learn's 1,797 handwritten digits and a small ResNet; a third of them for validation."""

    BATCH = 64

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        pixels, digits = cast("tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]", load_digits(return_X_y=True))
        images = torch.from_numpy(pixels / 16 - 0.5).float().view(-1, 1, 8, 8)
        labels = torch.from_numpy(digits).long()
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        train, valid = order[:1200], order[1200:]
        self._rows = Rows((images[train], labels[train]), (images[valid], labels[valid]))
        self._network = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), Residual(16),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(), Residual(32),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
        )  # fmt: skip
        self.dense = dict(self._network.named_parameters())

    def batches(self, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        return self._rows.batches(self.BATCH, seed)

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self._network(inputs), labels)

    @torch.no_grad()
    def validation(self) -> float:
        self._network.eval()
        found = float(self.loss(*self._rows.valid))
        self._network.train()
        return found


def tasks(data: Path | None, quick: bool) -> list[Task]:
    """Those that can be had: with Frappe where ``data`` has it."""
    if quick:
        return [Task("digits", "", Digits, 12, 4, ALL)]
    drawn, ids = drawn_rows(), DRAWN_FIELDS * DRAWN_IDS
    told = "on 200,000 drawn rows of 26 fields, clicks by pairs of them; batch 1,024"
    found = [
        Task("drawn", f"DLRM (MLP 256-128) {told}", partial(Recommender, drawn, ids, _DLRM), 600, 20, ALL),
        Task("drawn_wukong", f"Wukong (2 layers) {told}", partial(Recommender, drawn, ids, _WUKONG), 500, 20),
        Task("digits", "a ResNet of 2 blocks on scikit-learn's digits; batch 64", Digits, 600, 10, ALL),
    ]
    if data is not None:
        frappe, ids = frappe_rows(data)
        told = f"on Frappe, judged by {VALIDATION:,} of its validation rows; batch 1,024"
        wukong, dlrm = (partial(Recommender, frappe, ids, each) for each in (_WUKONG, _DLRM))
        found += [
            Task("frappe", f"Wukong (2 layers) {told}", wukong, 800, 25, MOST),
            Task("frappe_dlrm", f"DLRM (MLP 256-128) {told}", dlrm, 800, 25),
        ]
    return found


MOST = ("adamw", "shampoo", "eigenbasis", "peer_shampoo", "peer_soap")
ALL = (*MOST, "shampoo_often", "shampoo_seldom")
VALIDATION = 20_000
DIM, BATCH_SIZE = 16, 1024


_DLRM = DLRM.Config(top=MLP.Config(hidden=(256, 128)))
_WUKONG = Wukong.Config(layers=2, rank=8)
DRAWN_FIELDS, DRAWN_IDS, DRAWN_ROWS = 26, 300, 200_000


def frappe_rows(folder: Path) -> tuple[Rows, int]:
    """The board's training rows, some of its validation rows, and how many ids there are."""
    import polars as pl

    def part(name: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        table = pl.read_parquet(folder / f"{name}.parquet")
        ids = table.select(pl.exclude("label")).to_numpy().astype(np.int64)
        return ids, table["label"].to_numpy().astype(np.float32)

    train, valid = part("train"), part("valid")
    ids = int(max(train[0].max(), valid[0].max())) + 1
    judges = np.random.default_rng(0).permutation(len(valid[1]))[:VALIDATION]
    valid = valid[0][judges], valid[1][judges]
    return Rows(*((torch.from_numpy(inputs), torch.from_numpy(labels)) for inputs, labels in (train, valid))), ids


def drawn_rows() -> Rows:
    """Ids by Zipf's law; whether somebody clicks depends on ids' hidden vectors, by the sum of fields and by pairs."""
    draw = np.random.default_rng(0)
    weights = 1 / np.arange(1, DRAWN_IDS + 1) ** 1.05
    ids = draw.choice(DRAWN_IDS, (DRAWN_ROWS, DRAWN_FIELDS), p=weights / weights.sum())
    hidden = draw.normal(size=(DRAWN_FIELDS, DRAWN_IDS, 4)).astype(np.float32)
    vectors = hidden[np.arange(DRAWN_FIELDS), ids]
    total = vectors.sum(1)
    pairs = ((total**2).sum(1) - (vectors**2).sum((1, 2))) / 2
    logits = pairs / pairs.std() + vectors[..., 0].sum(1) / DRAWN_FIELDS**0.5 - 1.0
    labels = (draw.random(DRAWN_ROWS) < 1 / (1 + np.exp(-2 * logits))).astype(np.float32)
    inputs = torch.from_numpy(ids + np.arange(DRAWN_FIELDS) * DRAWN_IDS)
    truth, cut = torch.from_numpy(labels), DRAWN_ROWS * 9 // 10
    return Rows((inputs[:cut], truth[:cut]), (inputs[cut:], truth[cut:]))
