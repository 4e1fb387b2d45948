"""The tasks on which optimizers are compared: small trainings that differ only in the dense part's optimizer.

Shape legend: N rows, B batch, C counts, F features, D embedding dim.
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
from ziggurat.models.build import ModelConfig
from ziggurat.models.dlrm import DLRM
from ziggurat.models.model import ModelDims
from ziggurat.models.wukong import Wukong

TABLES_LR = 0.003
"""The learning rate of Adam for the embeddings, with every optimizer of the dense part."""


Floats = npt.NDArray[np.float64]
Batch = tuple[Tensor, ...]
"""The inputs of some rows, and last their labels."""


class Learner(ABC):
    """A model and its data.

    Attributes:
        dense: name -> parameter, for the parameters that the compared optimizer trains.
        others: the optimizer of the other parameters, if there are any.
    """

    dense: dict[str, nn.Parameter]
    others: torch.optim.Optimizer | None = None

    @abstractmethod
    def batches(self, seed: int) -> Iterator[Batch]:
        """Yields batches of the training rows without end, each epoch in another order."""

    @abstractmethod
    def loss(self, *batch: Tensor) -> Tensor:
        """Returns the mean log-loss of a batch."""

    @abstractmethod
    def validation(self) -> float:
        """Returns the mean log-loss of the validation rows."""


@dataclass(frozen=True, slots=True)
class Task:
    """A training on which optimizers are compared.

    Attributes:
        name: the name of the task.
        description: the description for the notes.
        learner: a function that creates the learner for a seed.
        steps: the number of steps.
        every: the steps between evaluations.
        optimizers: the optimizers to compare, AdamW first.
    """

    name: str
    description: str
    learner: Callable[[int], Learner]
    steps: int
    every: int
    optimizers: tuple[str, ...] = ("adamw", "shampoo", "roots")


class Rows:
    """Training rows and validation rows."""

    def __init__(self, train: Batch, valid: Batch) -> None:
        self.train, self.valid = train, valid

    def batches(self, size: int, seed: int) -> Iterator[Batch]:
        """Yields shuffled batches without end; the remainder of an epoch is dropped."""
        generator = torch.Generator().manual_seed(seed)
        rows = len(self.train[-1])
        while True:
            order = torch.randperm(rows, generator=generator)
            for chosen in order.split(size)[: rows // size]:
                yield tuple(each[chosen] for each in self.train)


class Recommender(Learner):
    """One of our models on counts and ids, with a single embedding table for all features.

    Args:
        rows: counts (N, C), ids (N, F) and labels (N,).
        ids: the number of ids.
        config: the config of the model.
        batch: the batch size.
        seed: the seed of the initial weights.
    """

    def __init__(self, rows: Rows, ids: int, config: ModelConfig, batch: int, seed: int) -> None:
        torch.manual_seed(seed)
        self._rows, self._batch = rows, batch
        counts_NC, ids_NF, _ = rows.train
        self._table = nn.Embedding(ids, DIM)
        nn.init.normal_(self._table.weight, std=0.01)
        dims = ModelDims(dense=counts_NC.shape[1], features=ids_NF.shape[1], dim=DIM)
        self._model = config.build(dims)
        self.dense = dict(self._model.named_parameters())
        self.others = torch.optim.Adam(self._table.parameters(), lr=TABLES_LR)

    def batches(self, seed: int) -> Iterator[Batch]:
        return self._rows.batches(self._batch, seed)

    def loss(self, *batch: Tensor) -> Tensor:
        counts_BC, ids_BF, labels_B = batch
        logits_BT = self._model(counts_BC, self._table(ids_BF.long()))
        return F.binary_cross_entropy_with_logits(logits_BT[:, 0], labels_B)

    @torch.no_grad()
    def validation(self) -> float:
        self._model.eval()
        parts = zip(*(each.split(8192) for each in self._rows.valid), strict=True)
        total = sum(float(self.loss(*part)) * len(part[-1]) for part in parts)
        self._model.train()
        return total / len(self._rows.valid[-1])


class Residual(nn.Module):
    """A residual block of two convolutions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels) for _ in range(2)])

    def forward(self, images: Tensor) -> Tensor:
        inner = F.relu(self.norms[0](self.first(images)))
        return F.relu(images + self.norms[1](self.second(inner)))


