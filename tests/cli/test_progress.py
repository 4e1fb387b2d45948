"""Progress on a real terminal and without one: stages, amounts and figures; a line fits in 100 columns."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from ziggurat.cli.progress import console_progress

CODE = """
import time
from ziggurat.cli.progress import console_progress
with console_progress() as progress:
    progress.start("train", 2_000_000, "rows")
    for done in (500_000, 1_000_000, 2_000_000):
        progress.advance(done, loss=0.43061, ne=0.63063, val_ne=0.77508, val_auc=0.80761)
        time.sleep(0.15)
    progress.finish("stopped early")
    progress.note("a note")
"""


def test_plain_lines_without_a_terminal() -> None:
    result = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    lines = result.stderr.splitlines()
    figures = "loss 0.4306 ne 0.6306 val_ne 0.7751 val_auc 0.8076"
    assert lines[0].startswith(f"train: 2,000k/2,000k rows, {figures}, stopped early, took 0.")
    assert lines[1:] == ["a note"]
    assert "\x1b" not in result.stderr


def test_a_bar_on_a_terminal() -> None:
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "110"}
    with subprocess.Popen([sys.executable, "-c", CODE], stderr=follower, env=environment) as process:
        os.close(follower)
        shown = b""
        while True:
            try:
                chunk = os.read(leader, 4096)
            except OSError:  # the other end of the terminal is closed
                break
            if not chunk:
                break
            shown += chunk
        assert process.wait(30) == 0
    os.close(leader)
    text = shown.decode()
    for part in ("train", "/2,000k rows", "val_auc 0.8076", "stopped early", "a note"):
        assert part in text, text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (999, "999"), (12_345, "12.3k"), (1_234_567, "1,235k"), (5e7, "50.0M"), (None, "?")]
)
def test_amounts_are_short(value: float | None, text: str) -> None:
    from ziggurat.cli.progress import amount

    assert amount(value) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [(12_345, "12.3k rows/s"), (3.14, "3.1 rows/s"), (1 / 26, "2.3 rows/min"), (1 / 300, "12 rows/h"), (0, "0 rows/h")],
)
def test_slow_rates_are_told_by_longer_periods(rate: float, text: str) -> None:
    from ziggurat.cli.progress import speed

    assert speed(rate, "rows") == text


def test_the_last_message_replaces_its_figure(capsys: pytest.CaptureFixture[str]) -> None:
    with console_progress() as progress:
        progress.start("read", 10, "bytes")
        progress.advance(10, rows=0.0, parts=2.0)
        progress.finish("4,000 rows")
    assert capsys.readouterr().err.startswith("read: 10/10 bytes, parts 2, 4,000 rows, took ")
