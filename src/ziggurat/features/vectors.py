"""Turns vectors into inputs of the model: one dense feature for each of their numbers, all with the same transforms."""

from __future__ import annotations

from ziggurat.core.schema import VectorElement
from ziggurat.features.config import NumericFeature, VectorFeature


class VectorNumber(NumericFeature):
    """A number of a vector feature; ``index`` counts from 0."""

    origin: VectorFeature
    index: int

    @property
    def source_column(self) -> str:
        return f"{self.origin.source_column}[{self.index}]"

    @property
    def log_columns(self) -> tuple[str, ...]:
        return self.origin.log_columns

    @property
    def vector(self) -> VectorElement:
        """What readers make the column of."""
        return VectorElement(self.origin.source_column, self.index, self.origin.length)


def vector_inputs(feature: VectorFeature) -> list[VectorNumber]:
    """Returns the numbers ``emb[0]``, ``emb[1]``, … of a vector feature ``emb``."""
    return [
        VectorNumber(name=f"{feature.name}[{index}]", transforms=feature.transforms, origin=feature, index=index)
        for index in range(feature.length)
    ]
