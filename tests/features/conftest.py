"""What tests of several files of this folder share."""

from __future__ import annotations

from typing import Any

import pytest

from ziggurat.data.readers import reader
from ziggurat.data.readers.parquet import reader as parquet_reader
from ziggurat.features.preparation import prepare as prepare_module


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stretches of 4 kB and blocks of 1 kB, so that the log is some dozens of them."""
    for module in (reader, parquet_reader):
        monkeypatch.setattr(module, "FILE_RANGE_BYTES", 4096)
    opened = prepare_module.open_source

    def in_small_blocks(*arguments: Any, **options: Any) -> Any:
        return opened(*arguments, **{**options, "block_bytes": 1024})

    monkeypatch.setattr(prepare_module, "open_source", in_small_blocks)
