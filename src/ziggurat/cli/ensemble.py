"""``ziggurat ensemble``: makes an ensemble of the snapshots of a run, or of several runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ziggurat.cli.options import PreparedInput

if TYPE_CHECKING:
    from ziggurat.training.ensemble.build import BuiltEnsemble


def command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN [RUN...]",
            help="Run folders: one with snapshots, or several on the same prepared data.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The folder of the ensemble; replaces one.", show_default=False)
    ],
    equal: Annotated[
        bool, typer.Option("--equal", help="Give all checkpoints equal weights instead of choosing them.")
    ] = False,
    prepared: PreparedInput = None,
) -> None:
    """Average the logits of several checkpoints, with weights chosen on validation.

    A run with a cyclic schedule contributes its snapshots, another its best checkpoint. The runs have to stay where
    they are. `evaluate`, `predict`, `export`, `serve` and `verify` take the folder of an ensemble as that of a run.

    \b
    Examples:
      ziggurat ensemble runs/shop --out ensembles/shop
      ziggurat ensemble runs/a runs/b runs/c --out ensembles/abc
      ziggurat evaluate ensembles/abc
    """
    from ziggurat.cli.progress import console_progress
    from ziggurat.training.api import build_ensemble

    with console_progress() as progress:
        built = build_ensemble([*runs], out, equal_weights=equal, prepared=prepared, progress=progress)
    print_ensemble(built)


def print_ensemble(built: BuiltEnsemble) -> None:
    """Prints the weights and validation losses of all checkpoints that were considered, and the folder."""
    from ziggurat.cli.printed.checkpoint_tables import print_lines, print_table

    if built.chosen:
        header = ["checkpoint"]
        for label in built.chosen:
            of = f" {label}" if len(built.chosen) > 1 else ""
            header += [f"weight{of}", f"validation loss{of}"]
        rows = [[str(each)] for each in built.candidates]
        for chosen in built.chosen.values():
            for row, weight, loss in zip(rows, chosen.weights_M, chosen.losses_M, strict=True):
                row += [f"{weight:.2f}", f"{loss:.6f}"]
        total = ["ensemble"]
        for chosen in built.chosen.values():
            total += ["", f"{chosen.loss:.6f}"]
        print_table(header, [*rows, total])
    members = len(built.ensemble.members)
    if members == 1:
        print_lines(["no other checkpoint makes the best one better on validation: it is the only member"])
    print_lines([f"{built.ensemble.folder}: {members} of {len(built.candidates)} checkpoints"])
