"""Finds how delimited text is written: delimiter, quotes, escapes, comments, titles before the header.

Every likely way is tried on the first lines. The one that gives most lines the same number of cells is chosen; among
equals, the one with more cells, and then the more usual one.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ziggurat.data.readers.csv.dialect import Dialect
from ziggurat.data.readers.text.records import Records

DELIMITERS = (b",", b"\t", b";", b"|", b"::", b"||", b"\x01", b"\x02", b"\x1f", b"\x1e", b"^", b"~", "¦".encode())
COMMENTS = ("#", "%", "//")
_STATED = re.compile(rb'"?sep=([^\r\n"]{1,4})"?\r?\n', re.IGNORECASE)
"""The first line by which Excel is told the delimiter."""

_MOST_TITLE_LINES = 10
_LINES = 200
_BLANKS = re.compile(rb"[ \t]+")


@dataclass(frozen=True, slots=True)
class FoundDialect:
    """How some text is written.

    Attributes:
        dialect: delimiter, quotes and so on.
        width: number of cells in a row.
        commented_header: the names of the columns, if they are in the last comment line.
    """

    dialect: Dialect
    width: int
    commented_header: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A dialect, the most frequent number of cells, and the share of the lines that are in records of so many."""

    dialect: Dialect
    width: int
    share: float

    def order(self) -> tuple[float, int, int, int]:
        """Orders attempts: by their share of lines, rounded, then by cells, then by how usual they are."""
        usual = -DELIMITERS.index(self.dialect.delimiter) if self.dialect.delimiter in DELIMITERS else -99
        plain = 4 * bool(self.dialect.escape) + 2 * self.dialect.newlines_in_values + (not self.dialect.quotes)
        return (round(self.share, 2) if self.width > 1 else 0.0, self.width, -plain, usual)


def find_dialect(head: bytes) -> FoundDialect:
    """Returns the dialect of a text, of which ``head`` is the beginning: whole lines in UTF-8, with line feeds.

    A first line that states the delimiter, as in ``sep=;``, is one to skip.
    """
    stated = _STATED.match(head)
    if stated is None:
        return _find(head, DELIMITERS)
    found = _find(head[stated.end() :], (stated[1],))
    found = found if found.width > 1 else _find(head[stated.end() :], DELIMITERS)
    return replace(found, dialect=replace(found.dialect, skip_lines=1 + found.dialect.skip_lines))


def _find(head: bytes, delimiters: Sequence[bytes]) -> FoundDialect:
    lines = [line for line in head.split(b"\n") if line.strip()][:_LINES]
    comment = _comment(lines)
    mark = comment.encode()
    body = [line for line in lines if not mark or not line.startswith(mark)]
    best = _best([line.rstrip(b"\r") for line in body], mark, delimiters)
    found = FoundDialect(replace(best.dialect, comment=mark), best.width)
    if not mark and best.width > 1:
        found = replace(found, dialect=replace(found.dialect, skip_lines=_title_lines(head, found)))
        if found.dialect.skip_lines == 1 and found.dialect.delimiter:
            found = _at_blanks_like_the_first_line(body, best.share) or found
    found = replace(found, dialect=replace(found.dialect, skip_blanks=_has_blanks(body, found)))
    if found.dialect.delimiter == b"\t" and _looks_like_columns(body):
        at_blanks = _attempt(b"\n".join(body) + b"\n", Dialect(b"", comment=mark), len(body))
        needed = 0.95 if found.dialect.skip_blanks else best.share
        if at_blanks.share > needed and at_blanks.width > found.width:
            found = FoundDialect(at_blanks.dialect, at_blanks.width)
    return replace(found, commented_header=_commented_header(lines, found)) if mark else found


def first_records(data: bytes, dialect: Dialect, count: int) -> list[list[bytes]]:
    """Returns the cells of the first records of a text; a record that cannot be split has none."""
    for _ in range(dialect.skip_lines):
        data = data.partition(b"\n")[2]
    end = 0
    for _ in range(count + 50):
        end = data.find(b"\n", end) + 1 or len(data)
    if dialect.newlines_in_values:
        end = len(data[: 2**18])
    records = Records.of(data[:end], 1, dialect)
    split = (dialect.split(records[row]) for row in range(min(count, len(records))))
    return [cells if isinstance(cells, list) else [] for cells in split]


