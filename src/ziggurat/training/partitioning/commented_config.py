"""Writes the towers into the YAML file of an experiment, whose comments stay."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from ziggurat.core.files import atomic_file
from ziggurat.training.experiment import apply_overrides, parse_experiment
from ziggurat.training.partitioning.partition import SUFFIX

_FOUND = re.compile(r"^# Found by `ziggurat towers .*\n(# The most loaded tower has .*\n)?", re.MULTILINE)
"""The comment on towers that were found before: the command, then the summary of what it found."""


def write_with_towers(
    path: Path,
    source: Path,
    towers: Sequence[Sequence[str]],
    comment: str,
    overrides: Sequence[str] = (),
    data_folder: str | Path | None = None,
) -> None:
    """Writes the config of an experiment with these towers, atomically, with the comments of its file.

    It is named ``NAME-towers``. What a section ``towers`` says besides, such as the tower module, stays.

    Args:
        path: the file to write.
        source: the YAML file of the experiment, which has been loaded and checked before.
        towers: the features of each tower.
        comment: what to say before the section; lines. It replaces what an earlier call has said, but no other comment.
        overrides: overrides of its keys, as after ``--set``; they are written too.
        data_folder: a folder that replaces ``data.folder``, likewise.

    Raises:
        ConfigError: the towers contradict another section.
        DataError: the disk is full or the folder is not writable.
    """
    yaml = YAML()
    yaml.width = 120
    yaml.preserve_quotes = True
    yaml.indent(mapping=2, sequence=4, offset=2)
    text, replaced = _FOUND.subn("", source.read_text(encoding="utf-8"))
    values: Any = yaml.load(text)
    apply_overrides(values, overrides, data_folder)
    values["name"] = str(values["name"]).removesuffix(SUFFIX) + SUFFIX
    is_new = values.get("towers") is None
    section = CommentedMap() if is_new else values["towers"]
    section["partition"] = CommentedMap({"name": "given", "towers": CommentedSeq(map(_on_one_line, towers))})
    values["towers"] = section
    if is_new or replaced:
        values.yaml_set_comment_before_after_key("towers", before=comment)
    stream = io.StringIO()
    yaml.dump(values, stream)
    parse_experiment(stream.getvalue().encode(), path).check()
    with atomic_file(path) as temporary:
        temporary.write_text(stream.getvalue(), encoding="utf-8")


def _on_one_line(tower: Sequence[str]) -> CommentedSeq:
    names = CommentedSeq(tower)
    names.fa.set_flow_style()
    return names
