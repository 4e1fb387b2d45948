"""Predicts how long the fused kernel takes for a set of tables; learned from measurements.

The time of a set is not the sum of its tables' times: they share a call, its fixed costs and the caches. So a network
embeds each table, sums the embeddings and predicts the time from the sum (AutoShard, arXiv 2208.06399, section 3.2).
This works for any number of tables in any order. Ours differs in three ways:

- A table's embedding is positive and proportional to the memory that its look-ups move. The network then only learns
  the speed, and a table ten times as busy as any measured one is predicted to take about ten times as long.
- The time is a weighted sum of the embeddings times a learned correction, so that predictions for sets larger than any
  measured one are nearly additive.
- The logarithm of the time is fitted, so that sets of one table and of a hundred have the same relative error.

Shape legend: T tables, F features, E embedding width, S sets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ziggurat.planning.autoshard.features import FEATURES
from ziggurat.planning.autoshard.weights import Weights, load_weights, save_weights

Floats = npt.NDArray[np.float64]

HIDDEN, EMBEDDING, HEAD = 128, 32, 64
DECAY = 0.1


_SHAPES = {
    **dict.fromkeys(("mean", "std", "least", "greatest"), (FEATURES,)),
    **dict.fromkeys(("scale", "most", "table.2.bias"), (EMBEDDING,)),
    **dict.fromkeys(("fixed", "unit"), ()),
    "table.0.weight": (HIDDEN, FEATURES),
    "table.0.bias": (HIDDEN,),
    "table.2.weight": (EMBEDDING, HIDDEN),
    "head.0.weight": (HEAD, EMBEDDING),
    "head.0.bias": (HEAD,),
    "head.2.weight": (1, HEAD),
    "head.2.bias": (1,),
}
"""The shape of every weight."""


@dataclass(frozen=True, slots=True)
class CostSample:
    """A measured set of tables.

    Attributes:
        features: features of each table, (T, F).
        seconds: seconds that the kernel took, forward and backward.
    """

    features: Floats
    seconds: float


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of predictions for sets outside the training data.

    Attributes:
        samples: number of sets.
        median: median of the relative errors, |predicted − measured| / measured.
        ninth: 90th percentile of the relative errors.
        rank_correlation: Spearman's rank correlation of predicted and measured times.
    """

    samples: int
    median: float
    ninth: float
    rank_correlation: float


class CostNetwork:
    """Predicts seconds. It uses numpy, since planners often predict only a few sets at a time.

    Args:
        weights: the weights of the layers, as made by :func:`fit`.
        origin: what the costs were measured on and how accurate they are, for users and to choose among networks.
    """

    def __init__(self, weights: Weights, origin: dict[str, Any]) -> None:
        self._weights = {name: weight.astype(np.float64) for name, weight in weights.items()}
        self.origin = origin

    def embed(self, features_TF: Floats) -> Floats:
        """(T, F) -> (T, E): the tables' embeddings, which are summed over the tables of a set."""
        weights = self._weights
        standard_TF = (np.clip(features_TF, weights["least"], weights["greatest"]) - weights["mean"]) / weights["std"]
        hidden_TH = np.maximum(standard_TF @ weights["table.0.weight"].T + weights["table.0.bias"], 0)
        rates_TE = _softplus(hidden_TH @ weights["table.2.weight"].T + weights["table.2.bias"])
        return rates_TE * work(features_TF)[:, None]

    def seconds(self, sums_SE: Floats) -> Floats:
        """(S, E), summed embeddings of each set -> (S,), its seconds; 0 for a set without tables."""
        weights = self._weights
        seen_SE = np.minimum(np.log1p(sums_SE), weights["most"])  # larger sets: correction of the largest
        hidden = np.maximum(seen_SE @ weights["head.0.weight"].T + weights["head.0.bias"], 0)
        correction_S = (hidden @ weights["head.2.weight"].T + weights["head.2.bias"])[..., 0]
        found_S = weights["unit"] * np.exp(correction_S) * (weights["fixed"] + self.additive(sums_SE))
        return np.where(sums_SE.any(-1), found_S, 0.0)

    def additive(self, embedded_SE: Floats) -> Floats:
        """(S, E) -> (S,): the embeddings' contribution to the seconds, up to a unit, before the set's correction."""
        return embedded_SE @ _softplus(self._weights["scale"])

    def predict(self, sets: Sequence[Floats]) -> Floats:
        """Returns the seconds of each set, given the features (T, F) of its tables."""
        return self.seconds(np.stack([self.embed(features).sum(0) for features in sets]))

    def errors(self, samples: Sequence[CostSample]) -> Errors:
        """Returns the errors of the predictions for measured samples."""
        from scipy.stats import spearmanr  # takes most of a second to import and is seldom needed

        predicted, measured = self.predict([s.features for s in samples]), np.array([s.seconds for s in samples])
        off = np.abs(predicted / measured - 1)
        correlation = float(spearmanr(predicted, measured).statistic)  # pyright: ignore[reportAttributeAccessIssue]
        return Errors(len(samples), float(np.median(off)), float(np.quantile(off, 0.9)), correlation)

    def save(self, path: Path) -> None:
        """Writes the weights to ``path``, and the origin also to a ``.json`` file of the same name."""
        save_weights(path, {name: weight.astype(np.float32) for name, weight in self._weights.items()}, self.origin)

    @classmethod
    def load(cls, path: Path) -> CostNetwork:
        """Loads a network saved by :meth:`save`.

        Raises:
            DataError: the file is damaged, or of a version that this ziggurat does not know.
        """
        return cls(*load_weights(path, "measure again: `ziggurat doctor --measure --out FOLDER`", _SHAPES))


