"""Identity encoder: the values are row numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pydantic

from ziggurat.core.errors import InvalidSection
from ziggurat.core.schema import ValueType
from ziggurat.features.encoders.encoder import EncoderSettings, Ids, State, ValueCounts
from ziggurat.features.versions import check_version, saved_integer

IDENTITY_VERSION = 1


class IdentityConfig(EncoderSettings):
    """Uses integers in [0, rows) as row numbers. No row is reserved for missing values, so none may be missing."""

    version: ClassVar[int] = IDENTITY_VERSION
    counts_values: ClassVar[bool] = False

    name: Literal["identity"] = "identity"
    rows: int = pydantic.Field(ge=1)
    """Number of rows of the table; a raw row with a value outside [0, rows) is a bad row."""

    @property
    def valid_ids(self) -> range:
        return range(self.rows)

    def check_type(self, value_type: ValueType) -> None:
        if value_type is not ValueType.INTEGER:
            raise InvalidSection(
                "encoder",
                f"an identity encoder needs type integer, received {value_type}",
                "set `type: integer`, or choose a vocabulary or hash encoder",
            )

    def fit(self, counts: ValueCounts | None) -> IdentityEncoder:
        del counts
        return IdentityEncoder(self.rows)

    @classmethod
    def encoder_class(cls) -> type[IdentityEncoder]:
        return IdentityEncoder


@dataclass(frozen=True, slots=True)
class IdentityEncoder:
    """``id = value``."""

    rows: int

    @property
    def unknown_rows(self) -> range:
        return range(0)

    def transform(self, values: pa.Array) -> Ids:
        ids: Ids = values.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
        # rows with other values were rejected earlier, where their file and line are known (checks.py)
        assert not len(ids) or (ids.min() >= 0 and ids.max() < self.rows), (ids.min(), ids.max(), self.rows)
        return ids

    def to_state(self) -> State:
        return {"name": "identity", "version": IDENTITY_VERSION, "rows": self.rows}, {}

    @classmethod
    def from_state(cls, figures: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> Self:
        del arrays
        check_version("identity encoder", figures.get("version"), IDENTITY_VERSION)
        return cls(saved_integer(figures, "rows", 1))
