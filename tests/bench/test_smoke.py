"""`python -m bench smoke`."""

from __future__ import annotations

import pytest

from bench.smoke import smoke


def test_each_runs_and_a_failure_is_told_with_its_output(capfd: pytest.CaptureFixture[str]) -> None:
    assert smoke(["balance", "no_such_benchmark"]) == 1
    out, err = capfd.readouterr()
    assert "balance: quick run, not judged" in out
    assert "balance: took" in out
    assert "invalid choice: 'no_such_benchmark'" in out
    assert err == "failed: no_such_benchmark\n"
