"""From the look of some logs to the parts that their columns play: label, time, group, features; how to split rows.

Everything here is a guess with its reason attached, for a person to confirm. Names say what a column means
(``user_id``, ``click``, ``age``); values say what it can be.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ziggurat.core.errors import ConfigError, nearest
from ziggurat.core.schema import ValueType
from ziggurat.data.inference_columns import ColumnProfile, profile_frame
from ziggurat.data.inference_sample import Sample, read_sample
from ziggurat.data.inference_words import (
    GROUP_WORDS,
    ID_WORDS,
    LABEL_WORDS,
    QUANTITY_WORDS,
    RATING_WORDS,
    SEQUENCE_WORDS,
    TIME_WORDS,
    WEIGHT_WORDS,
)
from ziggurat.data.source_files import SourceFile

Part = Literal["train", "validation", "test"]

LARGE_TABLE_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class Label:
    """A target: 0/1 as it is, or by one of two rules."""

    profile: ColumnProfile
    reason: str
    at_least: float | None = None
    equals: str | int | None = None


@dataclass(frozen=True, slots=True)
class Feature:
    """An input, or a column left out (``kind`` None), and why."""

    profile: ColumnProfile
    kind: Literal["numeric", "categorical", "bag", "sequence"] | None
    reason: str
    table: str | None = None


@dataclass(frozen=True, slots=True)
class Split:
    """How rows are divided."""

    name: Literal["files", "time_within_key", "time", "random"]
    reason: str


@dataclass(frozen=True, slots=True)
class Inference:
    """What some logs seem to be."""

    sample: Sample
    files: dict[Part, list[SourceFile]]
    labels: list[Label]
    features: list[Feature]
    split: Split
    group: ColumnProfile | None = None
    time: ColumnProfile | None = None
    weights: tuple[str, ...] = ()
    other_labels: tuple[str, ...] = ()


def infer(files: Sequence[SourceFile], label: str | None = None) -> Inference:
    """Look at ``files`` and guess.

    Args:
        files: of one log; those whose names say validation or test are taken for that.
        label: the label's column, where the user knows it.

    Raises:
        DataError: files that cannot be read.
        ConfigError: no column of the name ``label``; no column that could be a label; one that cannot be made binary.
    """
    parts = sort_files(files)
    sample = read_sample(parts["train"])
    profiles = profile_frame(sample.frame, sample.whole)
    profiles = _renamed_like_criteo(profiles, sample)
    labels = _labels(profiles, label, files[0].path)
    taken = {chosen.profile.name for chosen in labels}
    rest = [profile for profile in profiles if profile.name not in taken]
    time = next((profile for profile in rest if is_time(profile)), None)
    group = next((profile for profile in rest if is_group(profile)), None)
    features = [_feature(profile, time) for profile in rest]
    features = _shared_tables(features, sample)
    return Inference(
        sample=sample,
        files=parts,
        labels=labels,
        features=features,
        split=_split(parts, time, group),
        group=group,
        time=time,
        weights=tuple(profile.name for profile in rest if words(profile.name) & WEIGHT_WORDS and profile.numeric),
        other_labels=tuple(profile.name for profile in rest if _is_binary(profile)),
    )


def words(name: str) -> frozenset[str]:
    """The words of a column's name: ``userId`` and ``user_id`` -> {user, id}."""
    apart = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)
    return frozenset(word for word in re.split(r"[^a-z0-9]+", apart.lower()) if word)


def sort_files(files: Sequence[SourceFile]) -> dict[Part, list[SourceFile]]:
    """Which files train, validate and test, by their names; all train where the names do not say so."""
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


def is_time(profile: ColumnProfile) -> bool:
    """Seconds, or thousandths and so on, since 1970 under a name like it, or typed moments."""
    if profile.many or not profile.numeric or profile.distinct < 3:
        return False
    if profile.moment:
        return True
    plausible = any(1e8 * unit <= profile.low and profile.top <= 4e9 * unit for unit in (1, 1e3, 1e6, 1e9))
    return plausible and bool(words(profile.name) & TIME_WORDS)


def is_group(profile: ColumnProfile) -> bool:
    """A user-like column in which values come back."""
    if profile.many or profile.type is ValueType.FLOAT or profile.distinct < 2:
        return False
    named = words(profile.name)
    return bool(named & GROUP_WORDS) and not named & {"feature", "age"} and profile.distinct < 0.9 * profile.rows


