"""Builds HTML by nested calls. Everything that is not ``Html`` is escaped, so user text cannot become markup.

Elements without content are self-closing (``<br />``), which HTML allows and XML requires, so that any XML parser can
check the page.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_VOID = frozenset({"meta", "br", "line", "circle", "rect", "path", "polyline", "polygon", "col", "img"})


class Html(str):
    """Text that already is markup."""

    __slots__ = ()


def escape(text: object) -> Html:
    """Escapes ``text`` for content or attribute values; characters that XML forbids become U+FFFD."""
    if isinstance(text, Html):
        return text
    return Html(html.escape(_NOT_XML.sub("\ufffd", str(text)), quote=True))


def el(tag: str, *children: object, cls: str = "", **attributes: object) -> Html:
    """Returns an element.

    ``cls`` is its class. ``_`` in attribute names becomes ``-``. Children and attributes that are None are left out.
    """
    pairs = {**({"class": cls} if cls else {}), **{key.replace("_", "-"): value for key, value in attributes.items()}}
    head = "".join(f' {key}="{escape(value)}"' for key, value in pairs.items() if value is not None)
    if tag in _VOID:
        assert not children, tag
        return Html(f"<{tag}{head} />")
    return Html(f"<{tag}{head}>{join(children)}</{tag}>")


def join(children: Iterable[object]) -> Html:
    """Concatenates siblings; those that are None are left out."""
    return Html("".join(escape(child) for child in children if child is not None))


def section(anchor: str, title: str, *children: object) -> Html:
    """Returns a titled section of the page, to which the navigation can link."""
    return el("section", el("h2", title), *children, id=anchor)


def figure(reading: str, *children: object, caption: str = "") -> Html:
    """Returns a drawing with its caption above and a sentence below on how to read it."""
    head = el("h4", caption) if caption else None
    return el("figure", head, *children, el("figcaption", reading))


def table(headers: list[str], rows: list[list[object]], text_columns: int = 1) -> Html:
    """Returns a table; the first ``text_columns`` columns are text, the others are right-aligned numbers.

    A cell that is None is shown as a dash.
    """

    def cells(tag: str, row: list[object]) -> Html:
        return join(
            el(tag, "–" if cell is None else cell, cls="" if position < text_columns else "number")
            for position, cell in enumerate(row)
        )

    head = el("thead", el("tr", cells("th", list(headers))))
    body = el("tbody", *(el("tr", cells("td", row)) for row in rows))
    return el("div", el("table", head, body), cls="scroll")
