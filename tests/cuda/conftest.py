"""Tests of what runs on a GPU; without one they are skipped.

``ZIGGURAT_TEST_DEVICE=cpu`` runs them on the CPU instead, which tests the tests.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.conftest import config_values, write_log
from ziggurat.core.config import parse_config, set_by_path
from ziggurat.training.experiment import Experiment

for folder in ("interactions", "models", "optim"):  # their cases import one another by bare names
    sys.path.append(str(Path(__file__).parents[1] / folder))

WANTED = os.environ.get("ZIGGURAT_TEST_DEVICE", "cuda")
Make = Callable[..., Experiment]


@pytest.fixture(autouse=True, scope="session")
def _has_device() -> None:
    if WANTED == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")


@pytest.fixture(autouse=True)
def _usable_gpu() -> Iterator[None]:
    """Ends the process if a test left its GPU unusable, so that pytest-xdist runs the next tests in another one."""
    yield
    if WANTED == "cuda" and "PYTEST_XDIST_WORKER" in os.environ:
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            print(f"the GPU is unusable in this process: {error}", file=sys.stderr, flush=True)
            os._exit(1)


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if WANTED == "cuda" else torch.device("cpu")


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Returns a function that makes experiments over one small log; keyword ``a__b=c`` sets key ``a.b``.

    They are for the device under test. The working directory is an empty folder.
    """
    write_log(tmp_path / "log.csv")
    monkeypatch.chdir(tmp_path)

    def made(**changes: Any) -> Experiment:
        values = config_values(tmp_path)
        values["training"] |= {"device": WANTED, "log_every": 1}
        for path, value in changes.items():
            set_by_path(values, path.replace("__", "."), value)
        return parse_config(Experiment, values)

    return made


@contextlib.contextmanager
def without_gpu() -> Generator[None]:
    """Within it this process sees no GPU, so ``device: auto`` means the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        yield
