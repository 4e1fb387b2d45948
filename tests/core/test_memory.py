"""A failed allocation of any library becomes OutOfMemory; other errors pass unchanged."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ziggurat.core.errors import OutOfMemory
from ziggurat.core.memory import explained_out_of_memory

LIMITED = """
import resource, sys
import numpy, torch
from ziggurat.core.errors import OutOfMemory
from ziggurat.core.memory import explained_out_of_memory
size = 64 << 30
ask = {
    "torch": lambda: torch.empty(size, dtype=torch.uint8).fill_(1),
    "numpy": lambda: numpy.empty(size, dtype=numpy.uint8),
    "python": lambda: bytearray(size),
}[sys.argv[1]]
resource.setrlimit(resource.RLIMIT_AS, (32 << 30, 32 << 30))
try:
    with explained_out_of_memory("take less"):
        ask()
except OutOfMemory as error:
    print(error.problem, "|", error.hint)
"""


@pytest.mark.parametrize(
    ("library", "message"),
    [
        ("torch", "ran out of memory: 64.00 GiB more were asked for | take less"),
        ("numpy", "ran out of memory (Unable to allocate 64.0 GiB"),
        ("python", "ran out of memory | take less"),
    ],
)
def test_a_failed_allocation_becomes_out_of_memory(library: str, message: str) -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED, library], text=True, capture_output=True, check=True)
    assert done.stdout.startswith(message)


def test_other_errors_pass() -> None:
    with pytest.raises(RuntimeError, match="shapes") as raised, explained_out_of_memory("take less"):
        raise RuntimeError("shapes differ")
    assert not isinstance(raised.value, OutOfMemory)
