"""One thread for each of pytest's processes and of those that they start: more threads than cores wait for one another
in busy loops, which makes the whole several times slower. Garbage is looked for as seldom as in commands. And files of
long tests first, so that none is left for the end, when other processes have nothing to do. No test fails for being
slow on a busy machine.
"""

from __future__ import annotations

import gc
import os

import pytest
from hypothesis import settings

from tests.drills import DRILLS, FEWER_EXAMPLES
from ziggurat.cli.main import GC_THRESHOLD

gc.set_threshold(GC_THRESHOLD)

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # where a test asks for two threads
os.environ.setdefault("RAY_worker_niceness", "0")  # else tests of Ray wait for all other tests to end

LONG = ("search", "serving", "distributed", "training", "end_to_end", "bench", "features", "planning", "data")
"""Folders whose files go first."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--drills", choices=["no", "only"], help="leave out the tests in tests/drills.py, or run them alone"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Draws the same examples in each run of the quick suite; the drills, and runs of single files, draw others."""
    settings.register_profile("untimed", deadline=None, derandomize=config.option.drills == "no")
    settings.load_profile("untimed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(folder) if (folder := item.path.parent.name) in LONG else len(LONG))
    if config.option.drills is None:
        return
    ids = [item.nodeid for item in items]
    drills = {each for each in ids if each.startswith(tuple(DRILLS))}
    files = {each.partition("::")[0] for each in ids}
    named = (*DRILLS, *FEWER_EXAMPLES)
    wrong = [each for each in named if each.partition("::")[0] in files and not any(i.startswith(each) for i in ids)]
    if wrong and not any("::" in each for each in config.args):
        raise pytest.UsageError(f"tests/drills.py: no test is named {wrong[0]}")
    drawn = [each for each in ids if each.startswith(tuple(FEWER_EXAMPLES)) and each not in drills]
    if config.option.drills == "no":
        for item in items:
            _draw_fewer_examples(item)
        kept = {*ids} - drills
    else:
        kept = {*drills, *drawn}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
    items[:] = [item for item in items if item.nodeid in kept]


def _draw_fewer_examples(item: pytest.Item) -> None:
    for beginning, examples in FEWER_EXAMPLES.items():
        if item.nodeid.startswith(beginning):
            assert isinstance(item, pytest.Function)
            own = item.function._hypothesis_internal_use_settings
            item.function._hypothesis_internal_use_settings = settings(own, max_examples=examples)
