#!/usr/bin/env python3
"""Installs the peers into `.venv-peers`, separate from ziggurat's environment: `python3.11 bench/peers/install.py`.

The script needs Python 3.11 or newer without any packages, and about 2 GB of disk space. If pip does not find torch's
CPU wheel by default, set TORCH_INDEX to an index that has it, as for ziggurat's own installer.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = ROOT / ".venv-peers"
REQUIREMENTS = (Path(__file__).with_name("requirements.txt"), ROOT / "bench" / "serving" / "peers" / "requirements.txt")
PEERS = ("deepctr-torch==0.3.0", "fuxictr==2.3.10")
OPTIMIZERS, OPTIMIZERS_FOLDER = "pytorch_optimizer==4.1.0", ROOT / ".peers-optimizers"
"""Installed in a separate folder, because these optimizers run in ziggurat's environment, with the same torch."""


def main() -> int:
    torch = runpy.run_path(str(ROOT / "src" / "ziggurat" / "core" / "versions.py"))["TORCH"]
    python = ENVIRONMENT / "bin" / "python"
    index = ["--index-url", os.environ["TORCH_INDEX"]] if os.environ.get("TORCH_INDEX") else []
    steps = [
        [sys.executable, "-m", "venv", str(ENVIRONMENT)],
        [*_pip(python), *index, f"torch=={torch}"],
        [*_pip(python), *(part for path in REQUIREMENTS for part in ("-r", str(path)))],
        [*_pip(python), "--no-deps", *PEERS],
        [*_pip(python), "--no-deps", "--target", str(OPTIMIZERS_FOLDER), OPTIMIZERS],
    ]
    for step in steps:
        print("peers:", " ".join(step), flush=True)
        status = subprocess.run(step, check=False).returncode
        if status != 0:
            print(f"peers: the step above failed (status {status}); fix its error and run this again", file=sys.stderr)
            return status
    check = f"import torch; assert torch.__version__.split('+')[0] == {torch!r}, torch.__version__"
    return subprocess.run([str(python), "-c", check], check=False).returncode


def _pip(python: Path) -> list[str]:
    return [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]


if __name__ == "__main__":
    sys.exit(main())
