"""A signal outside of training ends a command with one line and its own exit status; nothing is half-written."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_generating(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "ziggurat", "generate", "big.csv", "--rows", "50000000", "--shape", "demo"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(600):
        if any(tmp_path.iterdir()):
            break
        time.sleep(0.05)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert f"stopped by {number.name}" in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "big.csv").exists()
