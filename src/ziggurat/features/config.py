"""The ``data`` and ``features`` sections of an experiment: which columns are read, and how each is used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, cast, get_args

import pydantic

from ziggurat.core.config import Config
from ziggurat.core.config_places import IMPORT_KEY, SECTION_TAG
from ziggurat.core.parts import built_in_names
from ziggurat.core.schema import MOST_NUMBERS, ValueType, duplicates
from ziggurat.core.tables import Pooling
from ziggurat.data.encoded.dataset import BLOCK_ROWS
from ziggurat.data.encoded.split import RandomSplit, SplitConfig, TimeSplit, TimeWithinKeySplit
from ziggurat.data.readers.cells.times import checked_time_format, holds_hours
from ziggurat.data.readers.source import SourceConfig
from ziggurat.data.readers.urls import LogFolder
from ziggurat.features.encoders.category_numbers import CategoryEncoding
from ziggurat.features.encoders.encoders import EncoderConfig
from ziggurat.features.labels import LabelConfig as LabelConfig
from ziggurat.features.negatives_config import NegativesConfig
from ziggurat.features.numeric.spline import SplineConfig
from ziggurat.features.numeric.steps import QuantileConfig, StepConfig, check_one_number_each, check_places
from ziggurat.features.several_columns import CrossedFeature, FileSafe, MissingTogetherFeature
from ziggurat.interactions.sequences.sequence_encoder import SequenceEncoderSettings
from ziggurat.interactions.sequences.sequence_pooling import SequenceEncoderConfig

IdType = Literal["integer", "text"]


def _time_format(text: str) -> str:
    """Returns a known time format; ``number`` is one of targets alone."""
    try:
        return text if text == "number" else checked_time_format(text)
    except ValueError as error:
        raise ValueError(str(error).replace("allowed: ", "allowed: number, ")) from None


TimeFormat = Annotated[str, pydantic.AfterValidator(_time_format)]


def _pooling_kind(value: Any) -> str:
    """Returns the tag of the value of a sequence's ``pooling``; an unknown tag causes the error message below."""
    if isinstance(value, str):
        return "plain" if value in get_args(Pooling) else value
    if isinstance(value, SequenceEncoderSettings):
        return SECTION_TAG
    section = cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
    return SECTION_TAG if IMPORT_KEY in section or section.get("name") in _ENCODERS else str(section.get("name"))


_ENCODERS = built_in_names(SequenceEncoderConfig)

SequencePoolingConfig = Annotated[
    Annotated[Pooling, pydantic.Tag("plain")] | Annotated[SequenceEncoderConfig, pydantic.Tag(SECTION_TAG)],
    pydantic.Discriminator(
        _pooling_kind,
        custom_error_type="pooling_kind",
        custom_error_message=(
            "Input should be sum, mean, or a section whose name is "
            f"{', '.join(_ENCODERS[:-1])} or {_ENCODERS[-1]}, or that imports one"
        ),
    ),
]


class Targets(Config):
    """The columns of a row besides its features: the part of :class:`DataConfig` that is saved with a transform."""

    labels: tuple[LabelConfig, ...]
    weight: str | None = None
    group: str | None = None
    time: str | None = None
    time_format: TimeFormat = "number"

    @property
    def as_prepared(self) -> Targets:
        """The targets without what does not affect the prepared data."""
        return self.model_copy(update={"labels": tuple(label.as_prepared for label in self.labels)})


