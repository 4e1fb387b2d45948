"""Links and files that the docs name exist, and decisions have the agreed form and are listed in the index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
DECISIONS = REPOSITORY / "docs" / "decisions"
PAGES = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])
SECTIONS = ["Context", "Decision", "Evidence", "Rejected alternatives"]
FILES = sorted(DECISIONS.glob("[0-9]*.md"))


def plain(page: Path) -> str:
    """Returns the page without code: fenced and indented blocks, and spans between backticks."""
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text(encoding="utf-8"))
    return re.sub(r"`[^`\n]*`", "", re.sub(r"(?m)^    .*$", "", text))


def anchors(page: Path) -> set[str]:
    """Returns the anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"(?m)^#+ (.*)$", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_every_link_resolves(page: Path) -> None:
    broken: list[str] = []
    for link in re.findall(r"\]\(([^)\s]+)\)", plain(page)):
        if re.match(r"\w+://|mailto:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", [*FILES, REPOSITORY / "ARCHITECTURE.md"], ids=lambda page: page.name)
def test_every_file_that_is_named_exists(page: Path) -> None:
    named = re.findall(r"`((?:\w+/)+(?:\w+\.(?:py|c))?)`", page.read_text(encoding="utf-8"))
    roots = (REPOSITORY, REPOSITORY / "src" / "ziggurat")
    made_by_runs = {"dataset/", "encoders/", "tensorboard/"}
    absent = [name for name in named if not any((root / name).exists() for root in roots)]
    assert [name for name in absent if name not in made_by_runs] == []


def test_the_index_lists_every_decision() -> None:
    index = (DECISIONS / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| (\d{4}) \| \[(.*)\]\((\d{4}-[\w-]+\.md)\) \|", index)
    listed = {name: (number, title) for number, title, name in rows}
    assert sorted(name for _, _, name in rows) == [path.name for path in FILES]
    assert [path.name[:4] for path in FILES] == [f"{number:04d}" for number in range(1, len(FILES) + 1)]
    for path in FILES:
        number, title = listed[path.name]
        assert path.read_text(encoding="utf-8").startswith(f"# {number}. {title}\n")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_decision_has_the_agreed_form(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    status = re.search(r"(?m)^Status: (accepted|superseded by \d{4}) · \d{4}-\d\d-\d\d · rooms: (.+)$", text)
    assert status is not None
    rooms = re.findall(r"`(\w+)`", status[2])
    assert rooms
    assert all((REPOSITORY / "src" / "ziggurat" / room).is_dir() or room == "bench" for room in rooms)
    assert re.findall(r"(?m)^## (.*)$", text) == SECTIONS
    for section in SECTIONS:
        assert re.search(rf"## {section}\n\n\S", text), section
