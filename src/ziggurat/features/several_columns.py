"""Features that are made of several columns of a row, and what a feature may be called."""

from __future__ import annotations

import unicodedata
from typing import Annotated, Literal, Self

import pydantic

from ziggurat.core.config import Config
from ziggurat.core.errors import INVISIBLE, shorten
from ziggurat.core.schema import duplicates
from ziggurat.features.encoders.encoders import EncoderConfig

NAME_BYTES = 200
"""A file name has at most 255 bytes, and those of encoders a prefix and a suffix."""
MOST_CROSSED = 4
"""Most columns of a cross; of more, hardly any combination would occur twice."""


def _file_safe(name: str) -> str:
    """Returns a name that can also be a part of a file's name, as those of encoders have it."""
    if any(unicodedata.category(character) in INVISIBLE for character in name):
        raise ValueError(
            f"received {shorten(name)}, which has a control character or an invisible one; it also names files"
        )
    if len(name.encode()) > NAME_BYTES:
        raise ValueError(f"received {shorten(name)}, which is longer than {NAME_BYTES} bytes; it also names files")
    return name


FileSafe = Annotated[str, pydantic.Field(pattern=r"^[^@./\\:\s][^./\\:]*$"), pydantic.AfterValidator(_file_safe)]


class _SeveralColumns(Config):
    name: FileSafe
    """The feature's name, as that of the others."""
    columns: tuple[str, ...]

    @property
    def log_columns(self) -> tuple[str, ...]:
        """The columns of the log that it is made of."""
        return self.columns

    @pydantic.model_validator(mode="after")
    def _different(self) -> Self:
        twice = duplicates(self.columns)
        if twice:
            raise ValueError(f"columns: {twice[0]!r} is named twice")
        return self


class MissingTogetherFeature(_SeveralColumns):
    """1 where several numbers are missing in the same row, 0 elsewhere: the product of their missing flags."""

    kind: Literal["missing_together"] = "missing_together"
    columns: tuple[str, ...] = pydantic.Field(min_length=2, max_length=16)
    """Raw columns of numbers."""


class CrossedFeature(_SeveralColumns):
    """One id per row for a combination of ids, such as that of a user and an item: a cross-product transformation
    (Cheng et al., "Wide & Deep Learning for Recommender Systems", arXiv 1606.07792, section 3.1). It is missing where
    one of them is."""

    kind: Literal["crossed"] = "crossed"
    columns: tuple[str, ...] = pydantic.Field(min_length=2, max_length=MOST_CROSSED)
    """Raw columns of single ids, which may be features of their own."""
    encoder: EncoderConfig | None = None
    """How the combinations are mapped to rows; a vocabulary by default. ``min_count`` leaves out rare ones, ``hash``
    bounds the table."""