class DataConfig(Config):
    """Raw logs: where they are, what their columns mean, and which rows are used for training."""

    NEWER: ClassVar[frozenset[str]] = frozenset({"negatives"})

    folder: LogFolder = Path()
    """Folder that relative paths of files refer to, itself relative to the working directory; or a URL, such as
    s3://BUCKET/logs."""
    source: SourceConfig
    """The files and their format."""
    split: SplitConfig = RandomSplit()
    """Which rows are used for training, validation and test."""
    on_bad_row: Literal["fail", "quarantine"] = "fail"
    """What to do with a row that cannot be used: stop, or write it to quarantine.jsonl and count it."""
    labels: tuple[LabelConfig, ...] = pydantic.Field(min_length=1)
    """The tasks, in the order of the model's outputs."""
    weight: str | None = None
    """Column of example weights, which must be finite and not negative; those of some training rows must be above 0. A
    batch whose weights sum to 0 changes nothing."""
    group: str | None = None
    """Column whose values group rows for GAUC, usually the user; all rows with an empty cell form one group."""
    time: str | None = None
    """Column of times, for splits by time."""
    time_format: TimeFormat = "number"
    """How the times are written. ``number``: numbers in any unit, read as they are. All others are read as seconds
    since 1970: ``iso``, text such as 2024-05-01 or 2024-05-01T12:30:00+02:00 (UTC if it has no time zone); ``seconds``,
    ``milliseconds``, ``microseconds``, ``nanoseconds``, numbers since 1970; or a pattern such as "%d/%m/%Y %H:%M" or
    "%y%m%d%H". Timestamps and dates of Parquet are read in any of them but ``number``."""
    negatives: NegativesConfig | None = None
    """Negatives to sample, for logs that hold positives alone; null: every row is one of the log."""
    block_rows: int = pydantic.Field(default=BLOCK_ROWS, ge=1)
    """Number of rows of a block of the prepared dataset, the unit of shuffling."""

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        twice = duplicates(label.name for label in self.labels)
        if twice:
            raise ValueError(f"label {twice[0]!r} is defined twice")
        self._check_negatives()
        if isinstance(self.split, TimeSplit | TimeWithinKeySplit) and self.time is None:
            raise ValueError(f"split {self.split.name!r} needs times: set data.time to the column that contains them")
        return self

    def _check_negatives(self) -> None:
        names = [label.name for label in self.labels]
        observed = [label.name for label in self.labels if label.observed]
        if self.negatives is None:
            if observed:
                raise ValueError(
                    f"label {observed[0]!r} is 1 in every row (observed): add data.negatives, which samples its zeros, "
                    "for example negatives: {name: uniform, user: user, item: item}"
                )
            return
        if self.negatives.label is None and len(names) > 1:
            raise ValueError(f"negatives: say which label's ones are the positives: label: {' or '.join(names)}")
        if self.negatives.label is not None and self.negatives.label not in names:
            raise ValueError(f"negatives: label {self.negatives.label!r} is none of {', '.join(names)}")
        other = [label for label in self.labels if label.kind != "binary"]
        if other:
            raise ValueError(
                f"negatives: label {other[0].name!r} of kind {other[0].kind} has no value in a sampled row; leave "
                "it out"
            )
        if self.negatives.user == self.negatives.item:
            raise ValueError(f"negatives: user and item are both the column {self.negatives.user!r}")

    @property
    def negative_label(self) -> str:
        """The label whose ones get sampled negatives."""
        chosen = None if self.negatives is None else self.negatives.label
        return chosen or self.labels[0].name

    @property
    def targets(self) -> Targets:
        """Labels, weight, group and time."""
        return Targets(
            labels=self.labels, weight=self.weight, group=self.group, time=self.time, time_format=self.time_format
        )

    @property
    def split_key(self) -> str | None:
        """The column that decides the split of a row, if any."""
        return self.split.key if isinstance(self.split, RandomSplit | TimeWithinKeySplit) else None


class _Feature(Config):
    name: FileSafe
    """The feature's name: unique, no control or invisible character, none of . / \\\\ :, not beginning with @."""
    column: str | None = None
    """Raw column that the feature is made from; the feature's name by default."""

    @property
    def source_column(self) -> str:
        return self.column or self.name

    @property
    def log_columns(self) -> tuple[str, ...]:
        """The columns of the log that it is made of."""
        return (self.source_column,)


class NumericFeature(_Feature):
    """A number: a dense feature, several of them if its chain ends in ``spline``, or a categorical one if that ends in
    ``bucketise``."""

    kind: Literal["numeric"] = "numeric"
    transforms: tuple[StepConfig, ...] = ()
    """Steps, applied in order. Missing values are first filled with the training median, unless a step fills them."""

    @pydantic.model_validator(mode="after")
    def _in_their_places(self) -> Self:
        check_places(self.transforms)
        return self

    @property
    def bucketised(self) -> bool:
        return bool(self.transforms) and self.transforms[-1].name == "bucketise"

    @property
    def spline(self) -> SplineConfig | None:
        """The step that makes several numbers of it, if it has one."""
        last = self.transforms[-1] if self.transforms else None
        return last if isinstance(last, SplineConfig) else None

    @property
    def ranked(self) -> bool:
        """Whether its values are ranks between 0 and 1."""
        last = self.transforms[-1] if self.transforms else None
        return isinstance(last, QuantileConfig) and last.output == "uniform"


