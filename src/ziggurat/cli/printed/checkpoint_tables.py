"""Prints the output of ``ziggurat checkpoint``."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ziggurat.checkpoint.inspect.contents import TableContents
from ziggurat.checkpoint.inspect.differences import Difference
from ziggurat.checkpoint.inspect.inspection import CheckpointEntry, Inspection, Listing
from ziggurat.checkpoint.inspect.pruning import Pruned
from ziggurat.checkpoint.inspect.verification import Verification
from ziggurat.core.errors import printable
from ziggurat.planning.quantities import format_bytes
from ziggurat.report import numbers
from ziggurat.report.plan.rows import format_ranks

WIDTH, UNLIMITED = 110, 10_000
"""The least width of the tables in characters on a terminal, and their width without one; nothing is truncated."""
UNFINISHED = (
    "unfinished: still being written, or left by a dead training run; `ziggurat checkpoint prune` deletes the latter"
)
_STATES = {"unusable": "cannot be restored", "deleted": "deleted during the check", "newer": "of a newer format"}


def print_listing(found: Listing) -> None:
    """Prints a line for each checkpoint."""
    console = _console()
    _print_line(console, f"{found.folder}: {_counted(len(found.entries), 'checkpoint')}, {format_bytes(found.bytes)}")
    headers = ["step", "kind", "needs", "policy", "made (UTC)", "", "bits", "ranks", "rows", "written", "to restore"]
    if found.entries:
        console.print()
        console.print(_table(headers, [_entry_row(each) for each in found.entries], texts=range(1, 6)))
    problems = [f"step {each.step}: {each.problem}" for each in found.entries if each.problem]
    problems += [found.best_problem] if found.best_problem else []
    _notes(console, [*problems, *(f"{name}/: {UNFINISHED}" for name in found.unfinished)])


def print_inspection(found: Inspection) -> None:
    """Prints all details of a checkpoint."""
    console, entry = _console(), found.entry
    of = f" of step {entry.needs[0]:,}" if entry.needs else ""
    ranks = "" if entry.ranks is None else f", by {_counted(entry.ranks, 'rank')}"
    policy = f"policy {entry.policy}" if entry.policy else f"format {entry.format}"
    made = f", {_format_time(entry.made)} UTC" if entry.made else ""
    _print_line(console, found.where)
    _print_line(
        console, f"{entry.kind}{of}, {policy}, {entry.bits} bits{ranks}{made}{''.join(f', {m}' for m in entry.marks)}"
    )
    for line in (_progress_line(found), ", ".join(f"{name} {value}" for name, value in found.versions.items())):
        if line:
            _print_line(console, line)
    _print_line(console, _restore_chain(found))
    if entry.problem:
        _print_line(console, f"cannot be restored: {entry.problem}")
    plan = _placements(found)
    console.print()
    headers = ["table", "bits", *(["sharding", "on"] if plan else []), "rows", "dim", "rows here", "bytes here"]
    rows = [_table_row(part, plan.get(part.name, ("", "")), bool(plan)) for part in found.tables]
    console.print(_table(headers, rows, texts=range(4 if plan else 2)))
    notes = (found.plan or {}).get("notes")
    for note in notes if isinstance(notes, list) else ():
        _print_line(console, str(note))
    console.print()
    files = [
        [file.name, _abbreviated(file.tables) or "everything else", _or_dash(file.rank), format_bytes(file.bytes)]
        for file in found.files
    ]
    console.print(_table(["file", "rows of", "rank", "bytes"], files, texts=range(2)))


def print_verification(found: Verification) -> None:
    """Prints a verdict for each checkpoint, and the names of all damaged files."""
    console = _console()
    rows = [
        [str(each.step), _STATES.get(each.state, each.state), str(each.files), format_bytes(each.bytes)]
        for each in found.verdicts
    ]
    console.print(_table(["step", "state", "files", "bytes"], rows, texts=range(1, 2)))
    lines = [f"step {each.step}: {problem}" for each in found.verdicts for problem in each.problems]
    lines += [found.best_problem] if found.best_problem else []
    lines += [f"{name}/: {UNFINISHED}" for name in found.unfinished]
    lines += [f"{name}: not in any manifest" for name in found.foreign]
    _notes(console, lines)
    console.print()
    whole = [each.step for each in found.verdicts if each.state == "whole"]
    if found.whole:
        _print_line(console, "all files match their checksums")
    elif whole:
        _print_line(console, f"{len(whole)} of {len(found.verdicts)} whole; the newest whole one is step {whole[-1]}")
    else:
        _print_line(
            console,
            "no checkpoint is whole: restore the files named above; if they are lost, train again in another folder",
        )


def print_lines(lines: Sequence[str]) -> None:
    """Prints lines as they are."""
    console = _console()
    for line in lines:
        _print_line(console, line)


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table whose columns are text."""
    _console().print(_table(headers, rows, texts=range(len(headers))))


