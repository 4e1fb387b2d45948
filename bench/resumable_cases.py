"""Results of the cases of a long benchmark, stored one by one, so that an interrupted benchmark can resume.

A benchmark of many hours keeps its cases in the repository, so that another day or machine goes on
(:func:`kept_in_repository`): each line has the commit at which the case was measured.
"""

from __future__ import annotations

import datetime as dt
import multiprocessing
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from bench import provenance
from ziggurat.training.placement.kernel_benchmark import append_json_line, read_json_lines

_ROOT = Path(__file__).resolve().parents[1]


class ResumableCases:
    """The cases measured so far, in a file with one line per case.

    Args:
        path: the file.
        sources: digest of the code that is measured; lines of other sources are ignored.

    Raises:
        DataError: a line of the file is damaged, except a last line that was being written when the process ended.
    """

    def __init__(self, path: Path, sources: str) -> None:
        self._path, self._sources = path, sources
        self._found = {line["case"]: line for line in read_json_lines(path) if line["sources"] == sources}
        self._used: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, case: str) -> bool:
        return case in self._found

    def get(self, case: str, measure: Callable[[], Any]) -> Any:
        """Returns the stored result of a case, or measures and stores it; a result is a JSON value."""
        if case not in self._found:
            changed = " with changes" if provenance.dirty_files(_ROOT, ("src",)) else ""
            self._found[case] = {
                "case": case,
                "sources": self._sources,
                "commit": (provenance.commit(_ROOT) or "none")[:12] + changed,
                "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
                "measured": measure(),
            }
            self._path.parent.mkdir(parents=True, exist_ok=True)
            append_json_line(self._path, self._found[case])
        self._used[case] = self._found[case].get("commit", "not stored")
        return self._found[case]["measured"]

    @property
    def commits(self) -> str:
        """The commits at which the cases that :meth:`get` returned were measured, with how many of each: a sentence."""
        counted = Counter(self._used.values())
        return "cases were measured at commit " + ", ".join(f"{commit} ({count})" for commit, count in counted.items())

    def forget(self) -> None:
        """Deletes the file; to be called when the benchmark's result is complete."""
        self._path.unlink()


def measure_in_processes(
    cases: ResumableCases,
    pool: ProcessPoolExecutor,
    missing: Mapping[str, Callable[[], Any]],
    say: Callable[[int, str, Any], None],
) -> None:
    """Measures cases in the processes of a pool, and stores each as soon as it has ended.

    Args:
        cases: where they are stored.
        pool: its processes, which end with this call; an error, SIGTERM or Ctrl-C ends them in the middle of a case.
        missing: case -> measures it; picklable.
        say: called with the number of cases so far, the case, and what was measured.
    """
    with pool:
        try:
            started = {pool.submit(measure): case for case, measure in missing.items()}
            for number, done in enumerate(as_completed(started), 1):
                case, measured = started[done], done.result()
                cases.get(case, lambda measured=measured: measured)
                say(number, case, measured)
        except BaseException:  # else the end of the pool waits for the cases that have begun
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.kill()  # a search in it would take SIGTERM as a request to save
            raise


def kept_in_repository(name: str) -> Path:
    """Returns the file of the cases of a benchmark that takes longer than a day's session: they are committed."""
    return _ROOT / "bench" / "results" / "cases" / f"{name}.jsonl"
