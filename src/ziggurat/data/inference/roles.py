"""Infers the roles of the columns of some logs (label, time, group, features) and how to split their rows.

Every result is a guess with a reason, for a person to confirm. Names suggest what a column means (``user_id``,
``click``, ``age``); values decide what it can be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import polars as pl

from ziggurat.core.errors import DataError
from ziggurat.core.schema import MOST_NUMBERS, ValueType
from ziggurat.data.inference.columns import ColumnProfile, number_profile, profile_frame, split_cells
from ziggurat.data.inference.header_types import with_header_types
from ziggurat.data.inference.ids_or_quantity import count_of, ids_or_quantity, number_of_values
from ziggurat.data.inference.label_order import Floats, label_numbers
from ziggurat.data.inference.labels import InferredLabel, is_binary
from ziggurat.data.inference.layouts import Kind, Layout, label_of, recognise
from ziggurat.data.inference.numeric.numbers import read_numbers, rules_of_file
from ziggurat.data.inference.sample import LogSample, read_sample
from ziggurat.data.inference.times import parts_that_vary
from ziggurat.data.inference.words import (
    GROUP_WORDS,
    ID_WORDS,
    OTHER_TIME_WORDS,
    QUANTITY_WORDS,
    SEQUENCE_WORDS,
    TIME_WORDS,
    WEIGHT_WORDS,
    words,
)
from ziggurat.data.readers.cells.number_rules import PLAIN, NumberRules
from ziggurat.data.readers.cells.times import EPOCH_UNITS
from ziggurat.data.readers.source_files import SourceFile

Part = Literal["train", "validation", "test"]
LIST_OF_NUMBERS = "a list of numbers by its header: `kind: vector` reads lists of one length, but none that are text"

LARGE_TABLE_ROWS = 1_000_000
_LEAST_GROUPS, _LEAST_GROUP_ROWS = 20, 50
"""A column identifies users if it has this many values, or one for so many rows of a small log."""

_FEW_WITHOUT_TIME = 0.01
"""The largest share of rows without a time that are set aside, so that the others can be split by time."""


@dataclass(frozen=True, slots=True)
class InferredFeature:
    """A feature, or an excluded column (``kind`` None), with the reason.

    Attributes:
        table: the column whose table a bag or sequence shares.
        doubt: why whole numbers may be of the other kind, ids or quantities, after all; empty if there is no doubt.
    """

    profile: ColumnProfile
    kind: Kind | None
    reason: str
    table: str | None = None
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class InferredSplit:
    """How rows are split into training, validation and test rows."""

    name: Literal["files", "time_within_key", "time", "random"]
    reason: str


@dataclass(frozen=True, slots=True)
class Inference:
    """The inferred description of some logs.

    Attributes:
        sample: the rows that were examined.
        files: the files of each part.
        labels: the labels.
        features: what becomes of every other column.
        split: how rows are split.
        group: the column of users or the like.
        time: the column of the rows' times.
        numbers: how the files write numbers.
        layout: the name of the public layout that the files have.
        time_parts: the parts of the time that may be features.
        incomplete_times: columns of times in which some cells are empty.
        weights: columns that may be weights.
        other_labels: further columns that may be labels.
    """

    sample: LogSample
    files: dict[Part, list[SourceFile]]
    labels: list[InferredLabel]
    features: list[InferredFeature]
    split: InferredSplit
    group: ColumnProfile | None = None
    time: ColumnProfile | None = None
    numbers: NumberRules = PLAIN
    layout: str | None = None
    time_parts: tuple[str, ...] = ()
    incomplete_times: tuple[ColumnProfile, ...] = ()
    weights: tuple[str, ...] = ()
    other_labels: tuple[str, ...] = ()


def infer(
    files: Sequence[SourceFile], label: str | None = None, sample: LogSample | None = None, table: str | None = None
) -> Inference:
    """Infers a description of ``files``.

    Args:
        files: the files of one log; names that contain a word for validation or test assign files to these splits.
        label: the name of the label column, if known.
        sample: some of their rows, if those are in memory.
        table: the table of databases to read.

    Raises:
        DataError: files cannot be read, or no column can be a feature.
        ConfigError: there is no column ``label``, no column can be a label, or it cannot be made binary.
    """
    parts = sort_files(files)
    sample = sample or read_sample(parts["train"], table=table)
    layout = recognise(sample, str(files[0].path))
    profiles, numbers = with_file_numbers(profile_frame(sample.frame, sample.complete), sample)
    profiles = with_header_types(profiles, sample)
    with_names = [profile for profile in profiles if profile.name.strip()]
    labels = label_of(layout, with_names, label, files[0].path)
    label_names = {name for chosen in labels for name in chosen.columns}
    rest = [profile for profile in profiles if profile.name not in label_names]
    named = {profile.name: profile for profile in with_names if profile.name not in label_names}
    time = _time_of(layout, named) or find_time([*named.values()])
    group = named.get(layout.group) if layout is not None and layout.group else None
    group = group or next((profile for profile in named.values() if is_group(profile)), None)
    kinds = layout.kinds if layout is not None else {}
    targets = [values for each in labels if (values := label_numbers(each, sample.frame)) is not None]
    features = [
        _known_feature(profile, time, kinds.get(profile.name))
        or _infer_feature(profile, time, sample.frame[profile.name], targets)
        for profile in rest
    ]
    if not any(feature.kind for feature in features):
        raise _no_feature(features, labels, files[0])
    features = _shared_tables(features, sample)
    return Inference(
        sample=sample,
        files=parts,
        labels=labels,
        features=features,
        split=_infer_split(parts, time, group),
        group=group,
        time=time,
        numbers=numbers,
        layout=layout.name if layout is not None else None,
        time_parts=_time_parts(time, sample),
        incomplete_times=tuple(profile for profile in rest if profile.time_format is not None and profile.missing),
        weights=tuple(profile.name for profile in rest if words(profile.name) & WEIGHT_WORDS and profile.numeric),
        other_labels=tuple(profile.name for profile in rest if is_binary(profile)),
    )


def _no_feature(features: Sequence[InferredFeature], labels: Sequence[InferredLabel], file: SourceFile) -> DataError:
    """Returns the error that explains why no column can be a feature."""
    named = ", ".join(label.profile.name for label in labels)
    left_out = "; ".join(f"{feature.profile.name!r} is {feature.reason}" for feature in features[:8])
    return DataError(
        f"{file.path}: no column can be a feature beside the label {named}" + (f": {left_out}" if left_out else ""),
        "name files with at least one column to learn from, or another label: ziggurat init FILES --label COLUMN",
    )


def with_file_numbers(profiles: Sequence[ColumnProfile], sample: LogSample) -> tuple[list[ColumnProfile], NumberRules]:
    """Finds how the file writes numbers, and profiles the columns that are written so as numbers.

    A column of numbers that is written in another way stays text, with :attr:`ColumnProfile.number_ways`.
    """
    if not any(profile.number_ways for profile in profiles):
        return list(profiles), PLAIN
    plain = {p.name for p in profiles if p.type is ValueType.FLOAT and sample.frame[p.name].dtype == pl.String}
    ways = [(PLAIN,) if profile.name in plain else profile.number_ways for profile in profiles]
    rules = rules_of_file(ways)
    found: list[ColumnProfile] = []
    for profile in profiles:
        if not profile.number_ways and (profile.name not in plain or rules.decimal == "."):
            found.append(profile)
            continue
        values = read_numbers(sample.frame[profile.name], rules, profile.null_words)
        if values is not None:
            found.append(number_profile(profile, values, sample.complete))
        else:
            example = profile.example or str(next((each for each in profile.common if each != int(each)), ""))
            found.append(
                replace(profile, type=ValueType.TEXT, number_ways=profile.number_ways or (PLAIN,), example=example)
            )
    return found, rules


def sort_files(files: Sequence[SourceFile]) -> dict[Part, list[SourceFile]]:
    """Assigns files to splits by their names; all files are training files if the names give no training file."""
    parts: dict[Part, list[SourceFile]] = {"train": [], "validation": [], "test": []}
    for file in files:
        stem = words(file.path.name.partition(".")[0])
        if stem & {"valid", "validation", "val", "dev"}:
            parts["validation"].append(file)
        elif stem & {"test", "testing", "eval"}:
            parts["test"].append(file)
        else:
            parts["train"].append(file)
    return parts if parts["train"] else {"train": list(files), "validation": [], "test": []}


def find_time(profiles: Sequence[ColumnProfile]) -> ColumnProfile | None:
    """Returns the time column of the rows, preferably with such a name, never a birth or release date and the like."""
    times = [profile for profile in profiles if is_time(profile) and not words(profile.name) & OTHER_TIME_WORDS]
    times = [profile for profile in times if not profile.missing] or times
    return next((profile for profile in times if words(profile.name) & TIME_WORDS), times[0] if times else None)


def is_time(profile: ColumnProfile) -> bool:
    """Whether a column holds a time in every row, which a split by time needs, or in all but few, which it rejects."""
    timed = profile.time_format is not None and not profile.many and profile.distinct >= 3
    return timed and profile.missing <= _FEW_WITHOUT_TIME


def is_group(profile: ColumnProfile) -> bool:
    """Whether the column identifies something like a user, and its values recur."""
    few = min(_LEAST_GROUPS, profile.rows / _LEAST_GROUP_ROWS)
    if profile.many or profile.type is ValueType.FLOAT or profile.distinct < max(2, few):
        return False
    named = words(profile.name)
    describes = bool(named & {"feature", *QUANTITY_WORDS}) and "id" not in named  # user_age, user_item_affinity
    return bool(named & GROUP_WORDS) and not describes and profile.distinct < 0.9 * profile.rows


def _time_of(layout: Layout | None, profiles: Mapping[str, ColumnProfile]) -> ColumnProfile | None:
    """Returns the time column of a layout, if each row has a time."""
    profile = profiles.get(layout.time) if layout is not None and layout.time is not None else None
    if layout is None or profile is None or profile.missing or profile.distinct < 3:
        return None
    if layout.time_format is None:
        return profile if is_time(profile) else None
    note = f"{layout.time_format} since 1970: so is the layout"
    return replace(profile, time_format=layout.time_format, time_note=profile.time_note or note)


def _time_parts(time: ColumnProfile | None, sample: LogSample) -> tuple[str, ...]:
    if time is None or time.time_format is None:
        return ()
    return parts_that_vary(sample.frame[time.name], time.time_format)


def _known_feature(
    profile: ColumnProfile, time: ColumnProfile | None, known: tuple[Kind | None, str] | None
) -> InferredFeature | None:
    """Returns the feature that a layout or a typed header makes of a column; None if its values have to decide."""
    if time is not None and profile.name == time.name:
        return None
    constant = (profile.distinct <= 1 and profile.missing < 0.01) or profile.distinct == 0
    if constant or (known is None and profile.declared is None):
        return None
    if known is not None:
        kind, why = known
        if kind == "numeric":
            return InferredFeature(profile, kind, why) if profile.numeric else None
        return InferredFeature(profile, kind, f"{count_of(profile)}; {why}" if kind else why)
    if profile.declared == "float_seq":
        return InferredFeature(profile, None, LIST_OF_NUMBERS)
    if profile.declared == "float":
        return InferredFeature(profile, "numeric", "a number by its header") if profile.numeric else None
    if profile.many:
        sequence = bool(words(profile.name) & {*SEQUENCE_WORDS, "list"})
        spread = f"{number_of_values(profile.distinct)}, up to {profile.longest} a row"
        return InferredFeature(profile, "sequence" if sequence else "bag", f"{spread}; tokens by its header")
    if profile.rows >= 100 and profile.distinct > 0.95 * profile.rows * (1 - profile.missing):
        return InferredFeature(profile, None, "a token that is different in nearly every row")
    return InferredFeature(profile, "categorical", f"{count_of(profile)}; a token by its header")


def _infer_feature(
    profile: ColumnProfile, time: ColumnProfile | None, cells: pl.Series, targets: Sequence[Floats]
) -> InferredFeature:
    """Infers the kind of feature that a column is, or why it is excluded."""
    if not profile.name.strip():
        return InferredFeature(profile, None, "without a name, as an index that was written along")
    if profile.distinct == 0:
        return InferredFeature(profile, None, "empty in all rows that were looked at")
    if profile.distinct == 1 and profile.missing < 0.01:
        return InferredFeature(profile, None, "always the same: nothing to learn from")
    if time is not None and profile.name == time.name:
        return InferredFeature(profile, None, "the time of the row: it splits rows; as an input it would not repeat")
    if _holds_times(profile):
        return InferredFeature(profile, None, "times: as values they would not repeat; `kind: time` uses parts of them")
    if profile.unread_time:
        return InferredFeature(profile, None, profile.unread_time)
    if profile.number_ways:
        if profile.numeric:
            return InferredFeature(profile, "numeric", f"numbers such as {profile.example}")
        return InferredFeature(
            profile,
            None,
            f"numbers such as {profile.example}, written otherwise than most of the file's: write them alike",
        )
    if profile.vector > MOST_NUMBERS:
        why = f"vectors of {profile.vector:,} numbers, of which {MOST_NUMBERS:,} are allowed: shorten them"
        return InferredFeature(profile, None, why)
    if profile.vector:
        return InferredFeature(profile, "vector", f"vectors of {profile.vector} numbers")
    if profile.many:
        sequence = bool(words(profile.name) & SEQUENCE_WORDS)
        spread = f"{number_of_values(profile.distinct)}, up to {profile.longest} a row"
        return InferredFeature(profile, "sequence" if sequence else "bag", spread)
    unique = profile.rows >= 100 and profile.distinct > 0.95 * profile.rows * (1 - profile.missing)
    if profile.ascending and unique and profile.type is ValueType.INTEGER:
        return InferredFeature(profile, None, "a row number: it rises with every row")
    if profile.type is ValueType.FLOAT:
        return InferredFeature(profile, "numeric", "fractions")
    if profile.type is ValueType.TEXT:
        if unique:
            return InferredFeature(profile, None, "different in nearly every row: nothing that repeats")
        return InferredFeature(profile, "categorical", count_of(profile))
    number, why, doubt = ids_or_quantity(profile, cells, targets)
    if not number and unique:
        return InferredFeature(profile, None, "an id that is different in nearly every row")
    if profile.whole_floats and not number:
        why += f"; whole numbers {'written' if profile.example else 'stored'} as floats"
        why += f", such as {profile.example}" * bool(profile.example)
    return InferredFeature(profile, "numeric" if number else "categorical", why, doubt=doubt)


def _holds_times(profile: ColumnProfile) -> bool:
    """Whether cells are times, typed or written as such, or numbers that are, unless their name is that of an id."""
    named = words(profile.name)
    is_id = bool(named & (GROUP_WORDS | ID_WORDS)) and not named & TIME_WORDS
    return profile.is_temporal or (
        profile.time_format is not None and not (is_id and profile.time_format in EPOCH_UNITS)
    )


def _shared_tables(features: list[InferredFeature], sample: LogSample) -> list[InferredFeature]:
    """Assigns to a bag or sequence the table of the categorical column whose values it holds."""
    owners = [
        feature.profile for feature in features if feature.kind == "categorical" and feature.profile.distinct > 20
    ]
    return [
        _with_table(feature, owners, sample) if feature.kind in ("bag", "sequence") else feature for feature in features
    ]


def _with_table(feature: InferredFeature, owners: Sequence[ColumnProfile], sample: LogSample) -> InferredFeature:
    """Assigns the table of the best owner.

    An owner must contain nine of ten elements, and either share a word of its name (``item_id``, ``last_items``) or
    pass :func:`_may_share_by_values` and :func:`_same_values`.
    """
    named = {word.rstrip("s") for word in words(feature.profile.name)}
    elements = _elements(feature.profile, sample)
    best: tuple[bool, float, str] | None = None
    for owner in owners:
        if owner.type is not feature.profile.type:
            continue
        same_name = bool(named & {word.rstrip("s") for word in words(owner.name)})
        if same_name or _may_share_by_values(owner):
            known = sample.frame[owner.name].drop_nulls().unique().cast(pl.String)
            inside = float(elements.is_in(known.to_list()).mean() or 0.0)  # pyright: ignore[reportArgumentType]
            if inside > 0.9 and (same_name or _same_values(elements, known, feature.profile.type)):
                best = max(best or (False, 0.0, ""), (same_name, inside, owner.name))
    if best is None:
        return feature
    reason = f"{feature.reason}; they are values of {best[2]}, so the two share a table"
    return replace(feature, reason=reason, table=best[2])


def _may_share_by_values(owner: ColumnProfile) -> bool:
    """Whether values alone may decide: small integers occur in many columns, and histories do not list users."""
    return not is_group(owner) and (owner.type is ValueType.TEXT or owner.distinct > 100)


def _same_values(elements: pl.Series, known: pl.Series, kind: ValueType) -> bool:
    """Whether values mean the same: texts do; integers count from 1 anywhere, so most of the owner's must occur."""
    if kind is ValueType.TEXT:
        return True
    return float(known.is_in(elements.unique().to_list()).mean() or 0.0) > 0.5  # pyright: ignore[reportArgumentType]


def _elements(profile: ColumnProfile, sample: LogSample) -> pl.Series:
    """Returns elements of the column's first cells, as text."""
    cells = sample.frame[profile.name].drop_nulls().head(5_000)
    lists = cells if profile.delimiter is None else split_cells(cells, profile.delimiter, profile.brackets)
    elements = lists.explode().drop_nulls().cast(pl.String)
    return elements.filter(elements != "")


def _infer_split(
    parts: dict[Part, list[SourceFile]], time: ColumnProfile | None, group: ColumnProfile | None
) -> InferredSplit:
    if parts["test"] or parts["validation"]:
        return InferredSplit("files", "by the files' names")
    if time is not None and group is not None and not group.missing and group.rows / group.distinct >= 10:
        return InferredSplit(
            "time_within_key", "each group's last rows test, those before them validate: no look ahead"
        )
    if time is not None:
        return InferredSplit("time", "the last rows test, those before them validate: no look ahead")
    return InferredSplit("random", "there is no time to split by")
