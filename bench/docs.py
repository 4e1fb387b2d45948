"""Generates the table and the picture of each benchmark in `docs/benchmarks.md`; the prose around them is hand-written.

A generated part is between two markers such as ``<!-- bench:loader -->`` and ``<!-- /bench:loader -->``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench import results
from bench.benchmark import Benchmark
from bench.plots import draw, draw_board, draw_laws, picture_path
from bench.rank_plot import draw_ranks
from bench.tables import markdown, stored_table
from ziggurat.core.errors import DataError
from ziggurat.core.files import atomic_file


def page_path(root: Path) -> Path:
    return root / "docs" / "benchmarks.md"


def rewrite(root: Path, benchmarks: Iterable[Benchmark]) -> bool:
    """Writes the stored results to the page, and returns whether the page changed.

    Raises:
        DataError: the page is missing, or lacks a benchmark's markers.
    """
    path = page_path(root)
    try:
        old = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DataError(f"{path}: missing", "restore it from git") from None
    new = old
    for benchmark in benchmarks:
        stored = results.load(root, benchmark.name)
        new = _replace(new, benchmark.name, section(benchmark, stored), path)
        if stored is not None:
            picture = {"board": draw_board, "law": draw_laws, "ranks": draw_ranks}.get(
                stored.get("layout", "list"), draw
            )
            picture(picture_path(root, benchmark.name), stored["figures"])
    if new != old:
        with atomic_file(path) as temporary:
            temporary.write_text(new, encoding="utf-8")
    return new != old


def section(benchmark: Benchmark, stored: dict[str, Any] | None) -> str:
    """Returns the claim, the table and the provenance of one benchmark in Markdown."""
    if stored is None:
        return f"*{benchmark.claim}*\n\nNot measured yet: `python -m bench run {benchmark.name}`."
    machine, versions = stored["machine"], stored["versions"]
    commit = (stored["commit"] or "unknown")[:12] + (" with local changes" if stored["dirty"] else "")
    origin = (
        f"{stored['date'][:10]}, commit {commit}, {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB; {stored['warmups']} warm-up and {stored['repeats']} measured rounds; "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
    )
    notes = "".join(f"\n- {note}" for note in stored["notes"])
    cases = stored.get("cases")
    return (
        f"*{benchmark.claim}*\n\n{stored_table(stored)}\n"
        + (f"{notes}\n" if notes else "")
        + (f"\n<details><summary>Case by case</summary>\n\n{markdown(cases)}\n\n</details>\n" if cases else "")
        + f"\n![{benchmark.name}](benchmarks/{benchmark.name}.svg)\n"
        + f"\n<sub>{origin}</sub>"
    )


def _replace(page: str, name: str, text: str, path: Path) -> str:
    pattern = re.compile(rf"(<!-- bench:{re.escape(name)} -->\n).*?(<!-- /bench:{re.escape(name)} -->)", re.DOTALL)
    if not pattern.search(page):
        raise DataError(
            f"{path}: no markers for the benchmark {name!r}",
            f"add the lines <!-- bench:{name} --> and <!-- /bench:{name} -->",
        )
    return pattern.sub(lambda match: f"{match[1]}{text}\n{match[2]}", page, count=1)
