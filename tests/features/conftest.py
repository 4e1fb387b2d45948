"""Fixtures of several test modules of this folder."""

from __future__ import annotations

from typing import Any

import pytest

from ziggurat.data.readers import reader
from ziggurat.data.readers.columnar import reader as columnar_reader
from ziggurat.features.preparation import prepare as prepare_module


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes file ranges of 4 kB and blocks of 1 kB, so that the log consists of dozens of them."""
    for module in (reader, columnar_reader):
        monkeypatch.setattr(module, "FILE_RANGE_BYTES", 4096)
    open_source = prepare_module.open_source

    def open_with_small_blocks(*arguments: Any, **options: Any) -> Any:
        return open_source(*arguments, **{**options, "block_bytes": 1024})

    monkeypatch.setattr(prepare_module, "open_source", open_with_small_blocks)
