"""A stand-in for setuptools that lets pip download a source archive without running any of its code.

``pip download`` insists on the metadata of what it fetched, which for a source archive means importing its build
backend and, through that, its ``setup.py``. :mod:`ziggurat.data.public.fetch` puts a copy of this file in the
place of setuptools for that one call; it answers with the ``PKG-INFO`` of the archive, in which pip runs it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any


class Backend:
    """The two hooks of PEP 517 that ``pip download`` calls."""

    def get_requires_for_build_wheel(self, config_settings: Any = None) -> list[str]:
        return []

    def prepare_metadata_for_build_wheel(self, metadata_directory: str, config_settings: Any = None) -> str:
        text = Path("PKG-INFO").read_text(encoding="utf-8")
        fields = {key: re.search(rf"^{key}: *(\S+)", text, re.MULTILINE) for key in ("Name", "Version")}
        name, version = (match.group(1) if match else "unknown" for match in fields.values())
        folder = Path(metadata_directory) / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        folder.joinpath("METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8"
        )
        return folder.name


__legacy__ = Backend()  # the name under which pip looks for setuptools where an archive declares no backend
