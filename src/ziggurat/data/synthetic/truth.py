"""The planted structure: the effects that determine the labels, and the scores of the best possible model.

Legend: B rows, T labels, L = 2 latent dimensions.

For every label t, summed over features f, planted pairs (f, g), triples (f, g, h), products P and likenesses Q::

    logit_t = bias_t + first_t  · Σ α_tf  e_f              / √features
                     + second_t · Σ β_tfg ⟨z_f, z_g⟩       / √(L · pairs)
                     + third_t  · Σ γ_tfgh Σ z_f z_g z_h   / √(L · triples)
                     + high_t   · (Σ δ_tP Σ Π_{f∈P} d_f / √L + Σ ε_tQ Π_{(f,g)∈Q} ⟨d_f, d_g⟩ / √L) / √H
    label_t ~ Bernoulli(sigmoid(logit_t))

The effect e and the latent vector z of an id are independent standard normals; those of a bag or sequence are the means
over its ids; those of a number are polynomials of its standardised logarithm. d = √L z / |z| is the direction of z; it
is used because a product of many bounded numbers is not dominated by its rarest rows, as a product of many normals
would be. The columns of Q are taken in pairs; H is the number of products and likenesses. All terms are functions of
visible values, so the Bayes figures (AUC and log-loss of the true probabilities) can be reached by a model, but not
exceeded. With ``kinds``, e and z of an id are √(1 - own) of its kind's and √own of its own draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ziggurat.core.hashing import hash_integers
from ziggurat.data.synthetic.config import CategoricalColumn, GeneratorConfig, ManyColumn, NumericColumn
from ziggurat.data.synthetic.sampling import Floats, Floats32, Integers, Purpose, normals

LATENT = 2
ROOT = np.float32(math.sqrt(LATENT))
SLOTS = 1 << 18  # beyond this number, ids share effects, so that tables of any cardinality fit in memory
BINS = 1 << 16
LARGEST_LOGIT = 16.0


@dataclass(frozen=True, slots=True)
class Signal:
    """The contribution of a feature: effect_B, and latent_BL if the feature is in a pair or a larger group."""

    effect_B: Floats32
    latent_BL: Floats32 | None


class Planted:
    """The planted effects, determined by a config and its seed."""

    def __init__(self, config: GeneratorConfig) -> None:
        self.config = config
        self.columns = {column.name: number for number, column in enumerate(config.features)}
        self.interacting = {name for group in config.groups for name in group}
        self.effects: dict[str, Floats32] = {}
        self.latents: dict[str, Floats32] = {}
        for column in config.features:
            self._draw_effects(column)
        terms = len(self.columns) + len(config.groups)
        self.weights_TW = np.stack(
            [normals(terms, config.seed, Purpose.WEIGHTS, 0, label) for label in range(len(config.labels))]
        )
        self.biases = [0.0] * len(config.labels)

    def _draw_effects(self, column: NumericColumn | CategoricalColumn | ManyColumn) -> None:
        """Draws the effects of a column. Slot 0 is for missing cells; numbers have coefficients instead of a table."""
        if isinstance(column, ManyColumn) and column.ids_of is not None:
            self.effects[column.name] = self.effects[column.ids_of]
            self.latents[column.name] = self.latents[column.ids_of]
            return
        slots = 3 if isinstance(column, NumericColumn) else min(column.cardinality, SLOTS) + 1
        draws = normals(slots * (1 + LATENT), self.config.seed, Purpose.EFFECTS, 0, self.columns[column.name])
        if isinstance(column, CategoricalColumn) and column.kinds is not None:
            draws = self._of_kinds(column, slots, column.kinds, draws)
        self.effects[column.name] = draws[:slots]
        latent = draws[slots:].reshape(slots, LATENT).copy()
        latent[0] = 0
        self.latents[column.name] = latent

    def _of_kinds(self, column: CategoricalColumn, slots: int, kinds: int, draws: Floats32) -> Floats32:
        """Returns draws that consist of those of the id's kind, and of its own; kinds have nothing to do with ranks."""
        size = 1 + LATENT
        of_kind = normals(kinds * size, self.config.seed, Purpose.EFFECTS, 1, self.columns[column.name])
        kind = (hash_integers(np.arange(slots), self.config.seed) % np.uint64(kinds)).astype(np.int64)
        effects, latents = of_kind[:kinds][kind], of_kind[kinds:].reshape(kinds, LATENT)[kind]
        shared = np.concatenate([effects, latents.ravel()])
        return (np.sqrt(1 - column.own) * shared + np.sqrt(column.own) * draws).astype(np.float32)

    def of_numbers(self, column: NumericColumn, values: Floats) -> Signal:
        """Returns the signal of visible values, which are NaN where missing."""
        missing = np.isnan(values)
        above = values - column.lowest + (0.5 if column.integer else 0.0)
        score = np.log(np.maximum(np.where(missing, column.median, above), 1e-9) / column.median) / column.spread
        score = np.clip(score, -3, 3).astype(np.float32)
        missing_effect, slope, curve = self.effects[column.name]
        effect = np.where(missing, missing_effect, slope * score + curve * (score * score - 1) * np.float32(0.5))
        if column.name not in self.interacting:
            return Signal(effect, None)
        # Mean 0 and variance 1 in both dimensions: z = (g, (g² - 1)/√2), so that a product with it is not linear.
        curvature = (score * score - 1) * np.float32(math.sqrt(0.5))
        latent = np.stack([score, curvature], axis=1) * np.where(missing, 0, 1).astype(np.float32)[:, None]
        return Signal(effect, latent)

    def of_ids(self, column: CategoricalColumn, rank: Integers) -> Signal:
        """Returns the signal of ranks, which are -1 where missing."""
        slot = np.where(rank < 0, 0, rank % SLOTS + 1)
        latent = self.latents[column.name][slot] if column.name in self.interacting else None
        return Signal(self.effects[column.name][slot], latent)

    def of_many(self, column: ManyColumn, rank: Integers, offsets: Integers) -> Signal:
        """Returns the signal of the concatenated ranks of all rows' ids; ``offsets`` (B + 1) delimits the rows."""
        slot = rank % SLOTS + 1
        lengths = np.maximum(np.diff(offsets), 1)

        def means(values: Floats32) -> Floats32:
            sums = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
            return ((sums[offsets[1:]] - sums[offsets[:-1]]) / lengths).astype(np.float32)

        effect = means(self.effects[column.name][slot])
        if column.name not in self.interacting:
            return Signal(effect, None)
        latent = self.latents[column.name][slot]
        return Signal(effect, np.stack([means(latent[:, dim]) for dim in range(LATENT)], axis=1))

    def logits(self, signals: dict[str, Signal]) -> Floats:
        """Returns the logits: (T, B), float64."""
        config = self.config
        rows = len(next(iter(signals.values())).effect_B)
        total_TB = np.zeros((len(config.labels), rows))
        first = [signals[name].effect_B for name in self.columns]
        second = [self._product(signals, pair) for pair in config.pairs]
        third = [self._product(signals, triple) for triple in config.triples]
        high = [self._product(signals, group, _direction) / ROOT for group in config.products]
        high += [self._likeness(signals, group) for group in config.likenesses]
        for number, label in enumerate(config.labels):
            weights = iter(self.weights_TW[number])
            scales = (
                (first, label.first_order / math.sqrt(max(1, len(first)))),
                (second, label.second_order / math.sqrt(max(1, LATENT * len(second)))),
                (third, label.third_order / math.sqrt(max(1, LATENT * len(third)))),
                (high, label.high_order / math.sqrt(max(1, len(high)))),
            )
            for terms, scale in scales:
                for term in terms:
                    total_TB[number] += float(next(weights)) * scale * term
            total_TB[number] += self.biases[number]
        return np.clip(total_TB, -LARGEST_LOGIT, LARGEST_LOGIT)

    def _product(
        self,
        signals: dict[str, Signal],
        names: tuple[str, ...],
        factor: Callable[[Floats32], Floats32] = lambda latent_BL: latent_BL,
    ) -> Floats32:
        product, *others = (factor(_latent(signals, name)) for name in names)
        for latent in others:
            product = product * latent
        return product[:, 0] + product[:, 1]

    def _likeness(self, signals: dict[str, Signal], names: tuple[str, ...]) -> Floats32:
        """Returns the product of ⟨d_f, d_g⟩ / √L, each of variance 1, over pairs of columns."""
        pairs = zip(names[::2], names[1::2], strict=True)
        dots = [self._product(signals, pair, _direction) / ROOT for pair in pairs]
        return np.prod(dots, axis=0)

    def calibrate(self, logits_TB: Floats) -> None:
        """Chooses the biases so that each label has its configured rate, given logits without biases."""
        for number, label in enumerate(self.config.labels):
            low, high = -LARGEST_LOGIT, LARGEST_LOGIT
            for _ in range(40):
                middle = (low + high) / 2
                if sigmoid(logits_TB[number] + middle).mean() < label.rate:
                    low = middle
                else:
                    high = middle
            self.biases[number] = round((low + high) / 2, 6)

    def describe(self) -> list[dict[str, Any]]:
        """Returns the bias of each label and the weight of every planted term, for the truth file."""
        names = [*self.columns, *(" x ".join(group) for group in self.config.groups)]
        for index, group in enumerate(self.config.likenesses, len(names) - len(self.config.likenesses)):
            names[index] = " x ".join(f"({f}, {g})" for f, g in zip(group[::2], group[1::2], strict=True))
        return [
            {"bias": bias, "weights": {name: round(float(w), 6) for name, w in zip(names, weights, strict=True)}}
            for bias, weights in zip(self.biases, self.weights_TW, strict=True)
        ]


