"""Every name that the package offers is there, and loads only when it is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ziggurat


@pytest.mark.parametrize("name", ziggurat.__all__)
def test_offered_names_load(name: str) -> None:
    offered = getattr(ziggurat, name)
    assert isinstance(offered, str) if name == "__version__" else callable(offered)


def test_importing_the_package_loads_no_torch() -> None:
    check = "import sys, ziggurat; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'ziggurat' has no attribute 'trian'"):
        _ = ziggurat.trian  # pyright: ignore[reportAttributeAccessIssue]