def _labels(profiles: Sequence[ColumnProfile], wanted: str | None, path: Path) -> list[Label]:
    if wanted is not None:
        return [_wanted_label(profiles, wanted, path)]
    named = [profile for profile in profiles if words(profile.name) & LABEL_WORDS and _two_values(profile)]
    if named:
        binary = [profile for profile in named if _is_binary(profile)]
        chosen = binary or named[:1]
        return [_as_label(profile, "its name, and it holds two values") for profile in chosen]
    for profile in profiles:
        if words(profile.name) & RATING_WORDS and profile.numeric and not profile.many and 3 <= profile.distinct <= 100:
            return [_as_label(profile, "it looks like a rating")]
    ends = [profiles[0], profiles[-1]] if profiles else []
    for profile in ends:
        if _two_values(profile):
            place = "first" if profile is profiles[0] else "last"
            return [_as_label(profile, f"it holds two values and stands {place}")]
    binary = [profile for profile in profiles if _is_binary(profile)]
    if len(binary) == 1:
        return [_as_label(binary[0], "the only column of 0 and 1")]
    names = ", ".join(profile.name for profile in (binary or profiles)[:30])
    raise ConfigError(
        f"{path}: no column looks like a label"
        if not binary
        else f"{path}: several columns could be the label: {names}",
        f"name it: ziggurat init FILES --label COLUMN; columns: {names}",
    )


def _wanted_label(profiles: Sequence[ColumnProfile], wanted: str, path: Path) -> Label:
    names = [profile.name for profile in profiles]
    if wanted not in names:
        close = nearest(wanted, names)
        hint = f"did you mean {close!r}? " if close else ""
        raise ConfigError(f"{path}: no column {wanted!r}", f"{hint}columns: {', '.join(names[:40])}")
    profile = profiles[names.index(wanted)]
    if profile.many or (not profile.numeric and profile.distinct > 20):
        raise ConfigError(
            f"{path}: column {wanted!r} cannot be made a binary label: it holds "
            + ("lists" if profile.many else f"{profile.distinct} different texts"),
            "name a column of 0 and 1, of a number (the label is then whether it is large), or of few texts",
        )
    return _as_label(profile, "as asked")


def _is_binary(profile: ColumnProfile) -> bool:
    return (
        profile.type is ValueType.INTEGER
        and not profile.many
        and profile.distinct == 2
        and (profile.low, profile.top) == (0, 1)
    )


def _two_values(profile: ColumnProfile) -> bool:
    return profile.distinct == 2 and not profile.many and profile.missing == 0


def _as_label(profile: ColumnProfile, reason: str) -> Label:
    """The column as it is if 0/1; the larger of few numbers; the rarer of two texts."""
    if _is_binary(profile):
        return Label(profile, reason)
    if profile.numeric:
        return Label(profile, f"{reason}; positive from {_plain(_threshold(profile))} on", at_least=_threshold(profile))
    rarest = str(profile.common[-1] if profile.distinct == 2 else profile.common[1])
    return Label(profile, f"{reason}; positive is the rarer of {_listed(profile)}", equals=rarest)


def _threshold(profile: ColumnProfile) -> float:
    """4 on a scale of 5; the larger of two numbers; else what halves the rows."""
    if profile.top == 5 and profile.low >= 0 and profile.distinct > 2:
        return 4.0
    return profile.top if profile.distinct == 2 else profile.halving


def _feature(profile: ColumnProfile, time: ColumnProfile | None) -> Feature:
    """What a column is as an input."""
    if not profile.name.strip():
        return Feature(profile, None, "without a name, as an index that was written along")
    if (profile.distinct <= 1 and profile.missing < 0.01) or profile.distinct == 0:
        return Feature(profile, None, "always the same: nothing to learn from")
    if profile is time:
        return Feature(profile, None, "the time of the row: it splits rows; as an input it would not repeat")
    if profile.moment:
        return Feature(profile, None, "dates: turn them into weekday and hour, or into a number, to use them")
    if profile.many:
        sequence = bool(words(profile.name) & SEQUENCE_WORDS)
        spread = f"{profile.distinct:,} different values, up to {profile.longest} a row"
        return Feature(profile, "sequence" if sequence else "bag", spread)
    unique = profile.rows >= 100 and profile.distinct > 0.95 * profile.rows * (1 - profile.missing)
    if profile.ascending and unique and profile.type is ValueType.INTEGER:
        return Feature(profile, None, "rises with every row: a row number")
    if profile.type is ValueType.FLOAT:
        return Feature(profile, "numeric", "fractions")
    if profile.type is ValueType.TEXT:
        if unique:
            return Feature(profile, None, "different in nearly every row: nothing that repeats")
        return Feature(profile, "categorical", _count(profile))
    number, why = _is_quantity(profile)
    if not number and unique:
        return Feature(profile, None, "an id that is different in nearly every row")
    return Feature(profile, "numeric" if number else "categorical", why)


