"""Rewords the hints of readers for those who predict: they can change files and rows, but not the config."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from ziggurat.core.errors import DataError
from ziggurat.data.readers.csv.reader import CsvSource
from ziggurat.data.readers.file_heads import AnySource
from ziggurat.data.readers.frame.reader import FrameSource
from ziggurat.data.readers.other_format import KNOWN_SUFFIXES, config_for_format
from ziggurat.data.readers.reader import TextConfig
from ziggurat.data.readers.source_files import resolve_files

_BETWEEN = re.compile(r"(?:; (?:or )?|, or )")
_OF_CONFIG = re.compile(r"`[a-z_]+(?::[^`]*)?`|\bdeclare\b|\bnull_values\b|\bthe source\b")
_OF_FORM = re.compile(
    r"`(?:comment|delimiter|encoding|escape|header|line_ends|newlines_in_values|quotes|records|skip_\w+|columns)\b"
)
_LEFT_OUT = ("remove it from `files`", "leave the file out")
_QUARANTINE = "predict with --on-bad-row"


@contextlib.contextmanager
def advice_for_prediction(form: Callable[[], str]) -> Generator[None]:
    """Rewords the hints of the DataErrors that are raised in the ``with`` block.

    Args:
        form: returns how files are read, as :func:`form_of_files` says it.
    """
    try:
        yield
    except DataError as error:
        raise DataError(error.problem, hint_for_prediction(error.hint, form)) from error


def hint_for_prediction(hint: str, form: Callable[[], str] | None = None) -> str:
    """Returns a reader's hint without what only a config can do; ``form`` describes files, if rows are from some.

    What has to be written otherwise then stands in its place: the file, in the form that the run reads, or the row.
    """
    hint = hint.replace(*_LEFT_OUT)
    clauses = _BETWEEN.split(hint)
    kept = [clause for clause in clauses if not _OF_CONFIG.search(clause)]
    dropped = [clause for clause in clauses if _OF_CONFIG.search(clause)]
    if not dropped:
        return hint
    if form is not None and any(_OF_FORM.search(clause) for clause in dropped):
        kept.insert(0, f"write the file as the run reads it: {form()}")
    if all(clause.startswith(_QUARANTINE) for clause in kept):
        kept.insert(0, "correct the row: write the value as the training files have it")
    return "; ".join(f"or {clause}" if clause.startswith(_QUARANTINE) else clause for clause in kept)


def form_of_files(config: AnySource | FrameSource, files: Sequence[str]) -> str:
    """Says how ``files`` are read: ``CSV, delimiter ',', encoding utf-8, with a header``.

    Args:
        config: the source of the run's config; files whose suffixes name another format are read in that format.
        files: paths, folders or globs.
    """
    with contextlib.suppress(DataError):
        config = config_for_format(resolve_files(files, Path(), config.SUFFIXES or KNOWN_SUFFIXES), config)
    parts = [{"csv": "CSV", "jsonl": "JSON lines"}.get(config.name, config.name)]
    if isinstance(config, CsvSource):
        parts.append(f"delimiter {config.delimiter!r}")
    if isinstance(config, TextConfig):
        parts.append(f"encoding {config.encoding}")
        parts += ["lines that end in carriage returns"] * (config.line_ends == "cr")
    if isinstance(config, CsvSource):
        parts.append(
            "with a header" if config.header else f"without a header, the columns {', '.join(config.columns or ())}"
        )
        parts += [f"{config.skip_lines} lines before it"] * bool(config.skip_lines)
        parts += ["quotes as ordinary characters"] * (not config.quotes)
        parts += ["no line ends within quotes"] * (not config.newlines_in_values)
    return ", ".join(parts)
