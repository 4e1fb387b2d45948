"""Freed memory is reused: the tests count page faults in a separate process."""

from __future__ import annotations

import json
import platform
import subprocess
import sys

import pytest

MIB = 2**20
PAGES = 64 * MIB // 4096

CHILD = """
import json, resource, sys
import torch
from ziggurat.training.malloc_tuning import keep_freed_memory

kept = keep_freed_memory() if sys.argv[1] == "kept" else None
faults = []
for _ in range(20):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.zeros(64 << 18).add_(1)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(json.dumps([kept, faults]))
"""


def run_child(mode: str) -> tuple[bool | None, list[int]]:
    done = subprocess.run([sys.executable, "-c", CHILD, mode], check=True, capture_output=True, text=True)
    kept, faults = json.loads(done.stdout)
    return kept, faults


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the settings are glibc's")
def test_the_next_step_reuses_a_freed_block() -> None:
    """Allocates 64 MiB twenty times: every round causes page faults, or none does once the heap has its size."""
    _, returned = run_child("returned")
    kept, faults = run_child("kept")
    assert kept is True
    assert min(returned) > PAGES / 2
    assert faults[0] > PAGES / 2
    assert sum(faults[10:]) < PAGES / 2