class Digits(Learner):
    """A small ResNet on scikit-learn's 1,797 handwritten digits, of which a third are for validation.

    Training digits are shifted randomly by up to a pixel. Otherwise the model memorises the 1,200 images within a few
    epochs, and its validation loss is a matter of chance.
    """

    BATCH = 64
    PIXELS = 8

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        pixels, digits = cast("tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]", load_digits(return_X_y=True))
        images = torch.from_numpy(pixels / 16 - 0.5).float().view(-1, 1, self.PIXELS, self.PIXELS)
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

    def batches(self, seed: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(seed)
        along, every = torch.arange(self.PIXELS), torch.arange(self.BATCH)[:, None, None]
        for images, labels in self._rows.batches(self.BATCH, seed):
            wide = F.pad(images, (1, 1, 1, 1), value=-0.5)
            down, right = torch.randint(3, (2, self.BATCH, 1), generator=generator)
            rows, columns = down + along, right + along
            yield wide[every, 0, rows[:, :, None], columns[:, None, :]][:, None], labels

    def loss(self, *batch: Tensor) -> Tensor:
        inputs, labels = batch
        return F.cross_entropy(self._network(inputs), labels)

    @torch.no_grad()
    def validation(self) -> float:
        self._network.eval()
        found = float(self.loss(*self._rows.valid))
        self._network.train()
        return found


def tasks(data: Path | None, quick: bool) -> list[Task]:
    """Returns the tasks; those on Frappe need its folder ``data``."""
    if quick:
        return [Task("digits", "", Digits, 12, 4, ALL)]
    drawn, ids = drawn_rows(), DRAWN_FIELDS * DRAWN_IDS
    drawn_from = f"{DRAWN_ROWS:,} drawn rows of {DRAWN_COUNTS} counts and {DRAWN_FIELDS} fields"
    description = f"on {drawn_from}, each once; batch {BATCH_SIZE:,}"
    steps = DRAWN_ROWS // BATCH_SIZE
    wukong, dlrm = (partial(Recommender, drawn, ids, each, BATCH_SIZE) for each in (_WUKONG, _DLRM))
    found = [
        Task("drawn", f"DLRM (MLP 256-128) {description}", dlrm, steps, 20, (*OURS, *PEERS)),
        Task("drawn_wukong", f"Wukong (2 layers) {description}", wukong, steps, 20),
        Task(
            "digits",
            "a ResNet of 2 blocks on scikit-learn's digits, shifted by up to a pixel; batch 64",
            Digits,
            800,
            10,
            ALL,
        ),
    ]
    if data is not None:
        frappe, ids = frappe_rows(data)
        description = f"on Frappe, evaluated on {FRAPPE_VALIDATION_ROWS:,} of its validation rows"
        for kind, name, config, compared in (
            ("frappe", "Wukong (2 layers)", _WUKONG, (*OURS, "peer_soap")),
            ("frappe_dlrm", "DLRM (MLP 256-128)", _DLRM, OURS),
        ):
            often, once = (partial(Recommender, frappe, ids, config, each) for each in (BATCH_SIZE, SINGLE_EPOCH_BATCH))
            steps = len(frappe.train[-1]) // SINGLE_EPOCH_BATCH // 20 * 20
            found += [
                Task(kind, f"{name} {description}; batch {BATCH_SIZE:,}", often, 800, 25, compared),
                Task(
                    f"{kind}_once", f"{name} {description}, each row once; batch {SINGLE_EPOCH_BATCH}", once, steps, 20
                ),
            ]
    return found


OURS = ("adamw", "shampoo", "roots")
PEERS = ("peer_shampoo", "peer_soap")
ALL = (*OURS, *PEERS, "often")
FRAPPE_VALIDATION_ROWS, DRAWN_VALIDATION_ROWS = 20_000, 10_240
DIM, BATCH_SIZE, SINGLE_EPOCH_BATCH = 16, 1024, 256


_DLRM = DLRM.Config(top=MLP.Config(hidden=(256, 128)))
_WUKONG = Wukong.Config(layers=2, rank=8)
DRAWN_COUNTS, DRAWN_FIELDS, DRAWN_IDS, DRAWN_ROWS = 13, 26, 300, 1_024_000


def frappe_rows(folder: Path) -> tuple[Rows, int]:
    """Returns Frappe's training rows with some of its validation rows, and the number of ids."""
    import polars as pl

    def part(name: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        table = pl.read_parquet(folder / f"{name}.parquet")
        ids = table.select(pl.exclude("label")).to_numpy().astype(np.int64)
        return ids, table["label"].to_numpy().astype(np.float32)

    train, valid = part("train"), part("valid")
    ids = int(max(train[0].max(), valid[0].max())) + 1
    chosen = np.random.default_rng(0).permutation(len(valid[1]))[:FRAPPE_VALIDATION_ROWS]
    valid = valid[0][chosen], valid[1][chosen]
    parts = ((torch.from_numpy(inputs), torch.from_numpy(labels)) for inputs, labels in (train, valid))
    return Rows(*((torch.zeros(len(labels), 0), inputs, labels) for inputs, labels in parts)), ids


def drawn_rows() -> Rows:
    """Generates rows of Criteo's shape: ids by Zipf's law, and logarithms of counts that share a few latent causes.

    The click probability depends on latent vectors of the ids, through their sum and through pairs, and on the causes
    through a random network.
    """
    draw = np.random.default_rng(0)
    weights = 1 / np.arange(1, DRAWN_IDS + 1) ** 1.05
    hidden = draw.normal(size=(DRAWN_FIELDS, DRAWN_IDS, 4)).astype(np.float32)
    mixed, heights = draw.normal(size=(4, DRAWN_COUNTS)), draw.uniform(0, 5, DRAWN_COUNTS)
    first, second = draw.normal(size=(4, 16)), draw.normal(size=16)
    offsets = np.arange(DRAWN_FIELDS)

    def hidden_of(rows: int) -> tuple[npt.NDArray[np.int64], Floats, Floats, Floats]:
        """Returns ids, causes, and the unscaled terms of pairs and of single ids."""
        ids = draw.choice(DRAWN_IDS, (rows, DRAWN_FIELDS), p=weights / weights.sum())
        vectors, causes = hidden[offsets, ids], draw.normal(size=(rows, 4))
        pairs = ((vectors.sum(1) ** 2).sum(1) - (vectors**2).sum((1, 2))) / 2
        alone = vectors[..., 0].sum(1) / DRAWN_FIELDS**0.5
        return ids, causes, pairs, alone

    def network(causes: Floats) -> Floats:
        return np.tanh(causes @ first) @ second

    _, causes, pairs, _ = hidden_of(DRAWN_VALIDATION_ROWS)
    middle, spread, network_spread = pairs.mean(), pairs.std(), network(causes).std()

    def some(rows: int) -> Batch:
        ids, causes, pairs, alone = hidden_of(rows)
        logits = (pairs - middle) / spread + alone + network(causes) / network_spread - 1.0
        noise = draw.normal(size=(rows, DRAWN_COUNTS))
        counts = np.log1p(np.floor(np.exp(heights + 0.7 * causes @ mixed + 0.5 * noise)))
        labels = draw.random(rows) < 1 / (1 + np.exp(-2 * logits))
        inputs = (ids + offsets * DRAWN_IDS).astype(np.int32)
        return tuple(map(torch.from_numpy, (counts.astype(np.float32), inputs, labels.astype(np.float32))))

    chunks = zip(*(some(DRAWN_ROWS // 10) for _ in range(10)), strict=True)
    return Rows(tuple(map(torch.cat, chunks)), some(DRAWN_VALIDATION_ROWS))
