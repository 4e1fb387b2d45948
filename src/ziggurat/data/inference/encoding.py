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
from dataclasses import dataclass, replace

from ziggurat.data.readers.source_files import UTF_8

_MOST_BYTES = 2**16
_FIRST_BYTES = {  # of two-byte characters: encoding -> (the common ones, how many there are), and those of kana
    "gb18030": (range(0xB0, 0xD8), 3755, range(0)),
    "big5": (range(0xA4, 0xC7), 5401, range(0)),
    "cp949": (range(0xB0, 0xC9), 2350, range(0)),
    "cp932": (range(0x88, 0x99), 2965, range(0x82, 0x84)),
    "euc_jp": (range(0xB0, 0xD0), 2965, range(0xA4, 0xA6)),
}
_KANA, _RARE, _HALF_WIDTH = 170, 2e-7, 0.02
_FREQUENT = {  # frequent characters of running text, shops and places, in the language of each encoding
    "gb18030": "的一是不了在人有我他这中大来上个国和也子时道说出得里后天家小多可会自下生学年前手新用方电地海京广州深"
    "圳机南东西北江山市区县店品书食衣服鞋包车房水果酒茶花男女童儿老师长高平安金龙华联网络产商务服装饰器材"
    "料全成本日月",
    "big5": "的一是不了在人有我他這中大來上個國和也子時道說出得裡後天家小多可會自下生學年前手新用方電地海台臺北高"
    "雄竹南東西山市區縣店品書食衣服鞋包車房水果酒茶花男女童兒老師長平安金龍華聯網路產商務裝飾器材料全成本"
    "日月腦籍桃園",
    "cp949": "이다는의에을가은를한고하도지로사기어리자인나그대서아해수시부있라일정보전주여관상공성제소구학생원동장"
    "비산울천광용품자도서식음료의류화장신발가방컴퓨터모바일남여아북강경충청라제",
    "cp932": "日一人大年本中国会出東京都阪市名古屋横浜神戸福岡札幌広島県区町村山川田木金土水火月新時間今来行食品飲"
    "料電気器製家具服靴本書雑誌旅駅店屋子男女学生用高安小前後上下左右表示無料車方手",
}
_FREQUENT["euc_jp"] = _FREQUENT["cp932"]
_LETTER = math.log(26 + 26 + 10)
_SHARE = 0.4
"""The share of the frequent characters in a text of that language, beside the others in proportion to their number."""
_EAST_ASIAN_DOUBT = 0.7
"""How much less likely the next encoding of East Asia is, in logarithms for each character, where the guess is sure."""
_LEAST_VALID = {True: 0.3, False: 0.01}
"""The share of valid UTF-8 among lines beyond ASCII that no chance explains, where the others are East Asian or not."""
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
        valid_lines: number of sampled lines beyond ASCII that are valid UTF-8, if lines are of two encodings; else 0.
        other_lines: number of the others, which are text in ``name``.
        marked: whether a byte order mark or zeros between letters tell the encoding, so that it is no guess.
    """

    name: str
    runner_up: str | None = None
    lone_returns: bool = False
    valid_lines: int = 0
    other_lines: int = 0
    marked: bool = False


def find_encoding(parts: Sequence[bytes]) -> FoundEncoding:
    """Returns the encoding of a text, of which ``parts`` are some; the first is its beginning."""
    found = _find(parts)
    first = parts[0].decode(found.name, "replace")
    return replace(found, lone_returns="\r" in first and "\n" not in first)


def _find(parts: Sequence[bytes]) -> FoundEncoding:
    head = parts[0]
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return FoundEncoding("utf-32", marked=True)
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return FoundEncoding("utf-16", marked=True)
    wide = _wide(head)
    if wide is not None:
        return FoundEncoding(wide)
    foreign = [part for part in parts if not part.isascii()]
    lines = [line for part in foreign for line in re.split(rb"[\r\n]+", part) if not line.isascii()]
    if not lines:
        return FoundEncoding("iso2022_jp" if re.search(rb"\x1b\$[@B]", head) else UTF_8)
    broken = [line for line in lines if not _decodes(line, UTF_8)]
    if len(broken) * 20 <= len(lines):
        return FoundEncoding(UTF_8)
    text = b"\n".join(broken)[:_MOST_BYTES].rpartition(b"\n")[0] or broken[0][:_MOST_BYTES]
    name, runner_up = guess_encoding(text)
    valid = len(lines) - len(broken)
    if valid < 2 or valid < _LEAST_VALID[name in _FIRST_BYTES] * len(lines):
        return FoundEncoding(name, runner_up)
    return FoundEncoding(name, runner_up, valid_lines=valid, other_lines=len(broken))


def guess_encoding(text: bytes) -> tuple[str, str | None]:
    """Returns the most likely encoding of text in a legacy encoding, and the next one if that is nearly as likely."""
    letters = sorted(((_score(text, name), name) for name in _LETTERS), reverse=True)
    (best, name), (second, runner_up) = letters[:2]
    characters = sorted(((_likelihood(text, each), each) for each in _FIRST_BYTES), reverse=True)
    ((likely, count), east_asian), ((less_likely, _), other) = characters[:2]
    if best < _SURE_LETTERS and likely > _MOSTLY_COMMON * count:
        doubtful = name if best > _HARDLY_LETTERS else None
        return east_asian, other if less_likely > likely - _EAST_ASIAN_DOUBT * count else doubtful
    if best < _HARDLY_EAST_ASIAN and likely > _MOSTLY_COMMON * count:
        return name, east_asian
    return name, runner_up if second > best - 0.15 else None


_MOSTLY_COMMON = -10.5
"""The mean logarithm of the probability of a character from which on seven of ten characters are common ones."""

_SURE_LETTERS = 0.6
"""The mean score of a letter from which on the text is taken to be made of letters, not of East Asian characters."""

_HARDLY_LETTERS = 0.5
"""The mean score of a letter up to which the text is not taken to be made of letters, if it may be East Asian."""

_HARDLY_EAST_ASIAN = 0.75
"""The mean score of a letter from which on this is beyond doubt."""


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
        total -= 1.5 * sum(not a.isupper() for a in re.findall(r"([^\W\d_A-Z])[A-Z]", word))
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


def _likelihood(text: bytes, name: str) -> tuple[float, int]:
    """Returns the logarithm of the probability of a text in an encoding of East Asia, and its characters above 127.

    An ASCII byte that is the second one of a character in one encoding is a letter of its own in another, which is
    charged, so that the same bytes are compared.
    """
    if not _decodes(text, name):
        return -math.inf, 1
    common, count, kana = _FIRST_BYTES[name]
    frequent = {letter.encode(name) for letter in _FREQUENT[name]}
    rest = (1 - _SHARE) * (0.45 if kana else 0.95) / count
    often = _SHARE * (0.45 if kana else 0.95) / len(frequent) + rest
    total, characters, place = 0.0, 0, 0
    while place < len(text):
        first = text[place]
        if first < 0x80:
            place += 1
            continue
        characters += 1
        character = text[place : place + (1 if name == "cp932" and 0xA0 < first < 0xE0 else 2)]
        place += len(character)
        if len(character) == 1:
            total += math.log(_HALF_WIDTH / 63)
        elif first in kana:
            total += math.log(0.5 / _KANA)
        else:
            total += math.log(often if character in frequent else rest if first in common else _RARE)
        if len(character) == 2 and character[1] < 0x80:
            total += _LETTER
    return total, max(1, characters)


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
