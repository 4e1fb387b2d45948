"""Renders the report as one HTML page without scripts or external requests, for small screens and dark mode too.

A content security policy forbids the page to load anything, so the browser enforces that it is self-contained.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ziggurat.core.files import atomic_file
from ziggurat.report import drawings, model_section, offload_section, results
from ziggurat.report.inputs import ReportInputs
from ziggurat.report.markup import Html, el, join
from ziggurat.report.style import STYLE

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

_SECTIONS = {
    "comparison": ("Comparison", results.comparison),
    "figures": ("Figures", results.final_figures),
    "learning": ("Learning", drawings.learning_curves),
    "curves": ("Ranking and calibration", drawings.final_curves),
    "slices": ("Slices", results.slices),
    "features": ("Features", model_section.features),
    "size": ("Size", model_section.size),
    "offload": ("Rows on disk", offload_section.rows_on_disk),
    "provenance": ("Config", model_section.provenance),
}


def render_report(inputs: ReportInputs) -> str:
    """Returns the page; equal inputs give equal bytes. Sections without content, and links to them, are left out."""
    sections = {anchor: drawn for anchor, (_, draw) in _SECTIONS.items() if (drawn := draw(inputs)) is not None}
    return page(f"{inputs.title} – ziggurat report", _header(inputs, list(sections)), sections.values())


def page(title: str, header: Html, sections: Iterable[Html], *, images: bool = False) -> str:
    """Returns a whole document in the report's style.

    Args:
        title: of the document.
        header: its head for readers.
        sections: what follows.
        images: allow images whose data are in the page itself.
    """
    policy = f"{_POLICY}; img-src data:" if images else _POLICY
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("title", title),
        el("style", Html(STYLE)),
    )
    body = el("body", header, el("main", *sections), _footer())
    return f"<!DOCTYPE html>\n{el('html', head, body, lang='en')}\n"


def write_report(path: Path, inputs: ReportInputs) -> None:
    """Writes the page atomically.

    Raises:
        DataError: the disk is full or the folder is not writable.
    """
    with atomic_file(path) as temporary:
        temporary.write_text(render_report(inputs), encoding="utf-8")


def _header(inputs: ReportInputs, anchors: list[str]) -> Html:
    model = inputs.model.name if inputs.model else ""
    line = " · ".join(part for part in (model, model_section.data_line(inputs), inputs.created) if part)
    notes = [el("p", note, cls="note") for note in inputs.notes]
    links = [join([el("a", _SECTIONS[anchor][0], href=f"#{anchor}"), " "]) for anchor in anchors]
    return el(
        "header", el("h1", inputs.title), el("p", line, cls="soft"), results.headline(inputs), *notes, el("nav", *links)
    )


def _footer() -> Html:
    return el("footer", "Made by ziggurat. This file is complete in itself: it loads nothing.")
