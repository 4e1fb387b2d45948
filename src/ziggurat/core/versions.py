"""The versions that were tested together: the single source for the installer, ``ziggurat doctor`` and run folders.

This file uses the standard library only and imports nothing of ziggurat: ``tools/install.py`` loads it before anything
is installed, and an old Python must get far enough to show the message that it is too old.

fbgemm's compiled kernels and torchrec's Python code each fit one torch release: fbgemm 1.7.0 and 1.9.0 fail to import
with torch 2.13.0. torchrec requires the CUDA build of fbgemm on any machine, so it is installed without its
dependencies, and fbgemm separately, in the flavour that the machine can use.
"""

from __future__ import annotations

PYTHON_MINIMUM: tuple[int, int] = (3, 11)

TORCH = "2.13.0"
TORCHREC = "1.8.0"
FBGEMM = "1.8.0"

#: flavour -> the distribution that carries fbgemm's kernels for it; both unpack to the package ``fbgemm_gpu``.
FBGEMM_DISTRIBUTION: dict[str, str] = {"cpu": "fbgemm-gpu-cpu", "cuda": "fbgemm-gpu"}

#: torchrec's own requirements but for fbgemm, whose flavour is chosen; requirements/torchrec-needs.txt has the same.
TORCHREC_NEEDS: tuple[str, ...] = (
    "tensordict",
    "torchmetrics==1.0.3",
    "tqdm",
    "pyre-extensions",
    "iopath",
    "psutil",
)

#: The distributions that ziggurat imports besides the engine, torchrec's own needs among them.
LIBRARIES: tuple[str, ...] = (
    "pydantic",
    "ruamel.yaml",
    "typer",
    "rich",
    "polars",
    "pyarrow",
    "numpy",
    "scipy",
    "scikit-learn",
    "lightgbm",
    "safetensors",
    "tensorboard",
    "matplotlib",
    "fsspec",
    "xxhash",
    "tensordict",
    "torchmetrics",
    "tqdm",
    "pyre-extensions",
    "iopath",
    "psutil",
)


#: distribution -> the top-level module it brings, where the two names differ.
MODULES: dict[str, str] = {"ruamel.yaml": "ruamel", "scikit-learn": "sklearn", "pyre-extensions": "pyre_extensions"}


def engine_requirements(flavour: str, torch_index: bool = False) -> list[str]:
    """Returns the pip requirements of torch and fbgemm for a flavour. torchrec is installed separately.

    For CUDA ``===`` rejects a local build such as ``2.13.0+cpu``, which pip would otherwise prefer; unless the user
    names an index of torch wheels, whose CUDA builds have local versions of their own.
    """
    equals = "===" if flavour == "cuda" and not torch_index else "=="
    return ["torch" + equals + TORCH, FBGEMM_DISTRIBUTION[flavour] + "==" + FBGEMM]
