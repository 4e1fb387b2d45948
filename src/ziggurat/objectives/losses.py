"""The losses of a regression label, as a config chooses them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

import pydantic

from ziggurat.core.config import Config

Level = Annotated[float, pydantic.Field(gt=0, lt=1)]
_FROM_LIST = pydantic.BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
"""Makes a list a tuple, as stored losses are read strictly (:func:`ziggurat.core.sealed.declared`)."""


class Squared(Config):
    """(p − y)² / 2: the prediction is the mean."""

    name: Literal["squared"] = "squared"


class Huber(Config):
    """(p − y)² / 2 up to ``delta``, beyond it delta·(|p − y| − delta / 2): a few extreme labels count less."""

    name: Literal["huber"] = "huber"
    delta: float = pydantic.Field(default=1.0, gt=0, allow_inf_nan=False)
    """The error from which on the loss is linear, in the label's units."""


class Log1p(Config):
    """(log(1 + p) − log(1 + y))² / 2: relative errors count, for labels of 0 or more that span orders of magnitude."""

    name: Literal["log1p"] = "log1p"


class Poisson(Config):
    """p − y·log p, for counts: the prediction is the mean, and is above 0."""

    name: Literal["poisson"] = "poisson"


class Tweedie(Config):
    """−y·p^(1 − power) / (1 − power) + p^(2 − power) / (2 − power), for amounts that are often exactly 0."""

    name: Literal["tweedie"] = "tweedie"
    power: float = pydantic.Field(default=1.5, gt=1, lt=2)
    """The variance grows as the mean to this power; near 1 labels are like counts, near 2 like sizes."""


class Quantile(Config):
    """The pinball loss max(q·(y − p), (q − 1)·(y − p)), a prediction p for each level q; the mean over the levels."""

    name: Literal["quantile"] = "quantile"
    levels: Annotated[tuple[Level, ...], _FROM_LIST] = pydantic.Field(
        default=(0.1, 0.5, 0.9), min_length=1, max_length=99
    )
    """The shares of labels below the predictions, ascending. The label's prediction is that of the middle level."""

    @pydantic.model_validator(mode="after")
    def _ascend(self) -> Self:
        if list(self.levels) != sorted(set(self.levels)):
            raise ValueError(f"levels must ascend, received {list(self.levels)}")
        return self


LossConfig = Annotated[Squared | Huber | Log1p | Poisson | Tweedie | Quantile, pydantic.Field(discriminator="name")]

NOT_NEGATIVE = (Log1p, Poisson, Tweedie)
"""The losses whose labels are 0 or more."""
