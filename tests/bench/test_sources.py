"""Comparing the sources of a benchmark: changed code is distinguished from code that moved or was renamed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench.sources import Difference, compare, reach_of_commit, sources_here
from bench.trees import CommitMissing

ENTRY = "bench/speed.py"
FILES = {
    ENTRY: """
from ziggurat.engine import Engine

def run(rounds):
    return [Engine(width=4).turn(number) for number in range(rounds)]
""",
    "src/ziggurat/__init__.py": "",
    "src/ziggurat/engine.py": '''
"""An engine."""
import math

from ziggurat.parts import Wheel, check

FACTOR = 1.5

class Engine:
    """Turns."""

    def __init__(self, width: int) -> None:
        self.wheel = Wheel(width)

    def turn(self, number: int) -> float:
        """One turn."""
        check(number)
        angle = number * FACTOR
        self.wheel.push(angle)
        return math.sin(angle)

def unused():
    return 1
''',
    "src/ziggurat/parts.py": """
from ziggurat.unrelated import twice

class Wheel:
    def __init__(self, width):
        self.width = width

    def push(self, angle):
        self.angle = angle - self.width

def check(number):
    if number < 0:
        raise ValueError(f"{number}: too small")
    assert number < 9, "too large"

def pull():
    return twice(2)
