from __future__ import annotations

import socket
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.training.conftest import config_values, write_log


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Creates a log and ``exp.yaml``, which trains on it."""
    path = tmp_path_factory.mktemp("launch")
    write_log(path / "log.csv")
    values = config_values(path)
    values["training"].update(device="cpu", log_every=1)
    with (path / "exp.yaml").open("w", encoding="utf-8") as file:
        YAML().dump(values, file)
    return path


@pytest.fixture
def port() -> int:
    """Returns a free port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]
