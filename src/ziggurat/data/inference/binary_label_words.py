"""Pairs of words for positive and negative in many languages, as found in label columns."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

_PAIRS = (
    ("yes", "no"), ("y", "n"), ("true", "false"), ("t", "f"), ("on", "off"), ("positive", "negative"), ("pos", "neg"),
    ("like", "dislike"), ("liked", "disliked"), ("good", "bad"), ("1", "0"), ("1", "-1"), ("success", "failure"),
    ("win", "loss"), ("accept", "reject"), ("accepted", "rejected"), ("active", "inactive"),
    # German, Dutch, Swedish and Danish, Norwegian; French, Spanish, Italian, Portuguese, Catalan, Romanian
    ("ja", "nein"), ("j", "n"), ("ja", "nee"), ("ja", "nej"), ("ja", "nei"), ("oui", "non"), ("o", "n"), ("sí", "no"),
    ("si", "no"), ("sì", "no"), ("s", "n"), ("sim", "não"), ("sim", "nao"), ("da", "nu"),
    # Polish, Czech, Slovak, Croatian, Slovene, Hungarian, Finnish, Estonian, Latvian, Lithuanian, Turkish, Greek
    ("tak", "nie"), ("t", "n"), ("ano", "ne"), ("áno", "nie"), ("da", "ne"), ("igen", "nem"),
    ("kyllä", "ei"), ("jah", "ei"), ("jā", "nē"), ("taip", "ne"), ("evet", "hayır"), ("evet", "hayir"),
    ("ναι", "όχι"), ("ναι", "οχι"),
    # Russian, Ukrainian, Bulgarian and Serbian; Arabic, Hebrew, Persian
    ("да", "нет"), ("д", "н"), ("так", "ні"), ("т", "н"), ("да", "не"), ("نعم", "لا"), ("כן", "לא"), ("بله", "خیر"),
    # Japanese, Chinese, Korean, Vietnamese, Indonesian, Thai, Hindi
    ("はい", "いいえ"), ("有", "無"), ("是", "否"), ("是", "不是"), ("有", "无"), ("예", "아니요"), ("예", "아니오"),
    ("네", "아니요"), ("네", "아니오"), ("có", "không"), ("co", "khong"), ("ya", "tidak"), ("ใช่", "ไม่ใช่"),
    ("हाँ", "नहीं"), ("हां", "नहीं"),
    # true and false
    ("wahr", "falsch"), ("vrai", "faux"), ("v", "f"), ("verdadero", "falso"), ("verdadeiro", "falso"),
    ("vero", "falso"), ("waar", "onwaar"), ("sant", "falskt"), ("prawda", "fałsz"), ("истина", "ложь"), ("真", "偽"),
    ("真", "假"),
    # marks
    ("✓", "✗"), ("✔", "✘"), ("○", "×"), ("○", "✕"), ("+", "-"),
)  # fmt: skip
_NEGATIVE_WORDS = (
    "no", "not", "non", "nicht", "kein", "keine", "niet", "geen", "ikke", "inte", "pas", "sans", "sin", "sem", "não",
    "nao", "nie", "ne", "не", "нет", "без",
)  # fmt: skip
_NEGATIONS = tuple(word + mark for word in _NEGATIVE_WORDS for mark in "_- ")
_ENGLISH_NEGATIONS = tuple(prefix for prefix in _NEGATIONS if prefix[:-1] in {"no", "not", "non"})


def positive_value(values: Sequence[str]) -> str | None:
    """Returns the positive one of a column's two values; of a single value, itself or its opposite, in the same case.

    Returns None if the words are not a known pair: ``click`` and ``no_click`` are a pair, ``a`` and ``b`` are not.
    """
    lowered = [unicodedata.normalize("NFC", value.strip()).lower() for value in values]
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
    negated = _negated(word, _ENGLISH_NEGATIONS)
    return None if negated is None else values[0].strip()[-len(negated) :]


def _negated(word: str, negations: Sequence[str] = _NEGATIONS) -> str | None:
    """Returns the negated word: ``click`` for ``no_click``, ``no click`` and so on; None if there is no negation."""
    return next((word[len(prefix) :] for prefix in negations if word.startswith(prefix) and word != prefix), None)
