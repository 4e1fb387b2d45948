"""The configs of encoders with learned maps: clusters of a proxy's vectors, their signs, and codes of several rows."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import pydantic

from ziggurat.core.errors import ConfigError
from ziggurat.features.encoders.compressed.code_map import PlainMap, most_code_bits
from ziggurat.features.encoders.compressed.learning import Form, How, MapSettings, learn
from ziggurat.features.encoders.compressed.mapped import MAPPED_VERSION, MappedEncoder, Parts
from ziggurat.features.encoders.encoder import Encoder, EncoderSettings, Ids, ProxySettings, ProxyVectors, ValueCounts

MIN_COUNT = 10
"""How often a value must occur by default to have a place in a map (docs/decisions/0078)."""


class LearnedMapSettings(EncoderSettings):
    """What the configs of learned maps share."""

    version: ClassVar[int] = MAPPED_VERSION

    rows: int = pydantic.Field(ge=4)
    """Number of rows of the table, with those of missing and unseen values."""
    private_rows: int = pydantic.Field(default=0, ge=0)
    """Number of the most frequent values, each of which has a row of its own."""
    unseen_rows: int = pydantic.Field(default=1, ge=1)
    """Rows that values without a place in the map share by hash."""
    proxy_dim: int = pydantic.Field(default=8, ge=1, le=32)
    """Numbers of a value's vector in the proxy model that finds out which values are alike; 4 to 8 are usual."""
    proxy_passes: int = pydantic.Field(default=10, ge=1)
    """The most passes of the proxy over the training rows; it stops when validation rows get worse."""
    seed: int = pydantic.Field(default=0, ge=0)
    """Seed of the proxy, of the clusters and of the hashes."""
    map: Form = "plain"
    """``plain``: 12 bytes a value; 4 for each number of the range of integers that fill half of it. ``compact``: about
    1.23 times ``code_bits`` + ``check_bits``, in bits a value, and groups of rows in place of single ones."""
    code_bits: int = pydantic.Field(default=7, ge=1, le=16)
    """Bits of a code in a compact map; a value shares a group of two to the power of that many rows."""
    check_bits: int = pydantic.Field(default=2, ge=0, le=8)
    """Bits by which a compact map finds out unknown values; the undiscovered ones get some row of the others."""
    mapped_values: int | None = pydantic.Field(default=None, ge=1)
    """The most values in the map, the most frequent ones after those with private rows; null: all that occur often
    enough."""
    min_count: int = pydantic.Field(default=MIN_COUNT, ge=1)
    """Values that training rows have less often have no place in the map: what the proxy says of a value that occurs
    once is that row's label, and rows of a table that share labels teach the model nothing else."""

    @property
    def how(self) -> How:
        """How codes are found."""
        raise NotImplementedError

    @property
    def parts(self) -> Parts:
        """How the rows of the table are divided."""
        return Parts(self.private_rows, self.unseen_rows, (self.shared_rows,), seed=self.seed)

    @property
    def shared_rows(self) -> int:
        """The rows that are left for values that share them."""
        return self.rows - 1 - self.private_rows - self.unseen_rows

    @property
    def codes(self) -> int:
        return self.parts.codes

    @property
    def proxy(self) -> ProxySettings:
        return ProxySettings(self.proxy_dim, self.seed, self.proxy_passes)

    @pydantic.model_validator(mode="after")
    def _rows_for_all(self) -> Self:
        least = 2 if self.how in {"helper", "residual", "product"} else 1
        if self.shared_rows < least:
            raise ValueError(
                f"rows: {self.rows:,} rows, less one for missing values, {self.private_rows:,} private and "
                f"{self.unseen_rows:,} unseen ones, leave {self.shared_rows:,} to share; {least} or more are needed"
            )
        most = most_code_bits(len(self.parts.coded), self.check_bits)
        if self.map == "compact" and self.code_bits > most:
            raise ValueError(
                f"code_bits: received {self.code_bits}; {len(self.parts.coded)} codes can have {most} bits"
            )
        return self

    def fit(self, counts: ValueCounts | None) -> MappedEncoder:
        del counts
        raise NotImplementedError("fitted with a proxy")

    def fit_with_proxy(
        self, counts: ValueCounts, proxy: ProxyVectors, previous: Encoder | None = None
    ) -> tuple[MappedEncoder, Ids]:
        settings = MapSettings(
            self.title, self.how, self.parts, self.map, self.code_bits, self.check_bits, self.mapped_values,
            self.min_count, self.seed,
        )  # fmt: skip
        return learn(settings, counts, proxy.vectors_ND, self._continued(previous))

    def _continued(self, previous: Encoder | None) -> MappedEncoder | None:
        """Returns the encoder to continue.

        Raises:
            ConfigError: it cannot be continued.
        """
        if previous is None:
            return None
        if not isinstance(previous, MappedEncoder) or previous.name != self.title:
            raise ConfigError(
                f"encoder {self.title}: keep names data whose encoder of this table is another one",
                "give both the same encoder, or leave keep out",
            )
        ours, theirs = self.parts, previous.parts
        if (theirs.first_coded, theirs.coded, theirs.helper) != (ours.first_coded, ours.coded, ours.helper) or (
            theirs.private > ours.private  # it may have fewer, if fewer values occurred
        ):
            raise ConfigError(
                f"encoder {self.title}: keep names one whose rows are divided otherwise, which it cannot continue: of "
                f"{theirs.rows:,} rows {theirs.private:,} are private and {theirs.unseen:,} of unseen values there, of "
                f"{ours.rows:,} rows {ours.private:,} and {ours.unseen:,} here",
                "give both the same encoder with the same rows, private_rows and unseen_rows, or leave keep out",
            )
        if not isinstance(previous.map, PlainMap):
            raise ConfigError(
                f"encoder {self.title}: keep names one with a compact map, which does not know which values it has",
                "prepare the older data with `map: plain`, or leave keep out",
            )
        return previous

    @classmethod
    def encoder_class(cls) -> type[MappedEncoder]:
        return MappedEncoder


