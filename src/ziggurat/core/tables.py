"""The specification of an embedding table, independent of its placement."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Pooling = Literal["sum", "mean"]


@dataclass(frozen=True, slots=True)
class TableSpec:
    """One embedding table.

    Attributes:
        name: name, unique among the tables of a model.
        rows: number of embeddings; every id is in ``[0, rows)``.
        dim: floats per row.
        features: the features that are looked up in it, in schema order.
        pooling: how the rows of a bag are combined into one.
        optimizer: name and settings of the row optimizer, which is fused into backward.
        init_std: standard deviation of the normally distributed initial weights.
        vectors: number of vectors that a row concatenates; ``dim`` is a multiple of it.
        positions: sequence -> how many of its last ids are looked up one by one instead of being pooled.
    """

    name: str
    rows: int
    dim: int
    features: tuple[str, ...]
    pooling: Pooling
    optimizer: dict[str, Any]
    init_std: float
    vectors: int = 1
    positions: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def vector_dim(self) -> int:
        """Floats per vector."""
        return self.dim // self.vectors

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys looked up: the features, with each sequence of ``positions`` replaced by its positions."""
        return tuple(key for feature in self.features for key in self.keys_of(feature))

    def keys_of(self, feature: str) -> tuple[str, ...]:
        """Returns ``("history:0", "history:1", …)``, the most recent first; for a pooled feature, its own name."""
        if feature not in self.positions:
            return (feature,)
        return tuple(f"{feature}:{position}" for position in range(self.positions[feature]))

    @property
    def weight_bytes(self) -> int:
        """Bytes of the float32 weights, without optimizer state."""
        return 4 * self.rows * self.dim

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