class VectorFeature(_Feature):
    """A list of ``length`` numbers in every row, such as an embedding: as many dense features."""

    kind: Literal["vector"] = "vector"
    length: int = pydantic.Field(ge=1, le=MOST_NUMBERS)
    """Number of numbers; a row with a list of another length is rejected, one without a list has missing numbers."""
    transforms: tuple[StepConfig, ...] = ()
    """Steps, applied to each number by itself, as those of a numeric feature; ``bucketise`` and ``spline`` are none of
    them."""

    @pydantic.model_validator(mode="after")
    def _dense(self) -> Self:
        check_one_number_each(self.transforms, "the numbers of a vector")
        return self


class EncodedFeature(_Feature):
    """One id per row as dense numbers, fitted by figures of the training rows, without an embedding table."""

    kind: Literal["encoded"] = "encoded"
    type: IdType = "text"
    """Type of the ids; integer 12 and text "12" are different ids."""
    encoding: CategoryEncoding
    """Which numbers an id becomes: ``target``, ``one_hot``, ``hash`` or ``ordinal``."""
    missing: Literal["own", "most_frequent"] = "own"
    """How a missing id counts: as an id of its own, or as the most frequent one."""
    transforms: tuple[StepConfig, ...] = ()
    """Steps, applied to each of the numbers, as those of a numeric feature; ``bucketise`` and ``spline`` are none of
    them."""

    @property
    def value_type(self) -> ValueType:
        return ValueType(self.type)

    @pydantic.model_validator(mode="after")
    def _possible(self) -> Self:
        check_one_number_each(self.transforms, "the numbers of a category")
        if self.missing == "most_frequent" and self.encoding.name == "hash":
            raise ValueError("missing: a hash counts no values and knows no most frequent one: leave out `missing`")
        return self


class _IdFeature(_Feature):
    type: IdType = "text"
    """Type of the ids; integer 12 and text "12" are different ids."""
    encoder: EncoderConfig | None = None
    """How ids are mapped to rows; by default the encoder of the table's other features, or a vocabulary."""
    table: FileSafe | None = None
    """Embedding table; the feature's name by default. Features with the same table share it and its encoder."""

    @property
    def table_name(self) -> str:
        return self.table or self.name

    @property
    def value_type(self) -> ValueType:
        return ValueType(self.type)


class CategoricalFeature(_IdFeature):
    """One id per row."""

    kind: Literal["categorical"] = "categorical"


class _ManyFeature(_IdFeature):
    NEWER: ClassVar[frozenset[str]] = frozenset({"brackets"})

    delimiter: str = pydantic.Field(default="|", min_length=1)
    """Separates the ids of a text cell; ignored if the file contains lists."""
    brackets: bool = False
    """Text cells are lists in brackets, as pandas and JSON write them: [240, 132] or ['a', 'b']. Needs ``delimiter``,
    usually ","."""

    @pydantic.model_validator(mode="after")
    def _one_delimiter_in_brackets(self) -> Self:
        if self.brackets and "delimiter" not in self.model_fields_set:
            raise ValueError('brackets: say what separates the ids within them, for example delimiter: ","')
        if self.brackets and (len(self.delimiter) != 1 or self.delimiter in "[]'\"\\"):
            raise ValueError(f"brackets: received delimiter {self.delimiter!r}; one character, no quote and no bracket")
        return self


class BagFeature(_ManyFeature):
    """Any number of ids per row, without order, pooled into one vector."""

    kind: Literal["bag"] = "bag"
    max_length: int | None = pydantic.Field(default=None, ge=1)
    """Number of ids to keep, the first ones; null: all."""
    pooling: Pooling = "mean"
    """How the ids' vectors are pooled into one."""


