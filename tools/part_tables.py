#!/usr/bin/env python3
"""Rewrites the tables of built-in parts in ``docs/models.md`` from the lists in the code; ``--check`` only compares.

    .venv/bin/python tools/part_tables.py [--check]

A table stands between ``<!-- parts: KIND -->`` and ``<!-- end -->``. Its rows are the members of the kind's list: the
name, the first sentence of the module, the formula that the class's docstring begins with, and the source it names.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from ziggurat.core.parts import PartConfig, built_in
from ziggurat.interactions.field_blocks.composable import ComposableBlock
from ziggurat.interactions.sequences.sequence_pooling import SequenceEncoderConfig
from ziggurat.models.build import ModelConfig
from ziggurat.models.heads import HeadConfig

PAGE = Path(__file__).resolve().parent.parent / "docs" / "models.md"
KINDS = {
    "models": ModelConfig,
    "blocks": ComposableBlock,
    "heads": HeadConfig,
    "sequence encoders": SequenceEncoderConfig,
}


def main(arguments: Iterable[str]) -> int:
    text = PAGE.read_text(encoding="utf-8")
    rewritten = with_tables(text)
    if "--check" in arguments:
        return 0 if text == rewritten else 1
    PAGE.write_text(rewritten, encoding="utf-8")
    return 0


def with_tables(text: str) -> str:
    """Returns the page with every marked table made anew."""

    def table(match: re.Match[str]) -> str:
        kind = match.group(1)
        rows = [row(config) for config in built_in(KINDS[kind], PartConfig)]
        return "\n".join(
            [
                f"<!-- parts: {kind} -->",
                "| `name` | what it is | what it computes | source |",
                "|---|---|---|---|",
                *rows,
                "<!-- end -->",
            ]
        )

    return re.sub(r"<!-- parts: ([a-z ]+) -->.*?<!-- end -->", table, text, flags=re.DOTALL)


def row(config: type[PartConfig]) -> str:
    """Returns one line of a table."""
    module = inspect.getmodule(config)
    assert module is not None
    part = getattr(module, config.__qualname__.split(".")[0])
    sentence = " ".join((module.__doc__ or "").split("\n\n")[0].split()).rstrip(".")
    described = inspect.getdoc(part) or ""
    found = re.search(r"Source: (.*?)(?:\n\s*\n|$)", described, re.DOTALL)
    source = " ".join(found.group(1).split()) if found else ""
    source = re.split(r"; |, (?:eq|section|figure|in the)\b|\. [A-Z]", source)[0].rstrip(".")
    name = config.model_fields["name"].default
    return f"| `{name}` | {escaped(sentence)} | {escaped(formula(described))} | {escaped(source)} |"


def formula(described: str) -> str:
    """Returns the first line of a docstring where that is a formula, with the bare names of the classes in it."""
    line = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"\1", described.split("\n", 1)[0]).replace("``", "`")
    return line.rstrip(".") if re.search(r"[=→]", line) else ""


def escaped(text: str) -> str:
    """Returns text that a cell of a Markdown table can hold."""
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