def print_differences(names: Sequence[str], found: Sequence[Difference]) -> None:
    """Prints a line for each tensor, tables first."""
    console = _console()
    for letter, name in zip("ab", names, strict=True):
        _print_line(console, f"{letter}: {name}")
    for tables, first, counted in ((True, "table", "rows"), (False, "tensor", "numbers")):
        rows = [_difference_row(each) for each in found if (each.group == "tables") is tables]
        if rows:
            console.print()
            headers = [first, "", counted, "differ", "max |b−a|", "mean |b−a|", "‖b−a‖/‖a‖"]
            console.print(_table(headers, rows, texts=range(2)))
    console.print()
    same = sum(each.state == "identical" for each in found)
    if same == len(found):
        _print_line(console, f"identical: {_counted(same, 'tensor')}, bit for bit")
    else:
        _print_line(console, f"{len(found) - same} of {_counted(len(found), 'tensor')} differ")


def print_pruned(found: Pruned, dry_run: bool) -> None:
    """Prints what was deleted, or would be."""
    console = _console()
    if not found.steps and not found.leftovers:
        _print_line(console, f"nothing to delete; {_kept(found)}")
        return
    verb = "would delete" if dry_run else "deleted"
    for step in found.steps:
        _print_line(console, f"{verb} step {step}")
    for name in found.leftovers:
        _print_line(console, f"{verb} {name}{' (unfinished)' if name.endswith('/') else ', which is in no manifest'}")
    _print_line(console, f"{format_bytes(found.bytes)} {'would be freed' if dry_run else 'freed'}; {_kept(found)}")


def _kept(found: Pruned) -> str:
    return f"kept: {', '.join(map(str, found.kept))}" if found.kept else "there is no checkpoint"


def _entry_row(entry: CheckpointEntry) -> list[str]:
    if entry.kind is None:
        return [
            str(entry.step),
            "unreadable",
            "",
            "",
            "",
            ", ".join(entry.marks),
            *["–"] * 3,
            format_bytes(entry.bytes),
            "–",
        ]
    restore = "–" if entry.restore_bytes is None else format_bytes(entry.restore_bytes)
    return [
        str(entry.step),
        entry.kind,
        _abbreviated([str(need) for need in entry.needs]),
        entry.policy or f"format {entry.format}",
        _format_time(entry.made) if entry.made else "–",
        ", ".join(entry.marks),
        _or_dash(entry.bits),
        _or_dash(entry.ranks),
        numbers.count(entry.rows),
        format_bytes(entry.bytes),
        restore,
    ]


def _placements(found: Inspection) -> dict[str, tuple[str, str]]:
    """Returns table -> how it was sharded and on which ranks, as far as the manifest has a plan."""
    placements = (found.plan or {}).get("placements")
    shown: dict[str, tuple[str, str]] = {}
    for table, placement in placements.items() if isinstance(placements, dict) else ():
        ranks = placement.get("ranks") if isinstance(placement, dict) else None
        if isinstance(ranks, list) and ranks and all(type(rank) is int for rank in ranks):
            shown[table] = str(placement.get("sharding")), format_ranks(ranks)
    return shown


