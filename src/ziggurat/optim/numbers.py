"""Types of the numeric settings of optimizers."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Beta = Annotated[float, Field(ge=0, lt=1)]