def _comment(lines: Sequence[bytes]) -> str:
    """Returns the mark of comment lines if the text begins with one, and other lines follow."""
    for mark in COMMENTS:
        begins = [line.startswith(mark.encode()) for line in lines]
        if begins and begins[0] and not all(begins):
            following = lines[begins.index(False)]
            is_name = lines[0][len(mark) :][:1] in (b",", b"\t", b";", b"|") and not begins[1]
            return "" if is_name and following else mark
    return ""


def _best(lines: Sequence[bytes], comment: bytes, delimiters: Sequence[bytes]) -> _Attempt:
    text = b"\n".join(lines) + b"\n"
    modes = [{}]
    if b'"' in text:
        modes += [{"newlines_in_values": True}, {"quotes": False}]
    if re.search(rb"\\[\"\\,;|\t\n\x01]", text):
        modes += [{"escape": b"\\"}, {"escape": b"\\", "newlines_in_values": True}]
        modes += [{"escape": b"\\", "quotes": False}] * (b'"' in text)
    attempts: list[_Attempt] = []
    for delimiter, mode in itertools.product(delimiters, modes):
        if delimiter in text:
            blanks = re.search(re.escape(delimiter) + rb' +"', text) is not None
            dialect = Dialect(delimiter=delimiter, comment=comment, skip_blanks=blanks, **mode)
            attempts.append(_attempt(text, dialect, len(lines)))
    best = max(attempts, key=_Attempt.order, default=None)
    if best is not None and not best.dialect.quotes:
        best = _with_quotes_if_most_close(best, attempts, lines)
    if best is not None:
        best = _with_escape_if_within_quotes(best, attempts, lines)
    if best is None or best.order()[0] <= 0.5:
        at_blanks = _attempt(text, Dialect(b"", comment=comment), len(lines))
        if at_blanks.share > 0.95 and at_blanks.width > 1 and len(lines) > 1 and _looks_like_columns(lines):
            return at_blanks
        return _Attempt(Dialect(comment=comment), 1, 1.0)
    doubled = best.dialect.delimiter * 2
    if doubled in DELIMITERS and all(line.count(doubled) * 2 == line.count(best.dialect.delimiter) for line in lines):
        return _attempt(text, replace(best.dialect, delimiter=doubled), len(lines))
    return best


def _with_quotes_if_most_close(best: _Attempt, attempts: Sequence[_Attempt], lines: Sequence[bytes]) -> _Attempt:
    """Returns the attempt with quotes instead, if nine of ten lines with quotes are as wide with them."""
    wanted = replace(best.dialect, quotes=True)
    same = next((attempt for attempt in attempts if attempt.dialect == wanted and attempt.width == best.width), None)
    if same is None:
        return best
    quoted = [line for line in lines if b'"' in line]
    closing = sum(_width(line, wanted) == best.width for line in quoted)
    encloses = any(re.search(rb'(^|%s) *"' % re.escape(wanted.delimiter), line) for line in quoted)
    return same if encloses and closing >= 0.9 * len(quoted) else best


def _with_escape_if_within_quotes(best: _Attempt, attempts: Sequence[_Attempt], lines: Sequence[bytes]) -> _Attempt:
    """Returns the attempt with a backslash as escape instead, if it splits the lines as well and quotes need it.

    They need it where a quoted value goes on after a backslash and a quote: ``"a \\"b\\" c"``.
    """
    if best.dialect.escape or not best.dialect.quotes:
        return best
    wanted = replace(best.dialect, escape=b"\\")
    same = next((attempt for attempt in attempts if attempt.dialect == wanted and attempt.width == best.width), None)
    if same is None or same.share < best.share:
        return best
    delimiter = re.escape(best.dialect.delimiter)
    goes_on = re.compile(rb'(?:^|%s) *"(?:[^"\\]|\\.)*\\"(?!%s|"|$)' % (delimiter, delimiter))
    return same if any(goes_on.search(line) for line in lines) else best