def _table_row(part: TableContents, placement: tuple[str, str], planned: bool) -> list[str]:
    bits = ", ".join(f"{name} {'/'.join(map(str, each))}" for name, each in part.bits.items() if each)
    sizes = [numbers.count(part.shape.rows), str(part.shape.dim), numbers.count(part.rows), format_bytes(part.bytes)]
    return [part.name, bits, *(placement if planned else ()), *sizes]


def _difference_row(each: Difference) -> list[str]:
    name = each.name if each.group == "tables" else f"{each.group}/{each.name}"
    match each.state:
        case "first only" | "second only":
            return [name, f"only in {'a' if each.state == 'first only' else 'b'}", *["–"] * 5]
        case "shapes":
            one, other = ("×".join(map(str, shape or ())) or "one number" for shape in each.shapes)
            shapes = f"{one} in a, {other} in b" if one != other else "of another type"
            return [name, shapes, *["–"] * 5]
        case "identical":
            return [name, "identical", numbers.count(each.counted), "0", *["–"] * 3]
        case "different":
            figures = (each.largest, each.mean, each.relative)
            return [name, "", numbers.count(each.counted), numbers.count(each.different), *map(_figure, figures)]


def _figure(value: float) -> str:
    return "∞" if value == float("inf") else numbers.short(value)


def _progress_line(found: Inspection) -> str:
    """Describes the progress of training that the state records; empty if it records none."""
    at = found.state.get("progression")
    if not isinstance(at, dict):
        return ""
    match at.get("cursor"):
        case [int(epoch), int(rows)]:
            where = f"epoch {epoch:,}, {rows:,} rows into it"
        case _:
            where = ""
    match at:
        case {"best": float() as value, "best_step": int(step)}:
            best = f"best {value:.6g} at step {step:,}"
        case _:
            best = "not evaluated yet"
    early = "stopped early" if at.get("stopped_early") else ""
    return ", ".join(part for part in (f"step {found.entry.step:,}", where, best, early) if part)


def _restore_chain(found: Inspection) -> str:
    size = f"{format_bytes(found.entry.bytes)} here"
    if not found.entry.needs:
        return f"{size}; a restore reads nothing else"
    members = [f"step {each.step} ({each.kind}, {format_bytes(each.bytes)})" for each in found.chain[:-1]]
    restore = (
        "" if found.entry.restore_bytes is None else f"; a restore reads {format_bytes(found.entry.restore_bytes)}"
    )
    return f"{size}{restore}, first {_abbreviated(members)}" if members else f"{size}{restore}"


def _console() -> Console:
    """Returns a console as wide as the terminal; without one it is as wide as names may be, so that none is cut."""
    console = Console()
    return Console(width=max(console.width, WIDTH) if console.is_terminal else UNLIMITED)


def _print_line(console: Console, line: str) -> None:
    console.print(printable(line), highlight=False, soft_wrap=True, markup=False)


def _notes(console: Console, lines: Sequence[str]) -> None:
    if lines:
        console.print()
    for line in lines:
        _print_line(console, line)


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]], texts: range) -> Table:
    """Returns a table whose columns ``texts`` are text; the others are right-aligned numbers."""
    table = Table(*headers, box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(table.columns):
        column.justify = "left" if number in texts else "right"
        column.overflow = "fold"
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


def _abbreviated(words: Sequence[str]) -> str:
    """Joins words; of more than four, only the first two and the last."""
    if len(words) <= 4:
        return ", ".join(words)
    return f"{words[0]}, {words[1]}, … {words[-1]} ({len(words)})"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _or_dash(value: int | None) -> str:
    return "–" if value is None else str(value)


def _format_time(text: str) -> str:
    """Formats a time such as ``2026-01-31T12:00:00+00:00`` without its zone, which is always UTC."""
    return text.replace("T", " ").removesuffix("+00:00")
