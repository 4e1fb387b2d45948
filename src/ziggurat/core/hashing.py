"""The hash function of preparation, splits and serving: vectorised, versioned, and tested against golden values.

Integers are mixed with the splitmix64 finaliser (Steele, Lea & Flood 2014, "Fast splittable pseudorandom number
generators"). Text is consumed as little-endian 8-byte words of its UTF-8 bytes, zero-padded, each of which the same
finaliser mixes into the state; the byte length seeds the state, so that padding cannot collide. The hash of an id
depends on its declared type: integer 12 and text "12" differ. This is why the config, not the file, declares the type.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

HASH_VERSION = 1

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)

UInt64Array = npt.NDArray[np.uint64]


def hash_integers(values: npt.NDArray[np.integer], seed: int = 0) -> UInt64Array:
    """Returns 64-bit hashes of integers, (n,) -> (n,)."""
    with np.errstate(over="ignore"):
        return _finalise(values.astype(np.int64).view(np.uint64) ^ _finalise_scalar(seed))


def hash_text(values: pa.Array, seed: int = 0) -> UInt64Array:
    """Returns 64-bit hashes of an Arrow string array without nulls, (n,) -> (n,)."""
    assert values.null_count == 0
    array = values.cast(pa.large_utf8())
    length = len(array)
    if length == 0:
        return np.empty(0, np.uint64)
    _, offset_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64)[array.offset : array.offset + length + 1]
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
    starts, sizes = offsets[:-1], np.diff(offsets)
    with np.errstate(over="ignore"):
        state = _finalise(sizes.view(np.uint64) ^ _finalise_scalar(seed))
        words = (sizes + 7) // 8
        byte = np.arange(8)
        for word in range(int(words.max(initial=0))):
            active = np.flatnonzero(words > word)
            position = starts[active, None] + 8 * word + byte
            inside = position < (starts + sizes)[active, None]
            chunk = np.where(inside, data[np.minimum(position, len(data) - 1)], 0).astype(np.uint8)
            state[active] = _finalise(state[active] ^ chunk.view("<u8")[:, 0].astype(np.uint64))
    return state


def hash_array(values: pa.Array, seed: int = 0) -> UInt64Array:
    """Returns 64-bit hashes of an Arrow integer or string array without nulls, (n,) -> (n,)."""
    if pa.types.is_integer(values.type):
        return hash_integers(values.to_numpy(zero_copy_only=False), seed)
    return hash_text(values, seed)


def to_buckets(hashes: UInt64Array, buckets: int) -> npt.NDArray[np.int64]:
    """Maps hashes evenly onto ``[0, buckets)``."""
    return (hashes % np.uint64(buckets)).astype(np.int64)


def to_unit_interval(hashes: UInt64Array) -> npt.NDArray[np.float64]:
    """Maps hashes to uniform floats in [0, 1), by their top 53 bits."""
    return (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53


def split_mix(key: int, positions: UInt64Array) -> UInt64Array:
    """Returns the words at these positions of the SplitMix64 stream that begins at ``key``, in the same shape."""
    with np.errstate(over="ignore"):
        return _finalise(np.uint64(key) + positions * _GOLDEN)


def _finalise(state: UInt64Array) -> UInt64Array:
    state = state + _GOLDEN
    state = (state ^ (state >> np.uint64(30))) * _MIX1
    state = (state ^ (state >> np.uint64(27))) * _MIX2
    return state ^ (state >> np.uint64(31))


def _finalise_scalar(seed: int) -> np.uint64:
    return _finalise(np.array([seed & 0xFFFFFFFFFFFFFFFF], np.uint64))[0]
