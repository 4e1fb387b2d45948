"""How long the fused kernel takes for a set of tables, learned from measurements.

The time of a set is not the sum of its tables' times: they share a call, its fixed costs and the caches. So a network
embeds each table, sums the embeddings and reads the time off the sum (AutoShard, arXiv 2208.06399, section 3.2), which
serves any number of tables in any order. Ours differs in three ways. A table's embedding is positive and in proportion
to the memory that its look-ups move, so that what is learned is how fast, and a table ten times as busy as any that was
measured comes out at some ten times the time. The time is a weighted sum of them times a learned correction, so that
sets larger than any that was measured come out nearly additive. And what is fitted is the logarithm of the time, since
sets of one table and of a hundred shall both be right to the same percentage.

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


@dataclass(frozen=True, slots=True)
class CostSample:
    """A measured set of tables.

    Attributes:
        features: of each table, (T, F).
        seconds: that the kernel took, forward and backward.
    """

    features: Floats
    seconds: float


@dataclass(frozen=True, slots=True)
class Errors:
    """How far predictions of sets that were not learned from are off.

    Attributes:
        samples: how many sets.
        median: of the relative errors, |predicted − measured| / measured.
        ninth: the relative error that nine of ten stay below.
        rank_correlation: Spearman's, of predicted and measured.
    """

    samples: int
    median: float
    ninth: float
    rank_correlation: float


class CostNetwork:
    """Predicts seconds; in numpy, since planners ask for few sets at a time and often.

    Args:
        weights: of the layers, as :func:`fit` leaves them.
        origin: what it was measured on and how good it is, for people and for the choice among several.
    """

    def __init__(self, weights: Weights, origin: dict[str, Any]) -> None:
        self._of = {name: weight.astype(np.float64) for name, weight in weights.items()}
        self.origin = origin

    def embed(self, features_TF: Floats) -> Floats:
        """(T, F) -> (T, E): what sums up over the tables of a set."""
        of = self._of
        standard_TF = (np.clip(features_TF, of["least"], of["greatest"]) - of["mean"]) / of["std"]
        hidden_TH = np.maximum(standard_TF @ of["table.0.weight"].T + of["table.0.bias"], 0)
        rates_TE = _softplus(hidden_TH @ of["table.2.weight"].T + of["table.2.bias"])
        return rates_TE * work(features_TF)[:, None]

    def seconds(self, sums_SE: Floats) -> Floats:
        """(S, E), sums of embeddings -> (S,); 0 for a set without tables."""
        of = self._of
        seen_SE = np.minimum(np.log1p(sums_SE), of["most"])  # the correction of larger sets is that of the largest
        hidden = np.maximum(seen_SE @ of["head.0.weight"].T + of["head.0.bias"], 0)
        correction_S = (hidden @ of["head.2.weight"].T + of["head.2.bias"])[..., 0]
        found_S = of["unit"] * np.exp(correction_S) * (of["fixed"] + self.additive(sums_SE))
        return np.where(sums_SE.any(-1), found_S, 0.0)

    def additive(self, embedded_SE: Floats) -> Floats:
        """(S, E) -> (S,): what embeddings contribute to seconds, in some unit, before the correction for the set."""
        return embedded_SE @ _softplus(self._of["scale"])

    def predict(self, sets: Sequence[Floats]) -> Floats:
        """Seconds of each set, of features (T, F)."""
        return self.seconds(np.stack([self.embed(features).sum(0) for features in sets]))

    def errors(self, samples: Sequence[CostSample]) -> Errors:
        """Against measurements."""
        from scipy.stats import spearmanr  # most of a second, and seldom needed

        predicted, measured = self.predict([s.features for s in samples]), np.array([s.seconds for s in samples])
        off = np.abs(predicted / measured - 1)
        correlation = float(spearmanr(predicted, measured).statistic)  # pyright: ignore[reportAttributeAccessIssue]
        return Errors(len(samples), float(np.median(off)), float(np.quantile(off, 0.9)), correlation)

    def save(self, path: Path) -> None:
        """Write ``path`` and, beside it, its origin."""
        save_weights(path, {name: weight.astype(np.float32) for name, weight in self._of.items()}, self.origin)

    @classmethod
    def load(cls, path: Path) -> CostNetwork:
        """What :meth:`save` wrote.

        Raises:
            DataError: of a version that this ziggurat does not know.
        """
        return cls(*load_weights(path, "measure anew: `ziggurat doctor --measure --out FOLDER`"))


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
        """Log of the seconds of each set over the unit, (S,)."""
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
    step: Callable[[int], None] = lambda done: None,
) -> CostNetwork:
    """A network fitted to measured sets; a tenth is held out, and the errors on it are put into ``origin``.

    Args:
        samples: some hundreds at least.
        origin: what was measured where.
        seed: of weights, batches and what is held out.
        epochs, batch, lr: of AdamW, its rate falling to nothing along a cosine.
        step: is told each epoch that is done.
    """
    order = np.random.default_rng(seed).permutation(len(samples))
    held = [samples[i] for i in order[: len(samples) // 10]]
    learned = [samples[i] for i in order[len(samples) // 10 :]]
    rows = np.concatenate([sample.features for sample in learned])
    mean, std = rows.mean(0), np.maximum(rows.std(0), 1e-3)
    unit = float(np.median([sample.seconds for sample in learned]))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = _Layers(unit)
        _train(layers, learned, mean, std, epochs, batch, lr, step)
    state = {name: tensor.detach().numpy() for name, tensor in layers.state_dict().items()}
    fixed = np.exp(state.pop("fixed_log"))
    weights = {**state, "fixed": fixed, "unit": np.array(unit), "mean": mean, "std": std}
    weights |= {"least": rows.min(0), "greatest": rows.max(0)}  # of other tables only the work goes on beyond
    weights["most"] = np.full(EMBEDDING, np.inf)
    found = CostNetwork({name: np.asarray(each, np.float32) for name, each in weights.items()}, origin)
    sums = np.stack([found.embed(sample.features).sum(0) for sample in learned])
    weights["most"] = np.log1p(sums.max(0))
    found = CostNetwork({name: np.asarray(each, np.float32) for name, each in weights.items()}, origin)
    if held:
        found.origin = {**origin, "samples": len(learned), "held_out": asdict(found.errors(held))}
    return found


def _train(
    layers: _Layers,
    samples: Sequence[CostSample],
    mean: Floats,
    std: Floats,
    epochs: int,
    batch: int,
    lr: float,
    step: Callable[[int], None],
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
        step(epoch + 1)


def work(features_TF: Floats) -> Floats:
    """(T, F) -> (T,): floats that look-ups of each table move in a step, in millions; ids as two floats.

    A row read for each id, for each row that is touched its weights read and written and its state, a vector written
    for each bag.
    """
    columns, _, ids, bags, touched, state = 2.0 ** features_TF[:, :6].T - 1
    return (ids * (2 + columns) + touched * (2 * columns + state) + bags * (2 + columns)) / 1e6


def _softplus(values: Floats) -> Floats:
    return np.logaddexp(values, 0)
