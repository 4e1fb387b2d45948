"""Pairs of words for positive and negative, as found in label columns."""

from __future__ import annotations

from collections.abc import Sequence

_PAIRS = (
    ("yes", "no"), ("y", "n"), ("true", "false"), ("t", "f"), ("on", "off"), ("positive", "negative"), ("pos", "neg"),
    ("like", "dislike"), ("liked", "disliked"), ("good", "bad"), ("1", "0"), ("1", "-1"), ("success", "failure"),
    ("win", "loss"), ("accept", "reject"), ("accepted", "rejected"), ("active", "inactive"),
)  # fmt: skip
_NEGATIONS = ("no_", "no-", "no ", "not_", "not-", "not ", "non_", "non-", "non ")


def positive_value(values: Sequence[str]) -> str | None:
    """Returns the positive one of a column's two values; of a single value, itself or its opposite, in the same case.

    Returns None if the words are not a known pair: ``click`` and ``no_click`` are a pair, ``a`` and ``b`` are not.
    """
    lowered = [value.strip().lower() for value in values]
    if len(values) == 2:
        for positive, negative in (lowered, lowered[::-1]):
            if (positive, negative) in _PAIRS or _negated(negative) == positive:
                return values[lowered.index(positive)]
        return None
    (word,) = lowered
    for positive, negative in _PAIRS:
        if word == positive:
            return values[0]
        if word == negative:
            return positive.upper() if values[0].isupper() else positive.title() if values[0].istitle() else positive
    negated = _negated(word)
    return None if negated is None else values[0].strip()[-len(negated) :]


def _negated(word: str) -> str | None:
    """Returns the negated word: ``click`` for ``no_click``, ``no click`` and so on; None if there is no negation."""
    return next((word[len(prefix) :] for prefix in _NEGATIONS if word.startswith(prefix) and word != prefix), None)
