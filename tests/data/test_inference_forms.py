"""`init` finds in which form text comes, and the reader reads with what it found."""

from __future__ import annotations

import bz2
import random
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from reader_kit import TEXT, read, schema
from ruamel.yaml import YAML

from ziggurat.cli.init import draft_config
from ziggurat.core.errors import DataError
from ziggurat.data.inference.encoding import find_encoding
from ziggurat.data.readers.csv.reader import CsvSource
from ziggurat.data.readers.source import open_source

NAMES = ["user", "item", "town", "click"]
RANDOM = random.Random(5)
ROWS = [
    (str(RANDOM.randrange(50)), f"item{RANDOM.randrange(20)}", RANDOM.choice(["Zürich", "Malmö"]), str(k % 2))
    for k in range(400)
]


@dataclass(frozen=True)
class Form:
    """Text in a form, the settings that it needs, and the rows in it, if they are not ROWS."""

    text: str | bytes
    settings: dict[str, Any]
    rows: list[tuple[str | None, ...]] | None = None
    names: tuple[str, ...] = tuple(NAMES)

    @property
    def expected(self) -> list[tuple[str | None, ...]]:
        return [*ROWS] if self.rows is None else self.rows


def table(delimiter: str = ",", row: Callable[[tuple[str, ...]], str] | None = None, header: bool = True) -> str:
    lines = [delimiter.join(NAMES)] if header else []
    return "\n".join([*lines, *(row(cells) if row else delimiter.join(cells) for cells in ROWS)]) + "\n"


def after_town(suffix: str) -> list[tuple[str | None, ...]]:
    return [(user, item, town + suffix, click) for user, item, town, click in ROWS]


