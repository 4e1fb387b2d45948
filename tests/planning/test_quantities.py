"""Parsing and formatting of bytes and bandwidths."""

from __future__ import annotations

import pytest

from ziggurat.core.config import Config, parse_config
from ziggurat.core.errors import ConfigError
from ziggurat.planning.quantities import (
    Bandwidth,
    Bytes,
    format_bytes,
    format_seconds,
    parse_bandwidth,
    parse_bytes,
)


class Sized(Config):
    memory: Bytes = 1
    link: Bandwidth = 1.0


@pytest.mark.parametrize(
    ("text", "value"),
    [("8GB", 8 * 10**9), ("8 gb", 8 * 10**9), ("8GiB", 8 * 2**30), ("512 MiB", 2**29), ("1.5kB", 1500),
     ("2TB", 2 * 10**12), ("300", 300), ("300 bytes", 300), ("1e3MB", 10**9), (8e9, 8 * 10**9)],
)  # fmt: skip
def test_bytes_are_parsed(text: object, value: int) -> None:
    assert parse_config(Sized, {"memory": text}).memory == value
    assert isinstance(parse_config(Sized, {"memory": text}).memory, int)


@pytest.mark.parametrize("text", ["lots", "8 GB/s", "8 Gbit", "", "GB", "-8GB", "8 XB", "1e999GB", "0", 0, True, "3i"])
def test_invalid_sizes_are_refused_naming_their_key(text: object) -> None:
    with pytest.raises(ConfigError, match="memory: "):
        parse_config(Sized, {"memory": text})


@pytest.mark.parametrize(
    ("text", "value"),
    [("25Gbit/s", 3.125e9), ("900 GB/s", 9e11), ("100 Mbit", 1.25e7), ("1GiB/s", 2.0**30), (3, 3.0)],
)
def test_bandwidths_are_parsed(text: object, value: float) -> None:
    assert parse_config(Sized, {"link": text}).link == value


def test_an_ambiguous_small_b_is_refused() -> None:
    for text in ("25Gb/s", "25Gbps", "25 gb/s"):
        with pytest.raises(ValueError, match="may be bits or bytes; write Gbit/s or GB/s"):
            parse_bandwidth(text)
    for text in ("25GB", "fast"):
        with pytest.raises(ValueError, match="expected a bandwidth"):
            parse_bandwidth(text)


def test_sizes_and_times_are_formatted_with_three_digits() -> None:
    assert [format_bytes(value) for value in (0, 999, 1000, 12_340_000_000, 8e12, 999_600, 2e15)] == [
        "0 B", "999 B", "1 kB", "12.3 GB", "8 TB", "1 MB", "2,000 TB",
    ]  # fmt: skip
    assert [format_seconds(value) for value in (0.0, 3.2e-6, 0.00123, 0.0456, 1.5)] == [
        "0 µs", "3.2 µs", "1.23 ms", "45.6 ms", "1.5 s",
    ]  # fmt: skip


def test_formatted_sizes_can_be_parsed() -> None:
    for value in (1, 999, 25_000, 3 * 10**9, 7 * 10**12):
        assert parse_bytes(format_bytes(value)) == value
