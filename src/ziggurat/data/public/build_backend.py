"""A replacement for setuptools with which pip can download a source archive without running any of its code.

``pip download`` requires the metadata of the archive, for which it would import a source archive's build backend and
thus its ``setup.py``. :mod:`ziggurat.data.public.fetch` substitutes a copy of this file for setuptools in that call. It
returns the metadata from the ``PKG-INFO`` of the archive, in whose folder pip runs it.
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


__legacy__ = Backend()  # the name that pip uses for setuptools if an archive declares no backend
