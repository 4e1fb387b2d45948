"""The settings of Shampoo, in an experiment's ``optimizer`` section or as the optimizer's own arguments."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from ziggurat.core.config import Config
from ziggurat.optim.numbers import Beta, Decay, Rate
from ziggurat.optim.shampoo.grafts import AdamGraft, GraftConfig
from ziggurat.optim.shampoo.roots import Method

Precision = Literal["fp32", "fp16", "bf16"]
Steps = Annotated[int, Field(ge=1)]
Exponent = Annotated[float, Field(ge=0, le=1)]


STATISTICS = 10
"""Steps from one gradient that second moments of rows and columns take in to the next, where roots come less often."""
FIRST = 20
"""The step of the first roots, where later ones are no closer: what is learned first decides much."""
WARM = 10
"""Steps behind the first eigenvectors in which second moments there take in each gradient, and the graft steps alone:
where these are of a few gradients, some are next to nothing, and directions divided by them all there is to a step."""


class ShampooArguments(Config):
    """Shampoo: each block takes its step in the directions that its rows, and its columns, move in together, found from
    their second moments; its size is that of another optimizer's step."""

    name: Literal["shampoo"] = "shampoo"

    lr: Rate = 1e-3
    """Learning rate; the schedule multiplies it."""

    betas: tuple[Beta, Annotated[float, Field(ge=0, le=1)]] = (0.9, 0.99)
    """Decay of the gradient's moving mean and of the second moments of rows and columns; 1 sums these up, as Adagrad
    does."""

    beta3: Beta | None = None
    """The share of the moving mean in what is stepped along, beside the new gradient; default: as the first of
    ``betas``."""

    graft: Annotated[GraftConfig, BeforeValidator(lambda each: {"name": each} if isinstance(each, str) else each)] = (
        AdamGraft()
    )
    """Whose step sizes are taken; a name alone, or with settings."""

    epsilon: Rate = 1e-10
    """Added to the roots of the second moments in the eigenbasis, or to the second moments of rows and columns before
    their roots are taken."""

    precondition_frequency: Steps = 50
    """Steps from one time that roots are taken to the next."""

    start: Steps | None = None
    """The step of the first roots, from which on there is more than the graft; in the eigenbasis from ten steps later
    on. Default: 20, or ``precondition_frequency`` where that is less."""

    statistics_frequency: Steps | None = None
    """Steps from one time that second moments of rows and columns, and those in the eigenbasis, take in a gradient to
    the next; each such gradient counts for all of these steps. Blocks of one dimension, of which a gradient says less,
    take in each. Default: 10, or as many as there are from roots to roots, or to the first ones."""

    late: Annotated[int, Field(ge=0)] = 0
    """Roots are used so many steps after the second moments that they are of, and taken by a thread in between."""

    max_preconditioner_dim: Annotated[int, Field(ge=2)] = 128
    """Neighbouring dimensions are one where they are no larger together; larger ones are cut."""

    vectors: bool = False
    """Whether biases, norms and other vectors, and matrices of one row or column, have second moments of their own, or
    take the graft's steps alone."""

    exponents: dict[Steps, list[Exponent]] = Field(default_factory=dict[Steps, list[Exponent]])
    """Of the inverse roots: number of a block's dimensions -> one for each; 0 leaves the dimension as it is. Default:
    1/(2·dimensions)."""

    form: Literal["eigenbasis", "roots"] = "eigenbasis"
    """What is done with the second moments: an Adam in the basis of their eigenvectors (SOAP), or a product with their
    inverse roots."""

    root: Method = "eigh"
    """How roots or eigenvectors are found: eigendecomposition, the coupled Newton iteration, or a step of power
    iteration from those before."""

    momentum: Beta = 0.0
    """Share of the last step that is repeated."""

    nesterov: bool = False
    """Look ahead by the momentum."""

    weight_decay: Decay = 0.0
    """How much weights shrink; in an experiment not those of biases, norms and other vectors."""

    decay: Literal["decoupled", "coupled", "corrected", "independent"] = "decoupled"
    """Weights shrink by lr·weight_decay a step, or it is added to the gradient (``coupled``), or they shrink by that
    times lr over its highest (``corrected``), or by weight_decay·lr over its highest (``independent``)."""

    communicate: Precision = "fp32"
    """Precision in which updates go from the rank that made them to the others."""

    group_size: Steps | None = None
    """Ranks among which the work is divided; each such group does all of it. Default: all ranks."""

    @property
    def begins(self) -> int:
        """The first step at which roots are taken."""
        return min(FIRST, self.precondition_frequency) if self.start is None else self.start

    @property
    def leads(self) -> int:
        """The first step in Shampoo's direction."""
        return self.begins + (WARM if self.form == "eigenbasis" else 0)

    @property
    def has_mean(self) -> bool:
        """Whether states have the gradient's moving mean."""
        return self.betas[0] > 0 or self.beta3 is not None

    @property
    def statistics(self) -> int:
        """Steps from one gradient that second moments of rows and columns take in to the next."""
        return self.statistics_frequency or min(STATISTICS, self.precondition_frequency, self.begins)

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.statistics > self.begins:
            raise ValueError(
                f"statistics_frequency: {self.statistics_frequency} steps are more than the {self.begins} until the "
                "first roots"
            )
        if self.late >= self.precondition_frequency:
            raise ValueError(
                f"late: {self.late} steps are not fewer than the precondition_frequency, {self.precondition_frequency}"
            )
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov: there is no momentum to look ahead by")
        whole = all(
            not each or abs(1 / each - round(1 / each)) < 1e-9 for some in self.exponents.values() for each in some
        )
        if self.root == "newton" and not whole:
            raise ValueError("root: newton finds roots of whole numbers, and exponents has others; use eigh or qr")
        for order, exponents in self.exponents.items():
            if len(exponents) != order:
                raise ValueError(f"exponents: {order} dimensions need {order} numbers, not {len(exponents)}")
        if self.form == "eigenbasis" and self.root == "newton":
            raise ValueError(
                "root: newton finds no eigenvectors, which the eigenbasis needs; use eigh or qr, or form: roots"
            )
        return self

    def exponent(self, order: int, dimension: int) -> float:
        """Of the inverse root for one of a block's dimensions."""
        given = self.exponents.get(order)
        return 1 / (2 * order) if given is None else given[dimension]