FORMS = {
    "utf-16": Form(table().encode("utf-16"), {"encoding": "utf-16"}),
    "utf-16 without a mark": Form(table().encode("utf-16-le"), {"encoding": "utf-16-le"}),
    "cp1252": Form(table(";").encode("cp1252"), {"encoding": "cp1252", "delimiter": ";"}),
    "carriage returns": Form(table().replace("\n", "\r"), {"line_ends": "cr"}),
    "two characters": Form(table("||"), {"delimiter": "||"}),
    "control-A": Form(table("\x01"), {"delimiter": "\x01"}),
    "no header": Form(
        table("::", header=False), {"delimiter": "::", "header": False},
        names=("column_1", "column_2", "column_3", "column_4"),
    ),
    "whitespace": Form(
        "user   item click\n" + "".join(f"{u:>5} {i[4:]:>4}\t{c} \n" for u, i, _, c in ROWS),
        {"delimiter": "whitespace"},
        [(u, i[4:], c) for u, i, _, c in ROWS], ("user", "item", "click"),
    ),
    "codes between blanks": Form(
        "".join(f"A{u} {i} B{u} {c}\n" for u, i, _, c in ROWS),
        {"delimiter": "whitespace", "header": False},
        [(f"A{u}", i, f"B{u}", c) for u, i, _, c in ROWS], names=("column_1", "column_2", "column_3", "column_4"),
    ),
    "blanks after commas": Form(
        "user, item, town, click\n" + "".join(f'{u}, {i}, "{t}, CH", {c}\n' for u, i, t, c in ROWS),
        {"skip_blanks": True}, after_town(", CH"),
    ),
    "blanks in the header alone": Form(table().replace("user,item", "user, item ", 1), {"skip_blanks": True}),
    "ordinary quotes": Form(
        table("\t", lambda cells: "\t".join((cells[0], cells[1], f'"{cells[2]}' if int(cells[0]) % 2 else cells[2],
                                             cells[3]))),
        {"delimiter": "\t", "quotes": False},
        [(u, i, f'"{t}' if int(u) % 2 else t, c) for u, i, t, c in ROWS],
    ),
    "backslashes": Form(
        table(",", lambda cells: f'{cells[0]},{cells[1]},"{cells[2]} \\"a\\", b",{cells[3]}'), {"escape": "\\"},
        after_town(' "a", b'),
    ),
    "backslashes before quotes alone": Form(
        table(",", lambda cells: f'{cells[0]},{cells[1]},"{cells[2]} \\"a\\" b",{cells[3]}'), {"escape": "\\"},
        after_town(' "a" b'),
    ),
    "folders that end in backslashes": Form(
        table(",", lambda cells: f'{cells[0]},{cells[1]},"C:\\{cells[2]}\\",{cells[3]}'), {},
        [(user, item, f"C:\\{town}\\", click) for user, item, town, click in ROWS],
    ),
    "doubled quotes after backslashes": Form(
        table(",", lambda cells: f'{cells[0]},{cells[1]},"{cells[2]} \\""a\\"" b",{cells[3]}'), {},
        after_town(' \\"a\\" b'),
    ),
    "comments": Form("# made today\n# by hand\n" + table(), {"comment": "#"}),
    "header in a comment": Form("#" + table(), {"comment": "#", "header": False}),
    "title lines": Form("Sales report 2024\n\n" + table(), {"skip_lines": 2}),
    "Excel's line of the delimiter": Form("sep=;\r\n" + table(";"), {"delimiter": ";", "skip_lines": 1}),
    "Excel's line of a usual delimiter": Form("\ufeff\"sep=,\"\n" + table(), {"skip_lines": 1}),
    "two titles above a gap": Form("Sales,report\n2024\n\n" + table(), {"skip_lines": 3}),
    "two titles above a gap and words": Form(
        "Sales,report\n2024\n\nuser,item,town\n" + "".join(f"u{u},{i},{t}\n" for u, i, t, _ in ROWS), {"skip_lines": 3},
        [(f"u{u}", i, t) for u, i, t, _ in ROWS], ("user", "item", "town"),
    ),
    "titles with empty cells": Form("Sales report;;;\n;;;\n" + table(";"), {"delimiter": ";", "skip_lines": 2}),
    "a title as wide as the rows": Form(
        "Sales report\n\nuser click\n" + "".join(f"{u} {c}\n" for u, _, _, c in ROWS),
        {"delimiter": "whitespace", "skip_lines": 2}, [(u, c) for u, _, _, c in ROWS], ("user", "click"),
    ),
    "bars within cells between blanks": Form(
        "tags   click\n" + "".join(f"{u}|{i}|{i}   {c}\n" for u, i, _, c in ROWS), {"delimiter": "whitespace"},
        [(f"{u}|{i}|{i}", c) for u, i, _, c in ROWS], ("tags", "click"),
    ),
    "line ends in values": Form(
        table(",", lambda cells: f'{cells[0]},{cells[1]},"{cells[2]}\nCH",{cells[3]}'), {"newlines_in_values": True},
        after_town("\nCH"),
    ),
    "a delimiter at the end": Form(
        "".join(f"{line},\n" for line in table().splitlines()), {},
        [(*cells, None) for cells in ROWS], (*NAMES, "column_5"),
    ),
    "a delimiter at the end of rows": Form(
        table(",", lambda cells: ",".join(cells) + ","), {}, [(*cells, None) for cells in ROWS], (*NAMES, "column_5")
    ),
    "names of rows": Form(
        table(",", lambda cells: ",".join(("r1", *cells))), {}, [("r1", *cells) for cells in ROWS], ("", *NAMES)
    ),
    "a name is missing": Form(
        "user,item,,click\n" + "".join(",".join(cells) + "\n" for cells in ROWS), {},
        names=("user", "item", "column_3", "click"),
    ),
}  # fmt: skip

DEFAULTS = {
    "delimiter": ",", "header": True, "encoding": "utf-8", "line_ends": None, "skip_blanks": False, "quotes": True,
    "escape": None, "comment": None, "skip_lines": 0, "newlines_in_values": False,
}  # fmt: skip


