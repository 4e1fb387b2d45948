"""Rows survive their encoding and their file, at every precision and width; what a precision cannot hold is said."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ziggurat.core.errors import ConfigError
from ziggurat.serving.artefact.packed_rows import BLOCK, PackedRows
from ziggurat.serving.artefact.row_codec import PRECISIONS, Precision, decode, encode, row_bytes

Floats = npt.NDArray[np.float32]
dims = st.one_of(st.integers(1, 70), st.sampled_from([1023, 1024, 1025, 2049, 4096, 9001]))
NUMBERS = [0.0, -0.0, 1e-45, -3e-39, 1.0, -1.5, 65504.0, -65504.0, 0.1]


def drawn(rows: int, dim: int, seed: int, scale: float = 1.0) -> Floats:
    random = np.random.default_rng(seed)
    found = random.normal(0, scale, (rows, dim)).astype(np.float32)
    found[random.random((rows, dim)) < 0.1] = random.choice(NUMBERS)
    return found


@given(st.sampled_from(PRECISIONS), st.integers(1, 40), dims, st.integers(0, 1000))
def test_a_file_gives_back_the_bytes_of_its_rows(precision: Precision, rows: int, dim: int, seed: int) -> None:
    found = drawn(rows, dim, seed)
    stored = encode(found, precision, "table 'shop'")
    assert stored.shape == (rows, row_bytes(dim, precision))
    layout, file = PackedRows(rows, row_bytes(dim, precision)), io.BytesIO()
    half = rows // 2 // layout.per_block * layout.per_block
    for part in (stored[:half], stored[half:]):
        layout.write(file, part)
    data = np.frombuffer(file.getvalue(), np.uint8)
    assert len(data) == layout.bytes
    assert len(data) % BLOCK == 0
    ids = np.random.default_rng(seed).integers(0, rows, 30)
    assert np.array_equal(layout.gather(data, ids), stored[ids])
    starts = layout.offsets(ids)
    places = starts[:, None] + np.arange(layout.width)
    assert np.array_equal(data[places], stored[ids])
    assert (starts // BLOCK == (starts + layout.width - 1) // BLOCK).all() or layout.width > BLOCK
    assert decode(stored, dim, precision).shape == (rows, dim)


@given(st.integers(1, 20), dims, st.integers(0, 1000))
def test_fp32_is_exact_and_others_are_as_close_as_they_can_be(rows: int, dim: int, seed: int) -> None:
    found = drawn(rows, dim, seed)

    def back(precision: Precision) -> Floats:
        return decode(encode(found, precision, "table 'shop'"), dim, precision)

    assert back("fp32").tobytes() == found.tobytes()
    assert np.array_equal(back("fp16"), found.astype(np.float16).astype(np.float32))
    span = found.max(1).astype(np.float64) - found.min(1)
    bound = span / 255 / 2 + 1e-6 * np.abs(found).max(1)
    assert (np.abs(back("int8") - found).max(1) <= bound).all()
    same = np.full((rows, dim), found[0, 0], np.float32)
    for precision in ("int8", "int4"):
        np.testing.assert_allclose(decode(encode(same, precision, ""), dim, precision), same, rtol=1e-6)
    rough = ((back("int4") - found) ** 2).sum(1)
    whole_span = (span / 15) ** 2 * dim / 4 + 1e-9 + 1e-6 * (found**2).sum(1)
    assert (rough <= whole_span * 1.01).all()  # clipping is used only where it lessens the squared error


@pytest.mark.parametrize("worst", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_number_that_is_none_is_refused(precision: Precision, worst: float) -> None:
    rows = np.zeros((5, 3), np.float32)
    rows[3, 1] = worst
    with pytest.raises(ConfigError, match=rf"table 'shop', row 1,003: holds .*{precision} cannot store\n.*checkpoint"):
        encode(rows, precision, "table 'shop'", 1_000)


def test_what_half_precision_cannot_hold_is_refused() -> None:
    rows = np.array([[1.0, 65504.0], [7e4, 0.0]], np.float32)
    with pytest.raises(ConfigError, match=r"row 1: holds 70000, which fp16 cannot store\n.*fp32 or int8"):
        encode(rows, "fp16", "table 'shop'")
    assert encode(rows[:1], "fp16", "").shape == (1, 4)


def test_golden_bytes() -> None:
    """The layout of rows that other programs read; docs/export.md describes it."""
    rows = np.array([[0.0, 1.0, -2.0], [0.5, 0.5, 0.5]], np.float32)
    assert encode(rows, "fp32", "").tobytes().hex() == "000000000000803f000000c00000003f0000003f0000003f"
    assert encode(rows, "fp16", "").tobytes().hex() == "0000003c00c0003800380038"
    low, step = np.float32(-2), np.float32(3) / np.float32(255)
    first = encode(rows, "int8", "")[0].tobytes()
    assert np.frombuffer(first[:8], "<f4").tolist() == [low, pytest.approx(step)]
    assert first[8:] == bytes([170, 255, 0])
    codes = encode(rows, "int4", "")[0].tobytes()[8:]
    assert codes == bytes([10 | 15 << 4, 0])
