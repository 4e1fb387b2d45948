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


MAX_STATISTICS_INTERVAL = 10
"""The default of ``statistics_frequency``, unless roots are computed more often."""
LATEST_FIRST_ROOT_STEP = 20
"""The default step of the first roots, unless roots are computed more often: the first steps matter much."""
MOMENT_WARMUP_STEPS = 10
"""Steps after the first eigenvectors in which the second moments in the eigenbasis are updated with every gradient, and
steps are the graft's alone. Second moments of only a few gradients are partly near zero; directions divided by these
would dominate the step."""


class ShampooArguments(Config):
    """Shampoo: preconditions the gradient of each block of a matrix by second moments of its rows and columns, and
    takes the size of its step from another optimizer (the graft). By default it is Adam in the eigenbasis of these
    second moments (the family of SOAP, clamped); ``form: roots`` is Shampoo with inverse roots, as published."""

    name: Literal["shampoo"] = "shampoo"

    lr: Rate = 1e-3
    """Learning rate; the schedule multiplies it."""

    betas: tuple[Beta, Annotated[float, Field(ge=0, le=1)]] = (0.9, 0.99)
    """Decay of the gradient's moving mean, and of the second moments of rows and columns; with 1 the latter are sums,
    as in Adagrad."""

    beta3: Beta | None = None
    """Weight of the moving mean in the preconditioned gradient; the rest is the new gradient's. Default: the first of
    ``betas``."""

    graft: Annotated[GraftConfig, BeforeValidator(lambda each: {"name": each} if isinstance(each, str) else each)] = (
        AdamGraft()
    )
    """The optimizer whose step sizes are used: a name, or a name with settings."""

    epsilon: Rate = 1e-10
    """In form eigenbasis, added to the roots of the second moments there; in form roots, added to the second moments
    of rows and columns before their roots are computed."""

    precondition_frequency: Steps = 50
    """Steps between two computations of roots (or eigenvectors)."""

    start: Steps | None = None
    """The step of the first roots. Before it, steps are the graft's alone; in form eigenbasis, for ten further steps.
    Default: 20, or ``precondition_frequency`` if that is less."""

    statistics_frequency: Steps | None = None
    """Steps between two gradients that update the second moments of rows and columns, and those in the eigenbasis. Such
    a gradient counts for all of these steps. Blocks of one dimension, of which a gradient says less, use every one.
    Default: 10, or the steps between roots or until the first ones if these are fewer."""

    late: Annotated[int, Field(ge=0)] = 0
    """Number of steps after which new roots are first used; a thread computes them meanwhile. 0: at once."""

    max_preconditioner_dim: Annotated[int, Field(ge=2)] = 128
    """Largest dimension of a block. Neighbouring dimensions are merged up to this size; larger ones are cut."""

    vectors: bool = False
    """Whether biases, norms and other vectors, matrices of one row or column, and single numbers are preconditioned; if
    not, they take the graft's steps."""

    exponents: dict[Steps, list[Exponent]] = Field(default_factory=dict[Steps, list[Exponent]])
    """Exponents of the inverse roots: number of a block's dimensions -> one for each dimension; 0 leaves a dimension
    unpreconditioned. In form eigenbasis only zero or non-zero matters. Default: 1/(2·dimensions)."""

    form: Literal["eigenbasis", "roots"] = "eigenbasis"
    """How the second moments are used: Adam in the basis of their eigenvectors, as in SOAP but clamped and with the
    graft's step sizes, or a product with their inverse roots, which is Shampoo as published."""

    root: Method = "eigh"
    """How roots or eigenvectors are computed: by eigendecomposition, by the coupled Newton iteration, or by a step of
    power iteration from the previous ones."""

    momentum: Beta = 0.0
    """Share of the last step that is repeated; 0 for no momentum."""

    nesterov: bool = False
    """Whether the momentum is Nesterov's."""

    weight_decay: Decay = 0.0
    """Strength of the weight decay; in an experiment not applied to biases, norms and other vectors."""

    decay: Literal["decoupled", "coupled", "corrected", "independent"] = "decoupled"
    """``decoupled``: weights shrink by lr·weight_decay a step. ``coupled``: weight_decay times the weights is added to
    the gradient. ``corrected``: weights shrink by lr·weight_decay·(lr / highest lr so far). ``independent``: they
    shrink by weight_decay·(lr / highest lr so far)."""

    communicate: Precision = "fp32"
    """Precision in which updates are sent from the rank that computes them to the others."""

    group_size: Steps | None = None
    """Number of ranks that share the work; each group of ranks does all of it. Default: all ranks."""

    @property
    def first_root_step(self) -> int:
        """The first step at which roots are computed."""
        return min(LATEST_FIRST_ROOT_STEP, self.precondition_frequency) if self.start is None else self.start

    @property
    def first_direction_step(self) -> int:
        """The first step that is taken in Shampoo's direction."""
        return self.first_root_step + (MOMENT_WARMUP_STEPS if self.form == "eigenbasis" else 0)

    @property
    def has_mean(self) -> bool:
        """Whether the state includes the gradient's moving mean."""
        return self.betas[0] > 0 or self.beta3 is not None

    @property
    def statistics_interval(self) -> int:
        """Steps between two gradients that update the second moments of rows and columns."""
        return self.statistics_frequency or min(
            MAX_STATISTICS_INTERVAL, self.precondition_frequency, self.first_root_step
        )

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.statistics_interval > self.first_root_step:
            raise ValueError(
                f"statistics_frequency: {self.statistics_frequency} steps are more than the {self.first_root_step} "
                "until the first roots"
            )
        if self.late >= self.precondition_frequency:
            raise ValueError(
                f"late: {self.late} steps are not fewer than the precondition_frequency, {self.precondition_frequency}"
            )
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov: needs momentum above 0")
        whole = all(
            not each or abs(1 / each - round(1 / each)) < 1e-9 for some in self.exponents.values() for each in some
        )
        if self.root == "newton" and not whole:
            raise ValueError("root: newton needs exponents that are one over a whole number; use eigh or qr")
        for order, exponents in self.exponents.items():
            if len(exponents) != order:
                raise ValueError(f"exponents: {order} dimensions need {order} numbers, not {len(exponents)}")
        if self.form == "eigenbasis" and self.root == "newton":
            raise ValueError(
                "root: newton finds no eigenvectors, which the eigenbasis needs; use eigh or qr, or form: roots"
            )
        return self

    def exponent(self, order: int, dimension: int) -> float:
        """Returns the exponent of the inverse root for one of a block's ``order`` dimensions."""
        given = self.exponents.get(order)
        return 1 / (2 * order) if given is None else given[dimension]
