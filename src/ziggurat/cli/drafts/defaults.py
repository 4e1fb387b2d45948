"""The defaults that ``ziggurat init`` chooses by the data: transforms, encoders, model, optimizers, length of training.

The rules are few, so that a reader can check them, and everything that they decide is written into the config with its
reason. They were chosen by validation log-loss on the development half of the collection of
``bench run out_of_the_box`` (docs/lab-notebook.md, "defaults from the data").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ziggurat.cli.drafts.model_names import model_names
from ziggurat.cli.drafts.recurrence import PairOfIds, pair_of_ids
from ziggurat.data.inference.columns import ColumnProfile
from ziggurat.data.inference.label_order import label_numbers
from ziggurat.data.inference.roles import LARGE_TABLE_ROWS, Inference

NUMERIC_BINS = 64
"""Intervals of a number's ranks, and of the curve that embeds it."""
_MOST_CURVES = 1_000
"""Most numbers that are embedded along curves: a model has weights for each of a vector's values."""
MANY_ROWS = 50_000
"""Training rows from which on Wukong, with a penalty on the vectors, learns more than it knows by heart."""
_FEWEST_ROWS_OF_NEW_PAIRS, _MANY_ROWS_OF_NEW_PAIRS = 10_000, 200_000
"""Where hardly any pair of ids occurs twice, as that of a user and a film, Wukong does so from the second on; from the
first on, DeepFM with a stronger penalty and dropout is best."""
_MANY_CASES = 1_000
"""Training rows of the label's rarer value that it takes too; of fewer, a smaller model at lower rates learns more."""
_WIDE_VECTORS_ROWS = 200_000
"""Training rows from which on vectors of 32 numbers are better than vectors of 16."""
_MOST_PAIRED_FIELDS = 32
"""Most fields all of whose pairs Wukong multiplies; of more, it multiplies mixtures, which are then cheaper."""
_MOST_CROSSED_FIELDS, _CROSS_RANK = 100, 64
"""Most fields that DCN-V2 crosses by full matrices, which grow with the square of the fields; the rank for more."""
_AVERAGED_ROWS = 200_000
"""Most rows of all tables together that a moving average reads at each step."""
_NEW_PAIRS = 0.05
"""Most rows with a pair that an earlier row has, for pairs to be new."""
_TELLING = 0.3
"""Share of the label's variance that pairs must tell, beyond what one id does, to get vectors of their own."""
_LONG_EPOCH = 250
"""Steps of an epoch from which on it is evaluated in its middle too."""
_MOST_STEPS_UNEVALUATED = 5_000
"""Steps after which a long epoch is evaluated."""
_MOST_EVALUATIONS = 8
"""Evaluations of the longest epochs: with a tenth of the rows for validation they cost less than the training does."""


@dataclass(frozen=True, slots=True)
class Learnable:
    """What the rows of a log can teach.

    Attributes:
        what: ``little`` beyond each feature alone; of ``new pairs``, how ids go together, but no single pair; of
            ``pairs``, single ones too.
        crossed: the two columns whose pairs get vectors of their own, if they recur and one row tells of the others.
    """

    what: Literal["little", "new pairs", "pairs"]
    crossed: PairOfIds | None = None


def learnable(found: Inference) -> Learnable:
    """Returns what the rows of a log can teach."""
    rows = _training_rows(found)
    if rows < _FEWEST_ROWS_OF_NEW_PAIRS or not _has_many_cases(found, rows):
        return Learnable("little")
    pair = pair_of_ids(found)
    new = pair is not None and pair.recurring < _NEW_PAIRS
    if new and rows < _MANY_ROWS_OF_NEW_PAIRS and not _mostly_numbers(found):
        return Learnable("new pairs")
    if rows < MANY_ROWS:
        return Learnable("little")
    tells = pair is not None and not new and pair.tells >= _TELLING
    return Learnable("pairs", pair if tells else None)


def encoder(profile: ColumnProfile, shared: bool) -> str:
    """Chooses a vocabulary, without rare values if many occur only once; hashing if the table would be huge."""
    if profile.distinct_estimate > LARGE_TABLE_ROWS:
        return f"{{name: hash, rows: {1 << (LARGE_TABLE_ROWS - 1).bit_length()}}}"
    rare = profile.distinct > 1_000 and profile.singleton_share > 0.3 and not shared
    min_count = 5 if profile.rows > 100_000 else 2
    return f"{{name: vocabulary, min_count: {min_count if rare else 1}}}"


def _has_buckets(profile: ColumnProfile) -> bool:
    """Whether a number becomes one of few buckets: many values are missing, which get one of their own."""
    return profile.missing > 0.2 and profile.distinct > 8


def transforms(profile: ColumnProfile) -> Iterator[str]:
    """Chooses buckets if many values are missing (these get a bucket); else the place among evenly spaced quantiles."""
    if _has_buckets(profile):
        yield "{name: bucketise, bins: 20}"
        return
    yield "{name: fill, value: median}"
    yield f"{{name: quantile, bins: {NUMERIC_BINS}, levels: even}}"