def _attempt(text: bytes, dialect: Dialect, line_count: int) -> _Attempt:
    records = Records.of(text, 1, dialect)
    widths: list[int] = []
    for row in range(len(records)):
        cells = dialect.split(records[row])
        widths.append(len(cells) if isinstance(cells, list) else 0)
    lines_in = [int(after - line) for line, after in itertools.pairwise([*records.lines.tolist(), records.next_line])]
    covered: Counter[int] = Counter()
    for width, lines in zip(widths, lines_in, strict=True):
        if width:
            covered[width] += lines
    if not covered:
        return _Attempt(dialect, 0, 0.0)
    width = max(covered, key=lambda each: (covered[each], each))
    return _Attempt(dialect, width, covered[width] / max(1, line_count))


def _looks_like_columns(lines: Sequence[bytes]) -> bool:
    """Whether cells between blanks are mostly numbers, or codes such as ``A11``, of which prose has few."""
    number_or_code = re.compile(rb"[-+.\deE:/]+|[A-Za-z_]+\d+")
    digits = sum(bool(number_or_code.fullmatch(cell)) for line in lines for cell in line.split())
    return digits * 2 >= sum(len(line.split()) for line in lines)


def _title_lines(head: bytes, found: FoundDialect) -> int:
    """Returns the number of lines before the first that has the width of the rows, if these are titles."""
    if found.dialect.newlines_in_values and len(next(iter(first_records(head, found.dialect, 1)), [])) == found.width:
        return 0
    lines = [line.rstrip(b"\r") for line in head.split(b"\n")[: _LINES + _MOST_TITLE_LINES]]
    widths = [_width(line, found.dialect) if line.strip() else None for line in lines]
    below = _header_below_a_gap(lines, widths, found) or _header_below_padded_titles(lines, widths, found)
    if below:
        return below
    at = next((place for place, width in enumerate(widths) if width == found.width), 0)
    if not 0 < at <= _MOST_TITLE_LINES:
        return 0
    titles = [width for width in widths[:at] if width is not None]
    if not titles or _is_narrower_header(lines[at - 1], widths[at - 1], found):
        return 0
    return at if all(width <= max(1, found.width // 2) for width in titles) else 0


def _header_below_a_gap(lines: Sequence[bytes], widths: Sequence[int | None], found: FoundDialect) -> int:
    """Returns the number of lines above a header that a blank line separates from titles, else 0.

    It is a header if all its cells are words; and if a title is as wide as itself, only if in the rows below it a cell
    at some place is a number each time.
    """
    gap = next((place for place, width in enumerate(widths) if width is None), 0)
    start = next((place for place, width in enumerate(widths[gap:], gap) if width is not None), 0)
    if not 0 < gap < start <= _MOST_TITLE_LINES or widths[start] != found.width:
        return 0
    narrower = gap > 1 and all(width is None or width < found.width for width in widths[:gap])
    return start if _is_header(lines[start:], found, above_numbers=not narrower) else 0


def _header_below_padded_titles(lines: Sequence[bytes], widths: Sequence[int | None], found: FoundDialect) -> int:
    """Returns the number of lines above a header if they are titles with empty cells after them, as Excel writes them.

    ``Report;;`` is such a line in a log of three columns, and so is ``;;``.
    """
    filled = [_filled(line, found) if width == found.width else 0 for line, width in zip(lines, widths, strict=True)]
    start = next((place for place, count in enumerate(filled) if count == found.width), 0)
    titles = filled[:start]
    padded = [count for count, width in zip(titles, widths, strict=False) if width == found.width]
    if not 0 < start <= _MOST_TITLE_LINES or not any(padded) or max(titles) > max(1, found.width // 2):
        return 0
    return start if _is_header(lines[start:], found, above_numbers=True) else 0


def _filled(line: bytes, found: FoundDialect) -> int:
    """Returns the number of cells up to the last one that is not empty."""
    cells = found.dialect.split(line)
    places = enumerate(cells, 1) if isinstance(cells, list) else ()
    return max((place for place, cell in places if cell.strip()), default=0)


def _is_header(lines: Sequence[bytes], found: FoundDialect, above_numbers: bool) -> bool:
    """Whether all cells of the first line are words; ``above_numbers``: and a cell in the rows below is a number."""
    split = [found.dialect.split(line) for line in lines[:_LINES] if line.strip()]
    header, *rows = [cells for cells in split if isinstance(cells, list) and len(cells) == found.width] or [[]]
    words = bool(header) and all(re.search(rb"[A-Za-z\x80-\xff]", cell) for cell in header)
    numbers = any(
        all(re.fullmatch(rb"\s*[-+]?[\d.,]+\s*", cell) for cell in column) for column in zip(*rows, strict=True)
    )
    return words and len(rows) > 1 and (numbers or not above_numbers)


def _is_narrower_header(line: bytes, width: int | None, found: FoundDialect) -> bool:
    """Whether a line names all columns but one, as R writes it where rows have names."""
    if width is None or width != found.width - 1:
        return False
    cells = found.dialect.split(line)
    return isinstance(cells, list) and all(re.search(rb"[A-Za-z\x80-\xff]", cell) for cell in cells)


def _at_blanks_like_the_first_line(lines: Sequence[bytes], share: float) -> FoundDialect | None:
    """Returns cells between blanks, if they explain as many lines as the best delimiter does, and the first line too.

    That line is then a header, not a title: ``price click`` above ``2|4 0``.
    """
    at_blanks = _attempt(b"\n".join(lines) + b"\n", Dialect(b""), len(lines))
    fits = at_blanks.share >= share and 1 < at_blanks.width == _width(lines[0].rstrip(b"\r"), at_blanks.dialect)
    return FoundDialect(at_blanks.dialect, at_blanks.width) if fits else None


def _width(line: bytes, dialect: Dialect) -> int:
    cells = dialect.split(line)
    return len(cells) if isinstance(cells, list) else 0


def _has_blanks(lines: Sequence[bytes], found: FoundDialect) -> bool:
    """Whether blanks stand beside most delimiters, or at the ends of a name in the first line."""
    delimiter = found.dialect.delimiter
    if not delimiter or (delimiter.isspace() and delimiter != b"\t"):
        return False
    if found.dialect.skip_blanks:
        return True
    blank = rb" " if delimiter == b"\t" else rb"[ \t]"
    beside = re.compile(rb"%s%s|%s%s" % (blank, re.escape(delimiter), re.escape(delimiter), blank))
    marks = sum(line.count(delimiter) for line in lines)
    if marks and sum(len(beside.findall(line)) for line in lines) > 0.8 * marks:
        return True
    cells = found.dialect.split(lines[0]) if lines else []
    strip = b" " if delimiter == b"\t" else b" \t"
    return isinstance(cells, list) and any(cell != cell.strip(strip) for cell in cells if cell.strip())


def _commented_header(lines: Sequence[bytes], found: FoundDialect) -> tuple[str, ...] | None:
    """Returns the cells of the last comment line before the rows, if it has as many words as there are cells."""
    mark = found.dialect.comment
    before = list(itertools.takewhile(lambda line: line.startswith(mark), lines))
    for line in _without_mark(before[-1:], mark):
        cells = found.dialect.split(line)
        names = [cell.decode("utf-8", "replace").strip() for cell in cells] if isinstance(cells, list) else []
        first = found.dialect.split(lines[len(before)].rstrip(b"\r"))
        words = all(re.search(r"[^\W\d]", name) for name in names)
        distinct = len(set(names)) == len(names)
        if len(names) == found.width and words and distinct and isinstance(first, list) and len(first) == found.width:
            return tuple(names)
    return None


def _without_mark(lines: Sequence[bytes], mark: bytes) -> Iterator[bytes]:
    return (line.rstrip(b"\r")[len(mark) :].lstrip(mark + b" \t") for line in lines)
