"""Generates one chunk of a log, 65,536 rows as an Arrow table, from only the config and the chunk's number."""

from __future__ import annotations

import functools
import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ziggurat.data.synthetic.config import CategoricalColumn, GeneratorConfig, IdStyle, ManyColumn, NumericColumn
from ziggurat.data.synthetic.sampling import (
    Integers,
    Purpose,
    Quantiles,
    normal_scores,
    permute_ids,
    random_bits,
    ranks,
    uniforms,
    zipf_ranks,
)
from ziggurat.data.synthetic.truth import Planted, Signal, Tally, sigmoid

CHUNK_ROWS = 1 << 16
CALIBRATION_CHUNK = 1 << 48
START_SECONDS = 1_700_000_000

_HEX_PAIRS = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint16)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The rows of a chunk, and for each label their contribution to the Bayes figures."""

    table: pa.Table
    tallies: list[Tally]


class ChunkMaker:
    """Makes any chunk of a log. Thread-safe: its tables do not change after construction."""

    def __init__(self, config: GeneratorConfig) -> None:
        self.config = config
        self.planted = Planted(config)
        scores = normal_scores() if config.numeric else np.zeros(0)
        self.numbers = {
            column.name: Quantiles.of(column.lowest + column.median * np.exp(column.spread * scores))
            for column in config.numeric
        }
        self.ranks = {
            column.name: zipf_ranks(column.cardinality, column.exponent)
            for column in (*config.categorical, *config.many)
        }
        _, signals = self._features(CALIBRATION_CHUNK, CHUNK_ROWS)
        self.planted.calibrate(self.planted.logits(signals))

    def make(self, chunk: int) -> Chunk:
        """Makes chunk number ``chunk``; its first rows do not depend on the number of rows of the log."""
        rows = min(CHUNK_ROWS, self.config.rows - chunk * CHUNK_ROWS)
        assert rows > 0, chunk
        arrays, signals = self._features(chunk, rows)
        logits_TB = self.planted.logits(signals)
        named: dict[str, pa.Array] = {}
        if self.config.time is not None:
            named[self.config.time] = pa.array(self._times(chunk, rows))
        tallies: list[Tally] = []
        for number, label in enumerate(self.config.labels):
            draws = uniforms(random_bits(rows, self.config.seed, Purpose.LABELS, chunk, number))
            values = (draws < sigmoid(logits_TB[number])).astype(np.int64)
            named[label.name] = pa.array(values)
            tallies.append(Tally.of(logits_TB[number], values))
        return Chunk(pa.table({**named, **arrays}), tallies)

    def _features(self, chunk: int, rows: int) -> tuple[dict[str, pa.Array], dict[str, Signal]]:
        arrays: dict[str, pa.Array] = {}
        signals: dict[str, Signal] = {}
        for number, column in enumerate(self.config.features):
            match column:
                case NumericColumn():
                    arrays[column.name], signals[column.name] = self._numbers(column, chunk, number, rows)
                case CategoricalColumn():
                    arrays[column.name], signals[column.name] = self._categories(column, chunk, number, rows)
                case ManyColumn():
                    arrays[column.name], signals[column.name] = self._many(column, chunk, number, rows)
        return arrays, signals

    def _numbers(self, column: NumericColumn, chunk: int, number: int, rows: int) -> tuple[pa.Array, Signal]:
        exact = self.numbers[column.name](random_bits(rows, self.config.seed, Purpose.VALUES, chunk, number))
        values = np.floor(exact) if column.integer else np.rint(exact * 1000) / 1000
        missing = self._missing(column.missing, chunk, number, rows)
        signal = self.planted.of_numbers(column, np.where(missing, np.nan, values) if missing is not None else values)
        return pa.array(values.astype(np.int64) if column.integer else values, mask=missing), signal

    def _categories(self, column: CategoricalColumn, chunk: int, number: int, rows: int) -> tuple[pa.Array, Signal]:
        bits = random_bits(rows, self.config.seed, Purpose.VALUES, chunk, number)
        rank = ranks(self.ranks[column.name], bits, column.cardinality)
        missing = self._missing(column.missing, chunk, number, rows)
        array = format_ids(rank, missing, column.style, column.name, column.cardinality)
        return array, self.planted.of_ids(column, np.where(missing, -1, rank) if missing is not None else rank)

    def _many(self, column: ManyColumn, chunk: int, number: int, rows: int) -> tuple[pa.Array, Signal]:
        seed = self.config.seed
        share = uniforms(random_bits(rows, seed, Purpose.LENGTHS, chunk, number))
        lengths = column.shortest + np.floor(share * (column.longest - column.shortest + 1)).astype(np.int64)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        bits = random_bits(int(offsets[-1]), seed, Purpose.VALUES, chunk, number)
        rank = ranks(self.ranks[column.name], bits, column.cardinality)
        values = format_ids(rank, None, column.style, column.ids_of or column.name, column.cardinality)
        array = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)
        return array, self.planted.of_many(column, rank, offsets)

    def _missing(self, share: float, chunk: int, number: int, rows: int) -> npt.NDArray[np.bool_] | None:
        if share == 0:
            return None
        return uniforms(random_bits(rows, self.config.seed, Purpose.MISSING, chunk, number)) < share

    def _times(self, chunk: int, rows: int) -> Integers:
        """Returns non-decreasing times: the row's regular time plus a jitter of less than one row's interval."""
        row = chunk * CHUNK_ROWS + np.arange(rows) + uniforms(
            random_bits(rows, self.config.seed, Purpose.TIMES, chunk, 0)
        )  # fmt: skip
        return START_SECONDS + np.floor(row / self.config.rows_per_second).astype(np.int64)


def format_ids(
    rank: Integers, missing: npt.NDArray[np.bool_] | None, style: IdStyle, name: str, cardinality: int
) -> pa.Array:
    """Converts ranks to the ids that appear in the log; every style is one-to-one."""
    if style == "hex":
        return _hexadecimal(rank, missing, name)
    ids = permute_ids(rank, cardinality)
    if style == "integer":
        return pa.array(ids, mask=missing)
    texts = _dictionary(name, cardinality)
    if texts is not None:
        return texts.take(pa.array(ids, mask=missing))
    numbers = pa.array(ids, mask=missing).cast(pa.string())
    return pc.call_function("binary_join_element_wise", [pa.scalar(name), numbers, pa.scalar("_")])


@functools.lru_cache(maxsize=64)
def _dictionary(name: str, cardinality: int) -> pa.Array | None:
    return pa.array([f"{name}_{k}" for k in range(cardinality)]) if cardinality <= 1 << 16 else None


def _hexadecimal(rank: Integers, missing: npt.NDArray[np.bool_] | None, name: str) -> pa.Array:
    """Formats ids as 8 hexadecimal digits: a bijection of words (MurmurHash3 finaliser), offset by column name."""
    word = (rank + zlib.crc32(name.encode())).astype(np.uint32)
    word = (word ^ (word >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    word = (word ^ (word >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    word ^= word >> np.uint32(16)
    if missing is not None:
        word = word[~missing]
    digits = _HEX_PAIRS[word.astype(">u4").view(np.uint8)]
    present = np.ones(len(rank), np.int32) if missing is None else (~missing).astype(np.int32)
    offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(8 * present, dtype=np.int32)])
    validity = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.StringArray.from_buffers(len(rank), pa.py_buffer(offsets), pa.py_buffer(digits), validity)
