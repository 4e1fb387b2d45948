from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ziggurat.training.process_group import process_group


@pytest.fixture(autouse=True, scope="module")
def _process_group() -> Iterator[None]:
    with process_group(torch.device("cpu")):
        yield
