"""How a config names the files of a log: their common folder, and their names in it or one pattern."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePath

from ziggurat.data.readers.source_files import SourceFile
from ziggurat.data.readers.suffixes import COMPRESSION
from ziggurat.data.readers.urls import UrlPath

_LISTED_FILES = 20


def common_folder(files: Sequence[SourceFile]) -> PurePath:
    """Returns the innermost folder of all files, a path or a URL; the working directory if they share none."""
    remote = [isinstance(file.stored, UrlPath) for file in files]
    if any(remote) and not all(remote):
        return Path()
    shared = Path(os.path.commonpath([file.stored.parent for file in files]) or ".")
    if not any(remote):
        return shared
    return UrlPath(shared) if len(shared.parts) > 1 else Path()


def listed_files(files: Sequence[SourceFile], folder: PurePath) -> list[str]:
    """Returns the names of the files in ``folder``, or one pattern if there are many."""
    if len(files) <= _LISTED_FILES:
        return [_name_in(file.path, folder) for file in files]
    first = files[0].path
    archives = {file.archive for file in files}
    if len(archives) == 1 and (archive := archives.pop()) is not None:
        return [_name_in(archive / f"*{first.suffix}", folder)]
    shared = _name_in(common_folder(files), folder)
    suffix = "".join(first.suffixes[-2:] if first.suffix.lower() in COMPRESSION else first.suffixes[-1:])
    return [f"**/*{suffix}" if shared in ("", ".") else f"{shared}/**/*{suffix}"]


def _name_in(path: PurePath, folder: PurePath) -> str:
    """Returns the name of a file in ``folder``, or the whole URL of a file that is in none."""
    if not isinstance(path, UrlPath):
        return os.path.relpath(path, folder)
    return str(path) if path.query else path.name_in(folder)
