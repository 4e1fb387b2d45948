"""The kernels of ``kernels.c``, compiled at their first use."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

from ziggurat.serving.artefact.row_codec import PRECISIONS, Precision
from ziggurat.storage.native import FLAGS as NATIVE_FLAGS
from ziggurat.storage.native import compiled

_SOURCE = Path(__file__).with_name("kernels.c")
FLAGS = (*(flag for flag in NATIVE_FLAGS if flag != "-O2"), "-O3", "-ffp-contract=off", "-pthread")
_int64, _pointer = ctypes.c_int64, ctypes.c_void_p


class Place(ctypes.Structure):
    """Where rows are: ``struct place``."""

    _fields_ = (
        ("data", _pointer), ("per_block", _int64), ("stride", _int64), ("width", _int64),
        ("dim", ctypes.c_int32), ("precision", ctypes.c_int32),
        ("overlay", _pointer), ("places", _pointer), ("log", _pointer),
    )  # fmt: skip

    def overlaid(self, overlay: int, places: int, log: int) -> Place:
        """Returns the same place with an overlay, whose three parts begin at these addresses."""
        found = Place.from_buffer_copy(self)
        found.overlay, found.places, found.log = overlay, places, log
        return found

    @classmethod
    def of(cls, address: int, per_block: int, stride: int, width: int, dim: int, precision: Precision) -> Place:
        """Returns the place of rows that begin at an address."""
        return cls(address, per_block, stride, width, dim, PRECISIONS.index(precision))


class Feature(ctypes.Structure):
    """The look-ups of a feature: ``struct feature``."""

    _fields_ = (
        ("place", Place), ("ids", _pointer), ("offsets", _pointer), ("count", _int64),
        ("mean", ctypes.c_int32), ("unused", ctypes.c_int32), ("out", _pointer),
    )  # fmt: skip


@cache
def kernels() -> ctypes.CDLL:
    """Returns the library.

    Raises:
        NativeUnavailable: it cannot be compiled or loaded; the message says why.
    """
    found = compiled(_SOURCE, FLAGS)
    found.zs_look_up.restype, found.zs_look_up.argtypes = ctypes.c_int, (_pointer, _int64)
    found.zs_gather.restype, found.zs_gather.argtypes = None, (_pointer, _int64, _pointer, _pointer)
    return found