class SequenceFeature(_ManyFeature):
    """Ids in order, oldest first."""

    kind: Literal["sequence"] = "sequence"
    last: int = pydantic.Field(default=50, ge=1)
    """Number of ids to keep, the most recent ones."""
    pooling: SequencePoolingConfig = "mean"
    """How the ids' vectors are pooled: ``sum``, ``mean``, or a section with the ``name`` of a sequence encoder:
    ``attention`` (a learned query), ``target_attention`` (DIN; ``target`` names a categorical feature) or
    ``transformer``. These need ``last``."""

    @pydantic.model_validator(mode="after")
    def _positions_are_counted(self) -> Self:
        if not isinstance(self.pooling, str) and "last" not in self.model_fields_set:
            raise ValueError(
                f"pooling {self.pooling.title!r} looks up every position separately, so their number must be given: "
                "set last, for example last: 20"
            )
        return self


class TimeFeature(_Feature):
    """A part of a time. :mod:`ziggurat.features.time_inputs` says which inputs of the model it becomes."""

    model_config = pydantic.ConfigDict(serialize_by_alias=True)

    kind: Literal["time"] = "time"
    part: Literal["hour", "weekday", "day", "month", "age"]
    """``hour`` of the day, ``weekday``, ``day`` of the month, ``month``, all in UTC; ``age``: days since the first
    training row, standardised over the training rows and clipped to their range."""
    encoding: Literal["cyclical", "categorical"] | None = pydantic.Field(default=None, alias="as")
    """``cyclical`` (the default): sine and cosine, two numbers NAME_sin and NAME_cos. ``categorical``: one id, with a
    table of its own. Not for ``age``, which is one number."""
    format: TimeFormat | None = None
    """How the column's times are written, as in ``data.time_format``; that is the default for the column data.time."""

    @property
    def time_format(self) -> str:
        """The format, which an experiment has set."""
        assert self.format is not None, self.name
        return self.format

    @pydantic.model_validator(mode="before")
    @classmethod
    def _no_other_encoding(cls, values: Any) -> Any:
        given = cast("Mapping[str, Any]", values) if isinstance(values, Mapping) else {}
        for key in ("encoder", "transforms", "type", "table"):
            if key in given:
                raise ValueError(f"{key}: a time feature takes none; `as: cyclical` or `as: categorical` encodes it")
        return values

    @pydantic.model_validator(mode="after")
    def _possible(self) -> Self:
        if self.part == "age" and self.encoding is not None:
            raise ValueError(f"as: received {self.encoding!r}, but the age is one standardised number: leave `as` out")
        if self.format == "number":
            raise ValueError(NO_UNIT)
        if self.part == "hour" and self.format is not None and not holds_hours(self.format):
            raise ValueError(f"part: the format {self.format!r} has no hours; every row would be at midnight")
        return self

    def resolved(self, time: str | None, time_format: str) -> TimeFeature:
        """Returns the feature with its format, which the column data.time has from data.time_format.

        Raises:
            ValueError: the format is not known, or lacks what the feature needs.
        """
        if self.format is not None:
            return self
        if self.source_column != time:
            raise ValueError(
                f"feature {self.name!r}: say how the times of column {self.source_column!r} are written, for example "
                "format: iso; only that of data.time is known from data.time_format"
            )
        try:
            return TimeFeature.model_validate({**self.model_dump(), "format": time_format})
        except pydantic.ValidationError as error:
            message = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
            raise ValueError(f"feature {self.name!r}: {message}") from None


NO_UNIT = (
    "the format `number` does not say what the numbers count: set data.time_format, or the feature's format, to "
    "seconds, milliseconds, microseconds, nanoseconds, or a pattern"
)


IdFeature = CategoricalFeature | BagFeature | SequenceFeature
InputFeature = NumericFeature | IdFeature
"""A feature that is an input of the model as it stands."""
FeatureConfig = Annotated[
    NumericFeature
    | VectorFeature
    | CategoricalFeature
    | BagFeature
    | SequenceFeature
    | TimeFeature
    | EncodedFeature
    | MissingTogetherFeature
    | CrossedFeature,
    pydantic.Field(discriminator="kind"),
]
