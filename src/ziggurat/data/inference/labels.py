"""Infers which column is the label, and the rule that makes it 0 and 1, or the kind of number that it is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath

from ziggurat.core.errors import ConfigError, nearest
from ziggurat.core.schema import ValueType
from ziggurat.data.inference.binary_label_words import positive_value
from ziggurat.data.inference.columns import ColumnProfile
from ziggurat.data.inference.label_kinds import InferredLabel as InferredLabel
from ziggurat.data.inference.label_kinds import (
    as_number,
    find_event,
    find_number,
    is_id_by_name,
    is_rating,
    missing_negatives,
)
from ziggurat.data.inference.words import LABEL_WORDS, PERSON_WORDS, format_number, words


def find_labels(profiles: Sequence[ColumnProfile], requested: str | None, path: PurePath) -> list[InferredLabel]:
    """Returns the labels: ``requested``, or found by name, as a rating, or by position.

    Raises:
        ConfigError: no column has the requested name, no column can be a label, or the requested one cannot be one.
    """
    if requested is not None:
        return [_requested_label(profiles, requested, path)]
    named = [profile for profile in profiles if words(profile.name) & LABEL_WORDS and _two_values(profile)]
    if named:
        binary = [profile for profile in named if is_binary(profile)]
        chosen = binary or named[:1]
        return [_as_label(profile, "its name, and it holds two values") for profile in chosen]
    for profile in profiles:
        if is_rating(profile):
            return [_as_rating(profile, "it looks like a rating")]
    found = find_event(profiles) or find_number(profiles)
    if found is not None:
        return [found]
    ends = [profiles[0], profiles[-1]] if profiles else []
    for profile in ends:
        if _two_values(profile) and not profile.missing and not words(profile.name) & PERSON_WORDS:
            place = "first" if profile is profiles[0] else "last"
            chosen = _as_label(profile, f"it holds two values and stands {place}")
            return [*_siblings(profile, profiles), chosen]
    binary = [profile for profile in profiles if is_binary(profile)]
    if len(binary) == 1:
        return [_as_label(binary[0], "the only column of 0 and 1")]
    names = ", ".join(profile.name for profile in (binary or profiles)[:30])
    for profile in () if binary else profiles:
        if words(profile.name) & LABEL_WORDS and _is_constant(profile):
            what = f"{str(profile.common[0])!r} in all rows" if profile.distinct else "nothing in any row"
            raise ConfigError(
                f"{path}: {profile.name!r} is the label by its name, and holds {what}: there is nothing to learn",
                f"give rows of both kinds, or name another label: ziggurat init FILES --label COLUMN; columns: {names}",
            )
    positives = None if binary else missing_negatives(profiles)
    may_be = None if binary else _may_be_label(profiles)
    if may_be is not None:
        otherwise = f"if each row is a positive, {positives[1]}; " if positives is not None else ""
        raise ConfigError(
            f"{path}: no column looks like a label by its name; {may_be[0]}",
            f"{may_be[1]}; {otherwise}columns: {names}",
        )
    if positives is not None:
        raise ConfigError(
            f"{path}: no column looks like a label: {positives[0]}",
            f"{positives[1]}; or name the label: ziggurat init FILES --label COLUMN; columns: {names}",
        )
    raise ConfigError(
        f"{path}: no column looks like a label"
        if not binary
        else f"{path}: several columns could be the label: {names}",
        f"name it: ziggurat init FILES --label COLUMN; columns: {names}",
    )


def _is_constant(profile: ColumnProfile) -> bool:
    """Whether a column is empty, or holds one value in all rows that says no: one that says yes marks positives."""
    if profile.many or profile.distinct > 1 or (profile.distinct == 1 and profile.missing):
        return False
    return not profile.distinct or str(profile.common[0]).strip().lower() in {"0", "0.0", "no", "n", "f", "false", "-1"}


def _may_be_label(profiles: Sequence[ColumnProfile]) -> tuple[str, str] | None:
    """Returns which columns may be the label although nothing says so, and what to do; None if none may be."""
    for profile in profiles:
        if words(profile.name) & LABEL_WORDS and profile.distinct == 1 and profile.missing and not profile.many:
            return (
                f"{profile.name!r} holds {str(profile.common[0])!r}, or nothing in {profile.missing:.0%} of the rows",
                f"if it is the label, write 0 where {profile.name!r} is empty, and 1 elsewhere",
            )
    two = [profile for profile in profiles if _two_values(profile) and not words(profile.name) & PERSON_WORDS]
    if not two:
        return None
    named = [f"{profile.name!r} holds two values, {_both_values(profile)}" for profile in two[:8]]
    which = "it is" if len(two) == 1 else "one of them is"
    chosen = two[0].name if len(two) == 1 else "COLUMN"
    return "; ".join(named), f"if {which} the label, name it: ziggurat init FILES --label {chosen}"


def _siblings(label: ColumnProfile, profiles: Sequence[ColumnProfile]) -> list[InferredLabel]:
    """Returns the other labels of a log whose labels are numbered, such as ``Class1`` to ``Class14``.

    All columns of the label's name up to its number hold 0 and 1, and they are not most of the columns.
    """
    stem = _stem(label.name)
    same = [profile for profile in profiles if profile is not label and _stem(profile.name) == stem]
    numbered = stem and is_binary(label) and all(is_binary(profile) for profile in same)
    if not numbered or 2 * (len(same) + 1) > len(profiles):
        return []
    return [_as_label(profile, f"named like the label {label.name}") for profile in same]


def _stem(name: str) -> str:
    """Returns a name up to the number at its end; nothing if there is none."""
    found = re.fullmatch(r"(.*[^\d])\d+", name)
    return found[1] if found is not None else ""


def _requested_label(profiles: Sequence[ColumnProfile], requested: str, path: PurePath) -> InferredLabel:
    names = [profile.name for profile in profiles]
    if requested not in names:
        close = nearest(requested, names)
        hint = f"did you mean {close!r}? " if close else ""
        raise ConfigError(f"{path}: no column {requested!r}", f"{hint}columns: {', '.join(names[:40])}")
    profile = profiles[names.index(requested)]
    if profile.many or (not profile.numeric and profile.distinct > 20):
        raise ConfigError(
            f"{path}: column {requested!r} cannot be made a binary label: it holds "
            + ("lists" if profile.many else f"{profile.distinct} different texts"),
            "name a column of 0 and 1, of a number, or of few texts",
        )
    if profile.distinct < 2:
        held = f"one value only, {profile.common[0]!r}" if profile.common else "no value"
        empty = "write 0 where it is empty, and 1 elsewhere; or " * bool(profile.common and profile.missing)
        raise ConfigError(
            f"{path}: column {requested!r} cannot be a label: it holds {held}",
            f"a label needs both classes: {empty}name another column, or add files that hold the other",
        )
    if is_rating(profile):
        return _as_rating(profile, "as asked")
    if profile.numeric and profile.distinct > 2:
        doubt = "; its name is that of an id, which is no quantity: is it the label?" * is_id_by_name(profile)
        return as_number(profile, f"as asked{doubt}")
    event = find_event([profile])
    return _as_label(profile, "as asked") if event is None else replace(event, reason=f"as asked; {event.reason}")


def is_binary(profile: ColumnProfile) -> bool:
    """Whether the column holds the integers 0 and 1, and both occur."""
    return (
        profile.type is ValueType.INTEGER
        and not profile.many
        and profile.distinct == 2
        and (profile.minimum, profile.maximum) == (0, 1)
    )


def _two_values(profile: ColumnProfile) -> bool:
    return profile.distinct == 2 and not profile.many


def _as_label(profile: ColumnProfile, reason: str) -> InferredLabel:
    """Makes the column binary: 0/1 as it is, numbers by a threshold, texts by the positive or else the rarer value."""
    if is_binary(profile):
        return InferredLabel(profile, reason)
    if profile.numeric:
        return InferredLabel(
            profile, f"{reason}; positive from {format_number(_threshold(profile))} on", at_least=_threshold(profile)
        )
    holds = [str(value) for value in profile.common]
    positive = positive_value(holds) if len(holds) == 2 else None
    if positive is not None:
        return InferredLabel(profile, f"{reason}: {_both_values(profile)}", equals=positive)
    if profile.distinct == 2:
        rarer = str(profile.common[-1])
        return InferredLabel(profile, f"{reason}; positive is the rarer of {_both_values(profile)}", equals=rarer)
    second = str(profile.common[1])
    held = f"one of {profile.distinct} values, the second most frequent; `equals` can name another"
    return InferredLabel(profile, f"{reason}; positive is {held}", equals=second)


def _as_rating(profile: ColumnProfile, reason: str) -> InferredLabel:
    """Makes a rating binary, and says how to predict it as it is."""
    label = _as_label(profile, reason)
    kinds = "`kind: ordinal` or `kind: regression`" if profile.type is ValueType.INTEGER else "`kind: regression`"
    return replace(label, reason=f"{label.reason}; {kinds} in place of `at_least` predicts the rating itself")


def _threshold(profile: ColumnProfile) -> float:
    """Returns 4 on a scale of 5, the larger of two numbers, else the threshold that halves the rows."""
    if profile.maximum == 5 and profile.minimum >= 0 and profile.distinct > 2:
        return 4.0
    return profile.maximum if profile.distinct == 2 else profile.balanced_threshold


def _both_values(profile: ColumnProfile) -> str:
    return " and ".join(repr(str(value)) for value in profile.common[:2])
