"""The ``data.negatives`` section: negatives sampled at preparation, for logs that hold positives alone."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic

from ziggurat.core.config import Config
from ziggurat.data.encoded.manifest import SPLITS, Split

MOST_PER_POSITIVE = 10_000


class _SampledNegatives(Config):
    user: str
    """Column of the user, for whom no known positive is sampled."""
    item: str
    """Column of the item that a negative replaces."""
    item_columns: tuple[str, ...] = ()
    """Further columns that describe the item: a negative has those of its own item. All others keep the values of the
    positive: the user, the time, the context, the history."""
    label: str | None = None
    """The label whose ones are the positives; default: the only one. All labels of a sampled row are 0."""
    per_positive: int = pydantic.Field(default=4, ge=1, le=MOST_PER_POSITIVE)
    """Number of negatives for each positive of the training split, all of different items."""
    evaluation: int | None = pydantic.Field(default=None, ge=1, le=MOST_PER_POSITIVE)
    """The same for the validation and test splits; default: ``per_positive``."""
    seed: int = 0
    """Seed of the draws; the same log and seed give the same negatives."""

    def count(self, split: Split) -> int:
        """Returns the number of negatives that preparation samples for each positive of a split."""
        return self.per_positive if split == SPLITS[0] or self.evaluation is None else self.evaluation


class UniformNegatives(_SampledNegatives):
    """Every item of the training split is equally likely."""

    name: Literal["uniform"] = "uniform"

    @property
    def distribution(self) -> str:
        return "uniformly"


class PopularityNegatives(_SampledNegatives):
    """An item is as likely as the number of its training positives, to a power."""

    name: Literal["popularity"] = "popularity"
    power: float = pydantic.Field(default=0.75, gt=0.0, le=1.0)
    """Exponent of the number of positives; 0.75 is that of word2vec (Mikolov et al. 2013, section 2.2)."""

    @property
    def distribution(self) -> str:
        return f"by popularity to the power of {self.power:g}"


class InBatchNegatives(_SampledNegatives):
    """In training, the items of other rows of the batch, which are as frequent as they are popular.

    Held-out rows get uniform negatives at preparation. A batch of ``training.batch_size`` rows has ``per_positive``
    negatives for each row that is read. User and item must be categorical features.
    """

    name: Literal["in_batch"] = "in_batch"

    @property
    def distribution(self) -> str:
        return "uniformly"

    def count(self, split: Split) -> int:
        return 0 if split == SPLITS[0] else super().count(split)


NegativesConfig = Annotated[
    UniformNegatives | PopularityNegatives | InBatchNegatives, pydantic.Field(discriminator="name")
]


def protocol(negatives: NegativesConfig) -> str:
    """Returns the sentence that states how held-out rows are evaluated."""
    count, learned = negatives.count("test"), negatives.per_positive
    shift = ""
    if count != learned:
        wrong = "low" if count < learned else "high"
        shift = f". Training rows had {learned}, so that predictions are too {wrong} here: judge order, not calibration"
    return (
        f"sampled evaluation: each held-out positive is compared with {count} sampled negative{'s' * (count > 1)}, "
        f"drawn {negatives.distribution} from the items of the training split, none of them a known positive of the "
        f"same {negatives.user} in any split (seed {negatives.seed}). Figures depend on this choice{shift}"
    )
