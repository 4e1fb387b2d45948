"""Guesses the encoding of text from its bytes: from a mark, from zeros between letters, as UTF-8, or by its letters.

Text in a legacy encoding is read in every likely one. In the right one, bytes above 127 are letters that are frequent
in a language of that encoding, words have one script, and no capital follows a small letter. The encodings of East Asia
put their common characters into regions of their own, whose likelihoods are compared.
"""

from __future__ import annotations

import codecs
import itertools
import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from ziggurat.data.readers.source_files import UTF_8

_MOST_BYTES = 2**16
_FIRST_BYTES = {  # of two-byte characters: encoding -> (the common ones, how many there are), and those of kana
    "gb18030": (range(0xB0, 0xD8), 3755, range(0)),
    "big5": (range(0xA4, 0xC7), 5401, range(0)),
    "cp949": (range(0xB0, 0xC9), 2350, range(0)),
    "cp932": (range(0x88, 0x99), 2965, range(0x82, 0x84)),
    "euc_jp": (range(0xB0, 0xD0), 2965, range(0xA4, 0xA6)),
}
_KANA, _RARE = 170, 2e-7
_CYRILLIC = "оеаинтсрвлкмдпуяыьгзбчйхжшюцщэфъё"
_LETTERS = {  # the letters of each encoding's languages, the most frequent first
    "cp1252": "éöüäèáóíñçàåêøãæôßúëîõâœïùòûìý",
    "cp1250": "áéíłóąęšžčřśżěćýůńúöőüäűňźťďôășțşţđ",
    "cp1251": _CYRILLIC,
    "koi8-r": _CYRILLIC,
    "cp866": _CYRILLIC,
    "iso8859-5": _CYRILLIC,
    "mac-cyrillic": _CYRILLIC,
    "cp1253": "αοιετσηνρυκπλωμίάόγέήδχθύώφβζξψϊ",
    "cp1254": "ıüşğçöâîûéİŞÇÖÜĞ",
    "cp1255": "יוהלארמבתשנעםדחקפגטצכסזךןףץ",
    "cp1256": "اليمنوترةبعدسفهكقحجشصطخضذثغظأإءئ",
    "mac-roman": "éöüäèáóíñçàåêøãæôßúëîõâœïùòûìý",
    "cp850": "éöüäèáóíñçàåêøãæôßúëîõâ",
}
_LATIN = frozenset({"cp1252", "cp1250", "cp1254", "mac-roman", "cp850"})
_USUAL = {"cp1252": 0.1, "cp1251": 0.05, "cp1250": 0.02}
"""What an encoding is ahead of less usual ones, for each letter, where the text does not tell."""
_TYPOGRAPHY = frozenset("“”„‘’–—…€°«»§©®£¥·• №")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class FoundEncoding:
    """An encoding.

    Attributes:
        name: Python's name of it.
        runner_up: the encoding that is nearly as likely; None if the guess is sure.
        lone_returns: whether lines end in carriage returns alone.
    """

    name: str
    runner_up: str | None = None
    lone_returns: bool = False


def find_encoding(parts: Sequence[bytes]) -> FoundEncoding:
    """Returns the encoding of a text, of which ``parts`` are some; the first is its beginning."""
    name, runner_up = _find(parts)
    first = parts[0].decode(name, "replace")
    return FoundEncoding(name, runner_up, "\r" in first and "\n" not in first)


def _find(parts: Sequence[bytes]) -> tuple[str, str | None]:
    head = parts[0]
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32", None
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16", None
    wide = _wide(head)
    if wide is not None:
        return wide, None
    foreign = [part for part in parts if not part.isascii()]
    lines = [line for part in foreign for line in re.split(rb"[\r\n]+", part) if not line.isascii()]
    if not lines:
        return ("iso2022_jp" if re.search(rb"\x1b\$[@B]", head) else UTF_8), None
    broken = [line for line in lines if not _decodes(line, UTF_8)]
    if len(broken) * 20 <= len(lines):
        return UTF_8, None
    return guess_encoding(b"\n".join(broken)[:_MOST_BYTES].rpartition(b"\n")[0] or broken[0][:_MOST_BYTES])


