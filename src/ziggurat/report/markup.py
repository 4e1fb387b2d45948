"""HTML as nested calls: whatever is not already ``Html`` is escaped, so user text cannot become markup.

Elements without content close themselves (``<br />``), which HTML allows and XML requires: the page can be checked by
any XML parser.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_VOID = frozenset({"meta", "br", "line", "circle", "rect", "path", "polyline", "polygon", "col"})


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def escape(text: object) -> Html:
    """``text`` as content or attribute value; characters that no document may hold become U+FFFD."""
    if isinstance(text, Html):
        return text
    return Html(html.escape(_NOT_XML.sub("\ufffd", str(text)), quote=True))


def el(tag: str, *children: object, cls: str = "", **attributes: object) -> Html:
    """An element; ``cls`` is its class, ``_`` in attribute names becomes ``-``, children that are None are left out."""
    pairs = {**({"class": cls} if cls else {}), **{key.replace("_", "-"): value for key, value in attributes.items()}}
    head = "".join(f' {key}="{escape(value)}"' for key, value in pairs.items() if value is not None)
    if tag in _VOID:
        assert not children, tag
        return Html(f"<{tag}{head} />")
    return Html(f"<{tag}{head}>{join(children)}</{tag}>")


def join(children: Iterable[object]) -> Html:
    """Siblings, one after the other."""
    return Html("".join(escape(child) for child in children if child is not None))


def section(anchor: str, title: str, *children: object) -> Html:
    """A titled part of the page that the contents can point at."""
    return el("section", el("h2", title), *children, id=anchor)


def figure(reading: str, *children: object, caption: str = "") -> Html:
    """A drawing with its caption above and one sentence below on how to read it."""
    head = el("h4", caption) if caption else None
    return el("figure", head, *children, el("figcaption", reading))


def table(headers: list[str], rows: list[list[object]], text_columns: int = 1) -> Html:
    """A table: the first ``text_columns`` columns are text, the others numbers and right-aligned.

    A cell that is None shows a dash; a cell that is ``Html`` is shown as it is.
    """

    def cells(tag: str, row: list[object]) -> Html:
        return join(
            el(tag, "–" if cell is None else cell, cls="" if position < text_columns else "number")
            for position, cell in enumerate(row)
        )

    head = el("thead", el("tr", cells("th", list(headers))))
    body = el("tbody", *(el("tr", cells("td", row)) for row in rows))
    return el("div", el("table", head, body), cls="scroll")