def model_lines(found: Inference, learned: Learnable) -> Iterator[str]:
    """Yields the sections ``embeddings``, ``model``, ``optimizer`` and ``training``."""
    numbers = sum(feature.kind == "numeric" and not _has_buckets(feature.profile) for feature in found.features)
    probabilities = all(label.kind in {"binary", "soft"} for label in found.labels)
    batch, rows = _batch_rows(found), _training_rows(found)
    what = learned.what
    rate = "0.02" if what == "little" else "0.05"
    yield "embeddings:"
    yield "  dim: 32" if what == "new pairs" or rows >= _WIDE_VECTORS_ROWS else "  dim: 16"
    if probabilities:
        eps = f"{0.1 / batch:.0e}".replace("e-0", "e-")
        yield "  # eps: a tenth of a positive row's gradient, so that the small gradients of many negatives stay small"
        yield f"  optimizer: {{name: rowwise_adagrad, lr: {rate}, eps: {eps}}}"
    else:
        yield f"  optimizer: {{name: rowwise_adagrad, lr: {rate}}}"
    if what != "little":
        yield f"  l2: {0.03 if what == 'new pairs' else 0.003}  # keeps ids with few rows near 0"
    if numbers > _MOST_CURVES:
        yield f"  # numeric_bins: {NUMERIC_BINS}  # left out: {numbers:,} vectors along curves are too many"
    elif numbers:
        yield f"  numeric_bins: {NUMERIC_BINS}  # each number is embedded along a curve of so many pieces"
    chosen, settings, reason = _model(found, rows, what)
    others = ", ".join(name for name in reversed(model_names()) if name != chosen)
    yield f"model: {{name: {chosen}{settings}}}  # {reason}; or {others}: docs/models.md"
    yield "optimizer: {name: adam, lr: 0.001}  # for everything except the embedding tables"
    yield "training:"
    yield f"  batch_size: {batch}"
    yield "  epochs: 30  # at most: it stops early"
    measure = "log-loss" if probabilities else "error"
    yield f"  early_stopping: {{patience: 3}}  # evaluations without a better validation {measure}"
    steps = rows // batch
    if steps >= _LONG_EPOCH:
        every = min(steps // 2, max(_MOST_STEPS_UNEVALUATED, steps // _MOST_EVALUATIONS))
        yield f"  evaluate_every: {every}  # steps; an epoch has about {steps:,}"
    if _table_rows(found) <= _AVERAGED_ROWS:
        decay = 0.995 if steps >= _LONG_EPOCH // 2 else 0.99
        steps_back = round(1 / (1 - decay))
        yield f"  weight_average: {decay}  # the mean of the last {steps_back} steps' weights is evaluated and used"
    if what != "little" and rows >= MANY_ROWS:
        yield "  precision: auto  # bf16 where this machine multiplies it in hardware"
    if any(label.kind == "binary" for label in found.labels):
        yield "  start_at_base_rate: true  # the first prediction is the share of positives, not 1/2"


def _model(found: Inference, rows: int, what: str) -> tuple[str, str, str]:
    """Returns the model's name, its settings and the reason for it."""
    used = [feature for feature in found.features if feature.kind]
    if what == "new pairs":
        return (
            "deepfm",
            ", deep: {dropout: 0.2}",
            "hardly any pair of ids occurs twice: pairs cannot be learned by heart",
        )
    if what == "pairs":
        reason = f"{MANY_ROWS:,} training rows or more"
        if len(used) > _MOST_PAIRED_FIELDS:
            return "wukong", "", reason
        return "wukong", ", rank: null", f"{reason}; all pairs of at most {_MOST_PAIRED_FIELDS} fields are multiplied"
    if _mostly_numbers(found):
        reason = "most features are numbers, which its cross layers multiply"
        if len(used) > _MOST_CROSSED_FIELDS:
            return "dcn_v2", f", rank: {_CROSS_RANK}", f"{reason}; of low rank, for over {_MOST_CROSSED_FIELDS} fields"
        return "dcn_v2", "", reason
    if rows < MANY_ROWS:
        return "deepfm", "", f"fewer than {MANY_ROWS:,} training rows"
    return "deepfm", "", f"fewer than {_MANY_CASES:,} of them with the label's rarer value"


def _mostly_numbers(found: Inference) -> bool:
    used = [feature for feature in found.features if feature.kind]
    return 2 * sum(feature.kind in {"numeric", "vector"} for feature in used) > len(used)


def _has_many_cases(found: Inference, rows: int) -> bool:
    """Whether there are enough cases of some label's rarer value for a large model."""
    labels = [label_numbers(label, found.sample.frame) for label in found.labels if label.kind == "binary"]
    shares = [float(np.nanmean(each)) for each in labels if each is not None and np.isfinite(each).any()]
    return not shares or rows * max(min(share, 1 - share) for share in shares) >= _MANY_CASES


def _training_rows(found: Inference) -> int:
    rows = _usable_rows(found)
    held_out = {"files": 0.0 if found.files["validation"] else 0.1}.get(found.split.name, 0.2)
    return int(rows * (1 - held_out))


def _usable_rows(found: Inference) -> int:
    """Returns about how many rows are not set aside: of those that can be read, those with a label and a time."""
    lacking = [label.profile.missing for label in found.labels]
    if found.time is not None:
        lacking.append(found.time.missing)
    examined = found.sample.examined
    read = found.sample.frame.height / examined if examined else 1.0
    return int((found.sample.total_rows or 10_000_000) * read * (1 - max(lacking, default=0.0)))


def _table_rows(found: Inference) -> int:
    """Returns about how many rows all tables have."""
    owned = [feature for feature in found.features if feature.kind in {"categorical", "bag", "sequence"}]
    return sum(min(feature.profile.distinct_estimate, LARGE_TABLE_ROWS) for feature in owned if feature.table is None)


def _batch_rows(found: Inference) -> int:
    """Chooses a larger batch for larger logs; a small log gives at least four training batches, of a power of two."""
    rows = _usable_rows(found)
    quarter = max(1, _training_rows(found) // 4)
    usual = 256 if rows < 50_000 else 1024 if rows < 500_000 else 4096
    return min(usual, 1 << (quarter.bit_length() - 1))