class _Layers(nn.Module):
    def __init__(self, unit: float) -> None:
        super().__init__()
        self.table = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, EMBEDDING))
        last = nn.Linear(HEAD, 1)
        self.head = nn.Sequential(nn.Linear(EMBEDDING, HEAD), nn.ReLU(), last)
        self.scale, self.fixed_log = nn.Parameter(torch.zeros(EMBEDDING)), nn.Parameter(torch.tensor(-3.0))
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.unit = unit

    def forward(self, standard_TF: Tensor, work_T: Tensor, set_of_T: Tensor, sets: int) -> Tensor:
        """Returns the log of the seconds of each set in units of ``unit``, (S,)."""
        embedded_TE = nn.functional.softplus(self.table(standard_TF)) * work_T[:, None]
        sums_SE = torch.zeros(sets, EMBEDDING).index_add(0, set_of_T, embedded_TE)
        additive_S = self.fixed_log.exp() + sums_SE @ nn.functional.softplus(self.scale)
        return additive_S.log() + self.head(sums_SE.log1p())[:, 0]


def fit(
    samples: Sequence[CostSample],
    origin: dict[str, Any],
    *,
    seed: int = 0,
    epochs: int = 300,
    batch: int = 64,
    lr: float = 2e-3,
    on_epoch: Callable[[int], None] = lambda done: None,
) -> CostNetwork:
    """Fits a network to measured sets. A tenth is held out, and the errors on it are added to ``origin``.

    Args:
        samples: the measured sets, at least some hundreds.
        origin: what was measured, and on which machine.
        seed: seed for the initial weights, the batches and the choice of held-out samples.
        epochs, batch, lr: epochs, sets a batch and initial learning rate of AdamW; the rate falls to 0 along a cosine.
        on_epoch: called after each epoch with the number of epochs done.
    """
    order = np.random.default_rng(seed).permutation(len(samples))
    held = [samples[i] for i in order[: len(samples) // 10]]
    trained_on = [samples[i] for i in order[len(samples) // 10 :]]
    rows = np.concatenate([sample.features for sample in trained_on])
    mean, std = rows.mean(0), np.maximum(rows.std(0), 1e-3)
    unit = float(np.median([sample.seconds for sample in trained_on]))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = _Layers(unit)
        _train(layers, trained_on, mean, std, epochs, batch, lr, on_epoch)
    state = {name: tensor.detach().numpy() for name, tensor in layers.state_dict().items()}
    fixed = np.exp(state.pop("fixed_log"))
    weights = {**state, "fixed": fixed, "unit": np.array(unit), "mean": mean, "std": std}
    weights |= {"least": rows.min(0), "greatest": rows.max(0)}  # features beyond these are clipped, only `work` is not
    weights["most"] = np.full(EMBEDDING, np.inf)
    found = CostNetwork({name: np.asarray(each, np.float32) for name, each in weights.items()}, origin)
    sums = np.stack([found.embed(sample.features).sum(0) for sample in trained_on])
    weights["most"] = np.log1p(sums.max(0))
    found = CostNetwork({name: np.asarray(each, np.float32) for name, each in weights.items()}, origin)
    if held:
        found.origin = {**origin, "samples": len(trained_on), "held_out": asdict(found.errors(held))}
    return found


def _train(
    layers: _Layers,
    samples: Sequence[CostSample],
    mean: Floats,
    std: Floats,
    epochs: int,
    batch: int,
    lr: float,
    on_epoch: Callable[[int], None],
) -> None:
    inputs = [torch.from_numpy((sample.features - mean) / std).float() for sample in samples]
    works = [torch.from_numpy(work(sample.features)).float() for sample in samples]
    wanted = torch.tensor([sample.seconds / layers.unit for sample in samples]).log()
    optimizer = torch.optim.AdamW(layers.parameters(), lr, weight_decay=DECAY)
    steps = epochs * -(-len(samples) // batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for epoch in range(epochs):
        for part in torch.randperm(len(samples)).split(batch):
            members = [inputs[i] for i in part.tolist()]
            set_of_T = torch.repeat_interleave(torch.arange(len(members)), torch.tensor([len(m) for m in members]))
            work_T = torch.cat([works[i] for i in part.tolist()])
            predicted_S = layers(torch.cat(members), work_T, set_of_T, len(members))
            loss = nn.functional.smooth_l1_loss(predicted_S, wanted[part], beta=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        on_epoch(epoch + 1)


def work(features_TF: Floats) -> Floats:
    """(T, F) -> (T,): millions of floats that the look-ups of each table move in a step; an id counts as two floats.

    For each id a row is read. For each touched row the weights are read and written, and the state counts once. For
    each bag a vector is written.
    """
    columns, _, ids, bags, touched, state = 2.0 ** features_TF[:, :6].T - 1
    return (ids * (2 + columns) + touched * (2 * columns + state) + bags * (2 + columns)) / 1e6


def _softplus(values: Floats) -> Floats:
    return np.logaddexp(values, 0)
