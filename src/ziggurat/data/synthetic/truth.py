"""The planted structure: which effects decide the labels, and what the best possible model would score.

Legend: B rows, T labels, L = 2 latent dimensions.

For every label t, with f over features, over planted pairs (f, g), triples (f, g, h), products P and likenesses Q::

    logit_t = bias_t + first_t  · Σ α_tf  e_f              / √features
                     + second_t · Σ β_tfg ⟨z_f, z_g⟩       / √(L · pairs)
                     + third_t  · Σ γ_tfgh Σ z_f z_g z_h   / √(L · triples)
                     + high_t   · (Σ δ_tP Σ Π_{f∈P} d_f / √L + Σ ε_tQ Π_{(f,g)∈Q} ⟨d_f, d_g⟩ / √L) / √H
    label_t ~ Bernoulli(sigmoid(logit_t))

An id has an effect e and a latent vector z of independent standard normals; a bag or sequence has the means over its
ids; a number has polynomials of its standardised logarithm. d = √L z / |z| is the direction of z: a product of many
bounded numbers is not ruled by its rarest rows, as one of many normals would be. The columns of Q are taken two by two;
H is the number of products and likenesses.
All of them are functions of what the log shows, so the Bayes figures (AUC and log-loss of the true probabilities) are
what a model could reach, and none can beat.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ziggurat.data.synthetic.config import CategoricalColumn, GeneratorConfig, ManyColumn, NumericColumn
from ziggurat.data.synthetic.sampling import Floats, Floats32, Integers, Purpose, normals

LATENT = 2
ROOT = np.float32(math.sqrt(LATENT))
SLOTS = 1 << 18  # ids beyond so many share effects, so that tables of any cardinality fit in memory
BINS = 1 << 16
LARGEST_LOGIT = 16.0


@dataclass(frozen=True, slots=True)
class Signal:
    """What a feature contributes: effect_B, and latent_BL where the feature is in a pair or larger group."""

    effect_B: Floats32
    latent_BL: Floats32 | None


class Planted:
    """The effects that a config and its seed stand for."""

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
        """Slot 0 is a missing cell's; a number has coefficients in place of a table."""
        if isinstance(column, ManyColumn) and column.ids_of is not None:
            self.effects[column.name] = self.effects[column.ids_of]
            self.latents[column.name] = self.latents[column.ids_of]
            return
        slots = 3 if isinstance(column, NumericColumn) else min(column.cardinality, SLOTS) + 1
        draws = normals(slots * (1 + LATENT), self.config.seed, Purpose.EFFECTS, 0, self.columns[column.name])
        self.effects[column.name] = draws[:slots]
        latent = draws[slots:].reshape(slots, LATENT).copy()
        latent[0] = 0
        self.latents[column.name] = latent

    def of_numbers(self, column: NumericColumn, values: Floats) -> Signal:
        """From the visible values, NaN where missing."""
        missing = np.isnan(values)
        above = values - column.lowest + (0.5 if column.integer else 0.0)
        score = np.log(np.maximum(np.where(missing, column.median, above), 1e-9) / column.median) / column.spread
        score = np.clip(score, -3, 3).astype(np.float32)
        empty, slope, bend = self.effects[column.name]
        effect = np.where(missing, empty, slope * score + bend * (score * score - 1) * np.float32(0.5))
        if column.name not in self.interacting:
            return Signal(effect, None)
        # Mean 0 and variance 1 in both dimensions: z = (g, (g² - 1)/√2), so that a product with it is no line.
        bent = (score * score - 1) * np.float32(math.sqrt(0.5))
        latent = np.stack([score, bent], axis=1) * np.where(missing, 0, 1).astype(np.float32)[:, None]
        return Signal(effect, latent)

    def of_ids(self, column: CategoricalColumn, rank: Integers) -> Signal:
        """From the ranks, -1 where missing."""
        slot = np.where(rank < 0, 0, rank % SLOTS + 1)
        latent = self.latents[column.name][slot] if column.name in self.interacting else None
        return Signal(self.effects[column.name][slot], latent)

    def of_many(self, column: ManyColumn, rank: Integers, offsets: Integers) -> Signal:
        """From the ranks of all rows' ids one after the other, and where each row's begin (B + 1)."""
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
        """(T, B), float64."""
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
        """The product of ⟨d_f, d_g⟩ / √L, which has variance 1, over the columns two by two."""
        pairs = zip(names[::2], names[1::2], strict=True)
        dots = [self._product(signals, pair, _direction) / ROOT for pair in pairs]
        return np.prod(dots, axis=0)

    def calibrate(self, logits_TB: Floats) -> None:
        """Choose the biases so that on these unbiased logits each label has its configured rate."""
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
        """For each label its bias and the weight of every planted term, for ``truth.json``."""
        names = [*self.columns, *(" x ".join(group) for group in self.config.groups)]
        for place, group in enumerate(self.config.likenesses, len(names) - len(self.config.likenesses)):
            names[place] = " x ".join(f"({f}, {g})" for f, g in zip(group[::2], group[1::2], strict=True))
        return [
            {"bias": bias, "weights": {name: round(float(w), 6) for name, w in zip(names, weights, strict=True)}}
            for bias, weights in zip(self.biases, self.weights_TW, strict=True)
        ]


def _latent(signals: dict[str, Signal], name: str) -> Floats32:
    latent = signals[name].latent_BL
    assert latent is not None, name
    return latent


def _direction(latent_BL: Floats32) -> Floats32:
    """√L z / |z|; zero where z is."""
    length_B1 = np.sqrt((latent_BL * latent_BL).sum(axis=1, keepdims=True))
    return latent_BL / np.maximum(length_B1, np.float32(1e-12)) * ROOT


@dataclass(slots=True)
class Tally:
    """Sums over rows from which the Bayes figures of one label follow; adding two is exact to rounding."""

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
        place = ((logit_B + LARGEST_LOGIT) * (BINS / (2 * LARGEST_LOGIT))).astype(np.int64).clip(0, BINS - 1)
        return cls(
            rows=len(label_B),
            positives=int(label_B.sum()),
            entropy=float((chance * cost_one + (1 - chance) * cost_zero).sum()),
            log_loss=float(np.where(label_B == 1, cost_one, cost_zero).sum()),
            positive_mass=_histogram(place, chance),
            negative_mass=_histogram(place, 1 - chance),
        )

    def add(self, other: Tally) -> None:
        self.rows += other.rows
        self.positives += other.positives
        self.entropy += other.entropy
        self.log_loss += other.log_loss
        self.positive_mass += other.positive_mass
        self.negative_mass += other.negative_mass

    def figures(self) -> dict[str, float]:
        """Bayes figures: of the true probabilities, in expectation over the labels; ``realised`` with those drawn."""
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
    """1 / (1 + e^-x), for |x| ≤ 32."""
    return 1 / (1 + np.exp(-logit))


def _histogram(place: Integers, mass: Floats) -> Floats:
    return np.bincount(place, mass, BINS).astype(np.float64, copy=False)
