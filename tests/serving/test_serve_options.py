"""Options of ``ziggurat serve`` that would do nothing are refused by name, before anything is read or started."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from ziggurat.cli.main import app
from ziggurat.core.errors import ConfigError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--candidates", "50"], "--candidates: does nothing without --memory"),
        (["--pooled-any-order", "--follow", "runs/a"], "--pooled-any-order: does nothing without --memory"),
        (["--poll", "1"], "--poll: does nothing without --follow"),
        (["--versions", "elsewhere", "--memory", "1MB"], "--versions: does nothing without --follow"),
        (["--no-log", "--log-features"], "--log-features: does nothing without --log"),
        (["--ray", "local", "--log-features"], "--log-features and --ray"),
        (["--ray", "local", "--memory", "1MB"], "--memory and --ray"),
        (["--ray", "local", "--no-compile"], "--compile and --ray"),
        (["--ray", "local", "--check-tables"], "--check-tables and --ray"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(options: list[str], message: str) -> None:
    found = CliRunner().invoke(app, ["serve", "nowhere", *options])
    assert isinstance(found.exception, ConfigError)
    assert found.exception.problem == message