def _latent(signals: dict[str, Signal], name: str) -> Floats32:
    latent = signals[name].latent_BL
    assert latent is not None, name
    return latent


def _direction(latent_BL: Floats32) -> Floats32:
    """Returns √L z / |z|, or zero if z is zero."""
    length_B1 = np.sqrt((latent_BL * latent_BL).sum(axis=1, keepdims=True))
    return latent_BL / np.maximum(length_B1, np.float32(1e-12)) * ROOT


@dataclass(slots=True)
class Tally:
    """Sums over rows from which the Bayes figures of one label are computed; addition is exact up to rounding."""

    rows: int = 0
    positives: int = 0
    entropy: float = 0.0
    log_loss: float = 0.0
    positive_mass: Floats = field(default_factory=lambda: np.zeros(BINS))
    negative_mass: Floats = field(default_factory=lambda: np.zeros(BINS))

    @classmethod
    def of(cls, logit_B: Floats, label_B: Integers) -> Tally:
        chance = sigmoid(logit_B)
        # -log p and -log(1 - p), without cancellation.
        cost_one, cost_zero = np.logaddexp(0, -logit_B), np.logaddexp(0, logit_B)
        bin_B = ((logit_B + LARGEST_LOGIT) * (BINS / (2 * LARGEST_LOGIT))).astype(np.int64).clip(0, BINS - 1)
        return cls(
            rows=len(label_B),
            positives=int(label_B.sum()),
            entropy=float((chance * cost_one + (1 - chance) * cost_zero).sum()),
            log_loss=float(np.where(label_B == 1, cost_one, cost_zero).sum()),
            positive_mass=_histogram(bin_B, chance),
            negative_mass=_histogram(bin_B, 1 - chance),
        )

    def add(self, other: Tally) -> None:
        self.rows += other.rows
        self.positives += other.positives
        self.entropy += other.entropy
        self.log_loss += other.log_loss
        self.positive_mass += other.positive_mass
        self.negative_mass += other.negative_mass

    def figures(self) -> dict[str, float]:
        """Returns the Bayes figures: expectations under the true probabilities; ``realised`` uses the drawn labels."""
        ones, zeros = float(self.positive_mass.sum()), float(self.negative_mass.sum())
        below = np.cumsum(self.negative_mass) - self.negative_mass
        auc = float((self.positive_mass * (below + self.negative_mass / 2)).sum()) / (ones * zeros)
        rate = ones / (ones + zeros)
        base = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))
        log_loss = self.entropy / self.rows
        return {
            "rate": self.positives / self.rows,
            "bayes_auc": auc,
            "bayes_log_loss": log_loss,
            "bayes_normalised_entropy": log_loss / base,
            "realised_log_loss": self.log_loss / self.rows,
        }


def sigmoid(logit: Floats) -> Floats:
    """Returns 1 / (1 + e^-x), for |x| ≤ 32."""
    return 1 / (1 + np.exp(-logit))


def _histogram(bin_B: Integers, mass: Floats) -> Floats:
    return np.bincount(bin_B, mass, BINS).astype(np.float64, copy=False)
