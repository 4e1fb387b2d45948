from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from ziggurat.network.tls import MAKE_CERTIFICATE
from ziggurat.network.token import MAKE_TOKEN


@dataclass(frozen=True)
class Secrets:
    """The files that the documented commands make, for a server on this machine's loopback address."""

    token: Path
    certificate: Path
    key: Path


@pytest.fixture(scope="session")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Secrets:
    folder = tmp_path_factory.mktemp("secrets")
    for command in (MAKE_TOKEN, MAKE_CERTIFICATE.replace("DNS:$(hostname)", "IP:127.0.0.1")):
        subprocess.run(command, shell=True, cwd=folder, check=True, capture_output=True)
    return Secrets(folder / "reader.token", folder / "server.crt", folder / "server.key")
