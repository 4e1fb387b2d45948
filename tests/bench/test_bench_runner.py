"""The runner with a tiny benchmark in a temporary git repository: the stored result, its state, and the docs."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench import docs, plots, results
from bench.benchmark import Benchmark, Context, Figure, Result, Target, judge
from bench.catalogue import BENCHMARKS
from bench.cli import ROOT, main
from ziggurat.core.errors import DataError


def tiny(samples: tuple[float, ...] = (3.0, 1.0, 2.0), name: str = "tiny") -> Benchmark:
    """Returns a benchmark with fixed samples that depends on a file and a package."""

    def run(context: Context) -> Result:
        context.say("measuring")
        notes = ("quick" if context.quick else "full", f"data: {context.data}")
        return Result(
            (Figure("speed", "rows/s", samples, "a note"), Figure("side", "s", (0.5,))),
            2,
            3,
            notes,
            {"peer": "9"},
            (("case", "speed"), ("first", "3")),
        )

    return Benchmark(name, "It is fast.", {"speed": Target(1.5)}, ("source.txt", "package"), run)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "package").mkdir()
    (tmp_path / "source.txt").write_text("one")
    (tmp_path / "package" / "part.py").write_text("part = 1")
    (tmp_path / "unrelated.txt").write_text("one")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-q", "-m", "first")
    return tmp_path


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", str(root), *arguments], check=True, capture_output=True, text=True).stdout


def run(root: Path, *arguments: str, benchmark: Benchmark | None = None) -> int:
    benchmark = benchmark or tiny()
    return main(arguments, {benchmark.name: benchmark}, root)


def test_a_run_stores_figures_and_their_provenance(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(repository, "run", "tiny", "--data", "somewhere") == 0

    stored = json.loads((repository / "bench" / "results" / "tiny.json").read_text())
    speed, side = stored["figures"]
    assert (speed["median"], speed["low"], speed["high"]) == (2.0, 1.5, 2.5)
    assert speed["samples"] == [3.0, 1.0, 2.0]
    assert (speed["target"], speed["holds"]) == ("≥ 1.5 rows/s", True)
    assert (side["median"], side["low"], side["high"], side["target"], side["holds"]) == (0.5, 0.5, 0.5, None, None)
    assert (stored["warmups"], stored["repeats"]) == (2, 3)
    assert stored["notes"] == ["full", "data: somewhere"]
    assert stored["commit"] == git(repository, "rev-parse", "HEAD").strip()
    assert stored["dirty"] is False
    assert stored["machine"]["cores"] >= 1
    assert stored["machine"]["memory_gib"] > 0
    assert stored["machine"]["cpu"]
    assert stored["versions"]["peer"] == "9"
    assert "polars" in stored["versions"]
    assert stored["date"].endswith("+00:00")
    assert capsys.readouterr().out.splitlines()[-1] == "tiny: holds: speed 2 rows/s (target ≥ 1.5 rows/s)"


def test_a_figure_below_its_target_falls_short_with_status_1(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(repository, "run", "tiny", benchmark=tiny((1.0, 1.2, 1.4))) == 1

    assert capsys.readouterr().out.splitlines()[-1] == "tiny: falls short: speed 1.2 rows/s (target ≥ 1.5 rows/s)"
    assert results.load(repository, "tiny")["holds"] is False  # type: ignore[index]


def test_a_smoke_run_is_skipped_with_a_reason_if_the_machine_lacks_something(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lacking = replace(tiny((0.1,)), missing=lambda: "no namespaces here")
    assert run(repository, "run", "tiny", "--quick", benchmark=lacking) == 0
    assert capsys.readouterr().out == "tiny: skipped: no namespaces here\n"
    assert run(repository, "run", "tiny", benchmark=lacking) == 1  # a full run is never skipped


def test_quick_judges_nothing_and_never_touches_a_stored_result(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(repository, "run", "tiny", "--quick", benchmark=tiny((0.1,))) == 0
    assert not results.result_path(repository, "tiny").exists()

    run(repository, "run", "tiny")
    before = results.result_path(repository, "tiny").read_bytes()
    assert run(repository, "run", "tiny", "--quick", benchmark=tiny((0.1,))) == 0
    assert results.result_path(repository, "tiny").read_bytes() == before
    assert capsys.readouterr().out.splitlines()[-1].startswith("tiny: quick run, not judged: speed 0.1 rows/s")


CHILD = """
import subprocess, sys, types
code = "import time; print(1, flush=True); time.sleep(600)"
sys.modules["bench.cli"] = types.SimpleNamespace(main=lambda: subprocess.run([sys.executable, "-S", "-c", code]))
import bench.__main__
"""


def test_sigterm_ends_what_a_benchmark_has_started() -> None:
    with subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        process.terminate()
        assert process.stdout.read() == b""  # the child, which has it open, has ended
        assert process.wait(60) == 128 + signal.SIGTERM


def test_status_follows_the_files_a_benchmark_depends_on(repository: Path) -> None:
    assert results.status(repository, tiny()).state == "never run"
    run(repository, "run", "tiny")
    found = results.status(repository, tiny())
    assert (found.state, found.holds, found.figure, found.target) == ("current", True, "speed 2 rows/s", "≥ 1.5 rows/s")

    (repository / "unrelated.txt").write_text("two")
    (repository / "package" / "__pycache__").mkdir()
    (repository / "package" / "__pycache__" / "part.pyc").write_bytes(b"x")
    assert results.status(repository, tiny()).state == "current"

    (repository / "package" / "part.py").write_text("part = 2")
    stale = results.status(repository, tiny())
    assert (stale.state, stale.changed) == ("stale", ("package/part.py",))

    (repository / "package" / "part.py").write_text("part = 1")
    assert results.status(repository, tiny()).state == "current"
    (repository / "package" / "more.py").write_text("")  # a new file git does not know yet
    assert results.status(repository, tiny()).state == "stale"


def test_a_result_measured_with_local_changes_is_marked_dirty(repository: Path) -> None:
    (repository / "unrelated.txt").write_text("two")
    run(repository, "run", "tiny")
    assert results.status(repository, tiny()).dirty is False

    (repository / "source.txt").write_text("two")
    run(repository, "run", "tiny")
    found = results.status(repository, tiny())
    assert (found.dirty, found.state) == (True, "current")
    git(repository, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-q", "-am", "second")
    assert results.status(repository, tiny()).state == "current"  # the same content, now committed


def test_status_judges_by_the_targets_of_today(repository: Path) -> None:
    run(repository, "run", "tiny")
    stricter = Benchmark("tiny", "It is fast.", {"speed": Target(4)}, ("source.txt", "package"), tiny().run)
    assert results.status(repository, stricter).holds is False


def test_status_prints_a_table_or_json(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(repository, "run", "tiny")
    (repository / "source.txt").write_text("two")
    capsys.readouterr()
    assert run(repository, "status") == 0
    table = capsys.readouterr().out
    assert "| tiny      | stale | holds   | speed 2 rows/s  | ≥ 1.5 rows/s |" in table
    assert "tiny: changed since the measurement: source.txt" in table

    assert run(repository, "status", "--json") == 0
    (status,) = json.loads(capsys.readouterr().out)
    assert (status["name"], status["state"], status["holds"]) == ("tiny", "stale", True)


def test_a_folder_without_git_still_stores_and_notices_changes(repository: Path) -> None:
    shutil.rmtree(repository / ".git")
    run(repository, "run", "tiny")
    assert results.load(repository, "tiny")["commit"] is None  # type: ignore[index]
    assert results.status(repository, tiny()).state == "current"
    (repository / "source.txt").write_text("two")
    status = results.status(repository, tiny())
    assert (status.state, status.reason) == ("unknown", "no commit is stored")


def test_a_result_that_cannot_be_compared_gives_the_reason(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(repository, "run", "tiny")
    path = results.result_path(repository, "tiny")
    stored = json.loads(path.read_text())
    (repository / "source.txt").write_text("two")
    path.write_text(json.dumps(stored | {"commit": "0" * 40}))
    assert results.status(repository, tiny()).reason == "commit 000000000000 is not in this clone"
    path.write_text(json.dumps(stored | {"dirty": True}))
    assert run(repository, "status") == 0
    assert "tiny: it was measured with uncommitted changes" in capsys.readouterr().out


def test_docs_rewrites_between_the_markers_and_nothing_else(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = docs.page_path(repository)
    page.parent.mkdir()
    page.write_text("before\n<!-- bench:tiny -->\nold\n<!-- /bench:tiny -->\nafter\n")
    assert run(repository, "docs") == 0
    assert "Not measured yet: `python -m bench run tiny`." in page.read_text()

    run(repository, "run", "tiny")
    assert run(repository, "docs") == 0
    text = page.read_text()
    assert text.startswith("before\n<!-- bench:tiny -->\n*It is fast.*\n\n| figure | median   |")
    assert text.endswith("</sub>\n<!-- /bench:tiny -->\nafter\n")
    assert "| speed  | 2 rows/s | 1.5 – 2.5   | ≥ 1.5 rows/s | holds | a note |" in text
    assert "<summary>Case by case</summary>\n\n| case  | speed |\n| ----- | ----- |\n| first | 3     |\n\n" in text
    assert git(repository, "rev-parse", "HEAD")[:12] in text
    assert run(repository, "docs") == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{page}: unchanged"


def test_docs_draw_the_same_picture_for_the_same_figures(tmp_path: Path) -> None:
    shared = {"unit": "s", "low": 1.0, "high": 3.0, "target": None}
    figures = [
        {"name": "ours", "median": 2.0, **shared},
        {"name": "theirs", "median": 2.5, **shared, "target": "≤ 9 s"},
    ]
    pages: list[str] = []
    for name in ("one.svg", "two.svg"):
        plots.draw(tmp_path / name, figures)
        pages.append((tmp_path / name).read_text(encoding="utf-8"))
    assert pages[0] == pages[1]
    assert all(f"<!-- {text} -->" in pages[0] for text in ("ours", "theirs", "2.5   (target ≤ 9 s)"))
    assert set(re.findall(r'clip-path="url\(#(.*?)\)"', pages[0])) == {"clip-0"}
    assert '<clipPath id="clip-0">' in pages[0]


def test_docs_without_markers_is_an_error_with_its_hint(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(repository, "docs") == 2
    docs.page_path(repository).parent.mkdir()
    docs.page_path(repository).write_text("nothing here")
    with pytest.raises(DataError, match="no markers for the benchmark 'tiny'"):
        docs.rewrite(repository, [tiny()])
    assert run(repository, "docs") == 2
    assert "<!-- bench:tiny -->" in capsys.readouterr().err


def test_list_names_every_benchmark_its_claim_and_targets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    for benchmark in BENCHMARKS.values():
        assert f"{benchmark.name}: {benchmark.claim}" in text
    assert main(["list", "--names"]) == 0
    assert capsys.readouterr().out.split() == list(BENCHMARKS)


@pytest.mark.parametrize("benchmark", BENCHMARKS.values(), ids=list(BENCHMARKS))
def test_what_a_benchmark_depends_on_exists_and_the_docs_have_its_markers(benchmark: Benchmark) -> None:
    root = Path(__file__).resolve().parents[2]
    for path in benchmark.depends_on:
        assert (root / path).exists(), path
    assert f"<!-- bench:{benchmark.name} -->" in docs.page_path(root).read_text()


def test_the_verdict_has_the_figure_with_the_smallest_margin() -> None:
    targets = {"fast": Target(2.0), "small": Target(10.0, "at most")}
    figures = (Figure("fast", "x", (4.0,)), Figure("small", "GiB", (8.0,)))
    verdict = judge(targets, figures)
    assert (verdict.holds, verdict.figure, verdict.target) == (True, "small 8 GiB", "≤ 10 GiB")

    worse = judge(targets, (Figure("fast", "x", (4.0,)), Figure("small", "GiB", (10.1,))))
    assert (worse.holds, worse.figure) == (False, "small 10.1 GiB")
    edge = judge({"fast": Target(4.0)}, figures)
    assert (edge.holds, edge.figure, edge.target) == (True, "fast 4×", "≥ 4×")


def test_a_rounding_error_misses_no_target() -> None:
    assert Target(20.0).holds(100 * (1 - 800 / 1000))
    assert Target(0.3, "at most").holds(0.1 + 0.2)
    assert not Target(20.0).holds(19.99999)


@pytest.mark.parametrize(("value", "holds"), [(0.2, True), (-0.2, False)])
def test_a_bound_of_zero_is_cleared_by_distance(value: float, holds: bool) -> None:
    verdict = judge({"gain": Target(0.0)}, (Figure("gain", "%", (value,)),))
    assert verdict.holds is holds
    assert Target(0.0).margin(value) == pytest.approx(1 + value)
    assert Target(0.0, "at most").margin(value) == pytest.approx(1 - value)


def test_less_than_nothing_clears_an_upper_bound_best() -> None:
    verdict = judge(
        {"cost": Target(3.0, "at most"), "more": Target(3.0, "at most")},
        (Figure("cost", "%", (-5.0,)), Figure("more", "%", (3.84,))),
    )
    assert verdict.figure == "more 3.84 %"


def test_a_value_of_zero_clears_an_upper_bound_by_any_factor() -> None:
    verdict = judge({"excess": Target(3.0, "at most")}, (Figure("excess", "%", (0.0,)),))
    assert (verdict.holds, verdict.figure) == (True, "excess 0 %")


def test_a_targeted_figure_that_was_not_measured_falls_short() -> None:
    verdict = judge({"fast": Target(2.0), "gone": Target(1.0)}, (Figure("fast", "x", (4.0,)),))
    assert (verdict.holds, verdict.figure) == (False, "gone not measured")