def _is_quantity(profile: ColumnProfile) -> tuple[bool, str]:
    """Whether whole numbers count something or name something."""
    named = words(profile.name)
    span = f"{_plain(profile.low)} … {_plain(profile.top)}"
    if named & QUANTITY_WORDS and profile.distinct > 2:
        return True, f"a quantity by its name, {span}"
    if named & ID_WORDS or named & GROUP_WORDS:
        return False, f"{_count(profile)}, ids by its name"
    if profile.distinct <= 2:
        return False, _count(profile)
    dense = profile.span <= 2 * profile.distinct
    if dense and profile.distinct <= 32:
        return False, f"{_count(profile)}, few whole numbers"
    heaped = (profile.median - profile.low) < 0.1 * (profile.top - profile.low)
    if heaped:
        return True, f"most values small, {span}"
    recurring = profile.distinct < 0.3 * profile.rows
    if dense or (recurring and profile.top > 1_000_000):
        return False, f"{_count(profile)}, spread evenly over {span} as ids are"
    return True, f"whole numbers, {span}"


def _shared_tables(features: list[Feature], sample: Sample) -> list[Feature]:
    """Give a bag or sequence the table of the categorical column whose values it holds."""
    columns = {f.profile.name: f for f in features if f.kind == "categorical" and f.profile.distinct > 20}
    values = {name: set(sample.frame[name].drop_nulls().unique().to_list()) for name in columns} if any(
        f.kind in ("bag", "sequence") for f in features
    ) else {}  # fmt: skip
    shared: list[Feature] = []
    for feature in features:
        best: tuple[float, str] | None = None
        if feature.kind in ("bag", "sequence"):
            elements = _elements(feature.profile, sample)
            for name, known in values.items():
                owner = columns[name].profile
                inside = len(elements & {str(value) for value in known}) / max(1, len(elements))
                named = len({w.rstrip("s") for w in words(name)} & {w.rstrip("s") for w in words(feature.profile.name)})
                if owner.type is feature.profile.type and inside > 0.9 and named:
                    best = max(best or (0.0, ""), (inside + named, name))
        if best is None:
            shared.append(feature)
        else:
            reason = f"{feature.reason}; they are values of {best[1]}, so the two share a table"
            shared.append(Feature(feature.profile, feature.kind, reason, table=best[1]))
    return shared


def _elements(profile: ColumnProfile, sample: Sample) -> set[str]:
    cells = sample.frame[profile.name].drop_nulls().head(5_000)
    lists = cells.str.split(profile.delimiter) if profile.delimiter is not None else cells
    return {str(value) for value in lists.explode().drop_nulls().to_list() if value != ""}


def _split(parts: dict[Part, list[SourceFile]], time: ColumnProfile | None, group: ColumnProfile | None) -> Split:
    if parts["test"] or parts["validation"]:
        return Split("files", "by the files' names")
    if time is not None and group is not None and group.rows / group.distinct >= 10:
        return Split("time_within_key", "each group's last rows test, those before them validate: no look ahead")
    if time is not None:
        return Split("time", "the last rows test, those before them validate: no look ahead")
    return Split("random", "there is no time to split by")


def _renamed_like_criteo(profiles: list[ColumnProfile], sample: Sample) -> list[ColumnProfile]:
    """Names for the well-known layout of 1 label, 13 integers and 26 hashed categories that comes without a header."""
    if sample.format != "csv" or sample.header or len(profiles) != 40 or not _is_binary(profiles[0]):
        return profiles
    hashed = all(re.fullmatch("[0-9a-f]{8}", str(value)) for profile in profiles[14:] for value in profile.common[:3])
    if not hashed or not all(profile.numeric for profile in profiles[1:14]):
        return profiles
    names = ["label", *(f"I{k}" for k in range(1, 14)), *(f"C{k}" for k in range(1, 27))]
    sample.frame.columns = names
    return profile_frame(sample.frame, sample.whole)


def _count(profile: ColumnProfile) -> str:
    if profile.distinct_estimate > 1.05 * profile.distinct:
        return f"{profile.distinct:,} different values in the sample, perhaps {profile.distinct_estimate:,} in all"
    return f"{profile.distinct:,} different values"


def _plain(value: float) -> str:
    return (
        f"{value:.0f}"
        if value == int(value) and abs(value) < 10_000
        else f"{value:,.0f}"
        if value == int(value)
        else f"{value:.4g}"
    )


def _listed(profile: ColumnProfile) -> str:
    return " and ".join(repr(str(value)) for value in profile.common[:2])