def guess_encoding(text: bytes) -> tuple[str, str | None]:
    """Returns the most likely encoding of text in a legacy encoding, and the next one if that is nearly as likely."""
    letters = sorted(((_score(text, name), name) for name in _LETTERS), reverse=True)
    (best, name), (second, runner_up) = letters[:2]
    characters = sorted(((_likelihood(text, each), each) for each in _FIRST_BYTES), reverse=True)
    (likely, east_asian), (less_likely, other) = characters[:2]
    if best < _SURE_LETTERS and likely > _MOSTLY_COMMON:
        return east_asian, other if less_likely > likely - 0.5 else None
    return name, runner_up if second > best - 0.15 else None


_MOSTLY_COMMON = -10.5
"""The mean logarithm of the probability of a character from which on seven of ten characters are common ones."""

_SURE_LETTERS = 0.6
"""The mean score of a letter from which on the text is taken to be made of letters, not of East Asian characters."""


def _score(text: bytes, name: str) -> float:
    """Returns how well the bytes above 127 read as letters: at most about 1, negative if they make no sense."""
    frequencies = {letter: 1 - 0.7 * rank / len(_LETTERS[name]) for rank, letter in enumerate(_LETTERS[name])}
    total, count = 0.0, 0
    decoded = text.decode(name, "replace")
    for word in _WORD.findall(decoded):
        foreign = [letter for letter in word if letter > "\x7f"]
        if not foreign:
            continue
        count += len(foreign)
        total += sum(frequencies.get(letter, 0.95 * frequencies.get(letter.lower(), -0.5)) for letter in foreign)
        total -= 1.5 * len(re.findall(r"[^\W\d_A-Z][A-Z]", word))
        total -= 1.5 * sum(a.islower() and b.isupper() for a, b in itertools.pairwise(word))
        if name not in _LATIN and re.search("[A-Za-z]", word):
            total -= len(foreign)
        if name in _LATIN and not re.search("[A-Za-z]", word) and len(word) > 2:
            total -= len(foreign)  # no word of these languages is written in accented letters alone
    for mark in decoded:
        if mark > "\x7f" and not mark.isalnum():
            count += 1
            total -= 0 if mark in _TYPOGRAPHY else 3 if unicodedata.category(mark) in ("Cc", "Cn") else 1
    return total / max(1, count) + _USUAL.get(name, 0.0)


def _likelihood(text: bytes, name: str) -> float:
    """Returns the mean logarithm of the probability of a character above 127 in an encoding of East Asia."""
    if not _decodes(text, name):
        return -math.inf
    common, count, kana = _FIRST_BYTES[name]
    total, characters, place = 0.0, 0, 0
    while place < len(text):
        first = text[place]
        if first < 0x80:
            place += 1
            continue
        characters += 1
        half_width = name == "cp932" and 0xA0 < first < 0xE0
        place += 1 if half_width else 2
        if half_width:
            total += math.log(0.02 / 63)
        elif first in kana:
            total += math.log(0.5 / _KANA)
        else:
            total += math.log((0.45 if kana else 0.95) / count if first in common else _RARE)
    return total / max(1, characters)


def _wide(head: bytes) -> str | None:
    """Returns the encoding of two or four bytes a character that zeros between Latin letters show, if they do."""
    head = head[: len(head[:4096]) // 4 * 4]
    zeros = [head[place::4].count(0) / max(1, len(head) // 4) for place in range(4)]
    high = "".join("0" if share > 0.5 else "x" for share in zeros)
    return {"x000": "utf-32-le", "000x": "utf-32-be", "x0x0": "utf-16-le", "0x0x": "utf-16-be"}.get(high)


def _decodes(text: bytes, name: str) -> bool:
    try:
        text.decode(name)
    except (UnicodeDecodeError, LookupError):
        return False
    return True
