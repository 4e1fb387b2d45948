"""The house keeps its order: folders of at most 25 modules, and files below 450 lines."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "ziggurat"
MODULES, LINES = 25, 450


def test_no_folder_has_more_modules_than_one_can_survey() -> None:
    folders = [SOURCE, *(path for path in SOURCE.rglob("*") if path.is_dir())]
    sizes = {folder: len([path for path in folder.glob("*.py") if path.name != "__init__.py"]) for folder in folders}
    assert len(sizes) > 30
    assert {str(folder): size for folder, size in sizes.items() if size > MODULES} == {}


def test_no_file_is_longer_than_one_reads_at_a_time() -> None:
    files = [path for room in ("src", "tests", "bench", "tools", "examples") for path in (ROOT / room).rglob("*.py")]
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files if ".cache" not in path.parts}
    assert len(lines) > 800
    assert {str(path): count for path, count in lines.items() if count >= LINES} == {}


def test_no_two_files_of_tests_have_one_name() -> None:
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(names) > 250
    assert [name for name, count in names.items() if count > 1] == []  # pytest imports them by their names alone