""",
    "src/ziggurat/unrelated.py": "def twice(x):\n    return 2 * x\n",
    "src/ziggurat/data.yaml": "a: 1\n",
}
DEPENDS_ON = (ENTRY, "src/ziggurat/data.yaml")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-q", "-m", "first")
    return tmp_path


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", str(root), *arguments], check=True, capture_output=True, text=True).stdout


def edit(root: Path, path: str, *replacements: tuple[str, str]) -> None:
    text = (root / path).read_text()
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    (root / path).write_text(text)


def move(root: Path, old: str, new: str) -> None:
    (root / new).parent.mkdir(parents=True, exist_ok=True)
    (root / old).rename(root / new)


def difference(root: Path) -> Difference:
    """Returns the difference between the last commit and the working directory."""
    commit = git(root, "rev-parse", "HEAD").strip()
    return compare(reach_of_commit(root, commit).sources(DEPENDS_ON), sources_here(root, DEPENDS_ON))


ENGINE, PARTS = "src/ziggurat/engine.py", "src/ziggurat/parts.py"
SAME, MOVED = Difference((), places=False), Difference((), places=True)


def test_nothing_changed(root: Path) -> None:
    assert difference(root) == SAME


def test_sources_are_what_is_imported_and_declared(root: Path) -> None:
    found = sources_here(root, DEPENDS_ON)
    assert found.paths == (ENTRY, "src/ziggurat/data.yaml", ENGINE, PARTS, "src/ziggurat/unrelated.py")
    names = {each.name for each in found.units}
    assert {"bench.speed.run", "ziggurat.engine.Engine.turn", "ziggurat.parts.check"} <= names
    assert not names & {"ziggurat.engine.unused", "ziggurat.parts.pull", "ziggurat.unrelated.twice"}
    assert found.libraries == {"import math"}


def test_text_for_people_does_not_count_as_code(root: Path) -> None:
    edit(
        root,
        ENGINE,
        ('"""One turn."""', '"""Turns the wheel once."""\n        # By an angle.'),
        ("number: int", "number: float"),
        ("angle = number * FACTOR", "angle = (\n            number * FACTOR\n        )"),
    )
    edit(root, PARTS, ("{number}: too small", "received {number}, at least 0 is allowed"), ("too large", "at most 8"))
    assert difference(root) == SAME


def test_code_that_is_not_reached_may_change(root: Path) -> None:
    edit(root, ENGINE, ("return 1", "return 2"))
    edit(root, "src/ziggurat/unrelated.py", ("2 * x", "3 * x"))
    assert difference(root) == SAME


def test_a_moved_file_is_not_changed_code(root: Path) -> None:
    move(root, PARTS, "src/ziggurat/wheels/wheel.py")
    edit(root, ENGINE, ("ziggurat.parts", "ziggurat.wheels.wheel"))
    assert difference(root) == MOVED


def test_a_function_may_move_to_another_file(root: Path) -> None:
    check = "def check(number):\n" + CHECK
    edit(root, ENGINE, ("\nclass Engine", f"\n{check}\nclass Engine"), ("Wheel, check", "Wheel"))
    edit(root, PARTS, (check, ""))
    assert difference(root) == MOVED


CHECK = '    if number < 0:\n        raise ValueError(f"{number}: too small")\n    assert number < 9, "too large"\n'


def test_renamed_classes_methods_attributes_and_variables_are_not_changed_code(root: Path) -> None:
    edit(root, ENGINE, ("Wheel", "Rotor"), (".push", ".accelerate"), ("wheel", "rotor"), ("angle", "phase"))
    edit(root, PARTS, ("Wheel", "Rotor"), ("def push", "def accelerate"), ("self.width", "self.diameter"))
    edit(root, ENTRY, ("width=", "span="), ("number", "each"))
    edit(root, ENGINE, ("width", "span"))
    assert difference(root) == MOVED


@pytest.mark.parametrize(
    ("path", "old", "new", "changed"),
    [
        (ENGINE, "FACTOR = 1.5", "FACTOR = 1.6", "ziggurat.engine.FACTOR"),
        (ENGINE, "number * FACTOR", "number + FACTOR", "ziggurat.engine.Engine.turn"),
        (ENGINE, "math.sin", "math.cos", "ziggurat.engine.Engine.turn"),
        (ENGINE, "math.sin(angle)", "math.sin(number)", "ziggurat.engine.Engine.turn"),
        (PARTS, "angle - self.width", "self.width - angle", "ziggurat.parts.Wheel.push"),
        (PARTS, "number < 0", "number < 1", "ziggurat.parts.check"),
        (PARTS, "raise ValueError", "raise TypeError", "ziggurat.parts.check"),
        (ENTRY, "def run(rounds):", "def run(rounds):\n    import random", "bench.speed.run"),
        (ENTRY, "def run(rounds):", "def run(rounds):\n    from ziggurat import parts", "bench.speed.run"),
    ],
)
def test_changed_code_is_named(root: Path, path: str, old: str, new: str, changed: str) -> None:
    edit(root, path, (old, new))
    assert difference(root).code == (changed,)


def test_reordered_statements_are_a_change(root: Path) -> None:
    check, push = "        check(number)\n", "        self.wheel.push(angle)\n"
    edit(root, ENGINE, (check, ""), (push, check + push))
    assert difference(root).code == ("ziggurat.engine.Engine.turn",)


def test_a_call_of_another_function_is_not_a_rename(root: Path) -> None:
    edit(root, PARTS, ("def pull():", "def check_twice(number):\n    return number\n\ndef pull():"))
    git(root, "add", ".")
    git(root, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-q", "-m", "second")
    edit(root, ENGINE, ("check", "check_twice"))
    changed = difference(root).code
    assert "ziggurat.engine.Engine.turn" in changed


def test_new_and_deleted_code_is_named(root: Path) -> None:
    edit(root, PARTS, ("    def push", "    def stop(self):\n        self.angle = 0\n\n    def push"))
    assert difference(root).code == ("new: ziggurat.parts.Wheel.stop",)
    edit(root, PARTS, ("push(self, angle)", "close(self, other)"), ("= angle -", "= 2 * other -"))
    assert "removed: ziggurat.parts.Wheel.push" in difference(root).code


def test_a_changed_file_other_than_python_is_named(root: Path) -> None:
    edit(root, "src/ziggurat/data.yaml", ("1", "2"))
    assert difference(root).code == ("src/ziggurat/data.yaml",)


def test_modules_named_by_strings_are_sources(root: Path) -> None:
    edit(root, ENTRY, ("def run(rounds):", 'WORKER = "bench.worker"\n\ndef run(rounds):'))
    (root / "bench/worker.py").write_text("def main():\n    pass\n\nmain()\n")
    assert "bench/worker.py" in sources_here(root, DEPENDS_ON).paths


def test_a_commit_that_is_not_in_this_clone_is_reported(root: Path) -> None:
    with pytest.raises(CommitMissing, match="commit 0000000 is not in this clone"):
        reach_of_commit(root, "0000000")