class LearnedHashConfig(LearnedMapSettings):
    """Lets alike values share rows: the most frequent ones have private rows, the others the row of their cluster."""

    name: Literal["learned_hash"] = "learned_hash"
    keep: str | None = None
    """Folder of a run or of prepared data with the same encoder, fitted on older data: values keep their rows unless
    another cluster is clearly nearer, also those that the new data lack. Needs a plain map."""

    @property
    def how(self) -> How:
        return "clusters"

    @property
    def kept_from(self) -> str | None:
        return self.keep

    @pydantic.model_validator(mode="after")
    def _plain_to_keep(self) -> Self:
        if self.keep is not None and self.map != "plain":
            raise ValueError("keep: needs map: plain; a compact map does not know which values it has")
        return self


class LshConfig(LearnedMapSettings):
    """Lets values share rows whose vectors of the proxy lie on the same sides of random planes."""

    name: Literal["lsh"] = "lsh"

    @property
    def how(self) -> How:
        return "signs"


class ClusteredCodesConfig(LearnedMapSettings):
    """Gives each value several rows, which are summed, by codes that clusters of the proxy's vectors teach.

    ``helper`` is the composition of Clustered Compositional Embeddings (arXiv 2210.05974, section 3): the row of the
    cluster, and one by hash. There the model's table is clustered every so often while it trains. With ``clusterings``
    the proxy's is; the model then begins with the codes that were found last. ``residual`` clusters what the first code
    leaves over; ``product`` clusters each half of the coordinates.
    """

    name: Literal["clustered_codes"] = "clustered_codes"
    compose: Literal["helper", "residual", "product"] = "helper"
    """Which codes a value has."""
    clusterings: int = pydantic.Field(default=0, ge=0)
    """``helper`` alone: after how many of its first passes the proxy's values are clustered. Its table has the rows of
    this encoder then, and is clustered while it trains. 0: the proxy has a row for each value, and they are clustered
    once, when it is trained."""

    @property
    def proxy(self) -> ProxySettings:
        return ProxySettings(self.proxy_dim, self.seed, self.proxy_passes, self.clusterings)

    @pydantic.model_validator(mode="after")
    def _clusterings_of_helpers(self) -> Self:
        if self.clusterings and self.compose != "helper":
            raise ValueError(f"clusterings: only codes with a helper have them; compose is {self.compose}")
        if self.clusterings >= self.proxy_passes:
            raise ValueError(
                f"clusterings: received {self.clusterings} for {self.proxy_passes} proxy_passes; the proxy must learn "
                "after the last one"
            )
        return self

    @property
    def how(self) -> How:
        return self.compose

    @property
    def parts(self) -> Parts:
        half = self.shared_rows // 2
        if self.compose == "helper":
            return Parts(self.private_rows, self.unseen_rows, (self.shared_rows - half,), half, self.seed)
        return Parts(self.private_rows, self.unseen_rows, (self.shared_rows - half, half), seed=self.seed)