def drafted(path: Path) -> CsvSource:
    source = YAML(typ="safe").load(draft_config(path))["data"]["source"]
    return CsvSource.model_validate(source | {"files": [str(path)]})


@pytest.mark.parametrize("name", FORMS)
def test_init_finds_the_form_and_the_reader_reads_it(tmp_path: Path, name: str) -> None:
    form = FORMS[name]
    path = tmp_path / "log.csv"
    path.write_bytes(form.text if isinstance(form.text, bytes) else form.text.encode())
    source = drafted(path)
    found = {key: getattr(source, key) for key in DEFAULTS}
    assert found == DEFAULTS | form.settings
    reading = read(open_source(source, tmp_path, schema(**dict.fromkeys(form.names, TEXT))))
    assert not reading.bad
    assert reading.rows == form.expected


@pytest.mark.parametrize("suffix", ["bz2", "zip"])
def test_compressed_files_are_examined(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"log.csv.{suffix}"
    if suffix == "bz2":
        path.write_bytes(bz2.compress(table().encode()))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("log.csv", table())
    assert "# 400 rows, all examined" in draft_config(path)


def test_parquet_in_an_archive_is_refused_by_name(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "log.zip", "w") as archive:
        archive.writestr("log.parquet", b"PAR1")
    with pytest.raises(DataError, match=r"log\.zip: Parquet within zip data cannot be read in place\n  hint: unpack"):
        draft_config(tmp_path / "log.zip")


@pytest.mark.parametrize(
    ("encoding", "words"),
    [
        ("cp1252", "Zürich Málaga Göteborg Besançon Køge Straße café"),
        ("cp1252", "ÖS"),
        ("cp1252", "KÖLN MÜNCHEN"),
        ("cp1252", "SÃO ÅRHUS"),
        ("cp1250", "ŁÓDŹ"),
        ("cp1250", "Łódź Kraków Plzeň Győr Třebíč Žilina Wrocław"),
        ("cp1251", "Москва Казань Омск Самара чехол кроссовки"),
        ("koi8-r", "Москва Казань Омск Самара чехол кроссовки"),
        ("cp866", "Москва Казань Омск Самара чехол кроссовки"),
        ("cp1253", "Αθήνα Θεσσαλονίκη Πάτρα Ηράκλειο"),
        ("cp1254", "İstanbul İzmir Şanlıurfa Muğla Eskişehir"),
        ("cp1255", "ירושלים חיפה אשדוד"),
        ("cp932", "東京 大阪 カメラ テレビ おもちゃ"),
        ("euc_jp", "東京 大阪 カメラ テレビ おもちゃ"),
        ("gb18030", "北京 上海 广州 手机 电脑"),
        ("big5", "台北 高雄 電腦 手機 書籍"),
        ("cp949", "서울 부산 전자제품 도서"),
        ("utf-8", "Zürich Москва 東京"),
        ("mac-roman", "Zürich Málaga Göteborg Besançon"),
    ],
)
def test_encodings_are_guessed_from_short_texts(encoding: str, words: str) -> None:
    drawn = random.Random(1)
    text = "".join(f"{drawn.randrange(999)},{drawn.choice(words.split())},1\n" for _ in range(60))
    found = find_encoding([text.encode(encoding)])
    assert text.encode(encoding).decode(found.name) == text
    assert find_encoding([text.encode(encoding)]) == found


def test_a_few_broken_lines_do_not_change_the_encoding() -> None:
    good = "1,Zürich\n" * 100
    assert find_encoding([good.encode() + b"1,Z\xfcrich\n"]).name == "utf-8"
    assert find_encoding([b"1,Z\xfcrich\n" * 100]).name == "cp1252"


def test_a_sample_is_never_larger_than_the_log(tmp_path: Path) -> None:
    (tmp_path / "big.csv").write_text("user,shop,click\n" + f"7,{'s' * 40},1\n8,,0\n" * 750_000)
    line = next(line for line in draft_config(tmp_path / "big.csv").splitlines() if "source:" in line)
    total, sampled = (int(word.replace(",", "")) for word in line.split() if word.replace(",", "").isdigit())
    assert sampled <= total
    assert abs(total - 1_500_000) < 15_000


@pytest.mark.parametrize(
    ("encoding", "words"),
    [
        ("euc_jp", "東京 大阪市 京都 名古屋 表示"),
        ("euc_jp", "新潟 静岡 冷蔵庫 洗濯機 時計"),
        ("cp932", "新潟 静岡 冷蔵庫 洗濯機 時計"),
        ("cp932", "ﾃﾚﾋﾞ 東京 ｶﾒﾗ 大阪"),
        ("gb18030", "北京 上海 广州 深圳"),
        ("gb18030", "成都 武汉 冰箱 空调"),
        ("big5", "臺北 高雄 臺中 新竹縣"),
        ("big5", "桃園 嘉義 冷氣 手錶"),
        ("cp949", "서울 부산 대구 인천"),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_few_words_of_east_asia_tell_the_encoding(encoding: str, words: str, seed: int) -> None:
    drawn = random.Random(seed)
    text = "".join(f"{drawn.randrange(999)},{drawn.choice(words.split())},1\n" for _ in range(200))
    found = find_encoding([text.encode(encoding)])
    assert text.encode(encoding).decode(found.name) == text


def test_an_encoding_that_may_be_another_is_doubted(tmp_path: Path) -> None:
    rows = "".join(f"{k % 90},{'時計' if k % 3 else '小説'},{k % 2}\n" for k in range(300))
    (tmp_path / "log.csv").write_bytes(("user,item,click\n" + rows).encode("euc_jp"))
    written = next(line for line in draft_config(tmp_path / "log.csv").splitlines() if "encoding:" in line)
    assert "# guessed from the bytes; if values look wrong, try " in written
    assert "euc_jp" in written


@pytest.mark.parametrize(("valid", "others", "told"), [(500, 200, True), (200, 500, True), (500, 0, False)])
def test_lines_in_two_encodings_are_counted(valid: int, others: int, told: bool, tmp_path: Path) -> None:
    lines = [f"{k % 90},{'Zürich' if k % 2 else 'Köln'},{k % 2}\n".encode() for k in range(valid)]
    lines += [f"{k % 90},{'Zürich' if k % 2 else 'Köln'},{k % 2}\n".encode("cp1252") for k in range(others)]
    (tmp_path / "log.csv").write_bytes(b"user,town,click\n" + b"".join(lines))
    text = draft_config(tmp_path / "log.csv")
    assert ("encoding: cp1252" in text) is told
    counts = f"# two encodings: of the sampled lines beyond ASCII {valid} are valid UTF-8 and {others} are not"
    assert (counts in text) is told
    assert ("becomes two ids" in text) is told


def test_legacy_text_is_not_taken_for_two_encodings() -> None:
    drawn = random.Random(3)
    for encoding, words in {
        "cp1252": "Zürich Málaga Göteborg", "cp1251": "Москва Казань чехол", "koi8-r": "Москва Казань чехол",
        "gb18030": "北京 上海 广州 手机", "euc_jp": "東京 大阪 カメラ", "cp949": "서울 부산 도서", "cp932": "東京 大阪",
    }.items():  # fmt: skip
        text = "".join(f"{drawn.randrange(999)},{drawn.choice(words.split())},1\n" for _ in range(300))
        assert find_encoding([text.encode(encoding)]).valid_lines == 0, encoding


def test_a_byte_order_mark_is_no_guess(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_bytes(table().encode("utf-16"))
    assert "encoding: utf-16  # told by the byte order mark\n" in draft_config(tmp_path / "log.csv")
