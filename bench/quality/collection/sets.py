"""Declares the sets of the collection, and which half of them the rules of ``init`` were chosen on.

The halves were written down before any rule was tried: rules may be chosen by the *validation* figures of the
development half alone. The held-out half is looked at when the benchmark is run. ``habits`` was added to the
development half on 2026-11-27, after the first run had shown a log of the held-out half on which the rules of that day
were far behind, and no log of its kind to choose better ones on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.quality.collection import archives, drawn, given
from ziggurat.core.errors import DataError

Half = Literal["development", "held out"]


@dataclass(frozen=True, slots=True)
class LabelledLog:
    """A log, with one label or several that are learned together.

    Attributes:
        name: its name on the board.
        source: the data set; several logs may be made of one.
        half: whether rules were chosen on it.
        label: the label's column, as given to ``ziggurat init --label``; None for those that ``init`` finds.
        write: writes the files into an empty folder; its second argument is the folder given with ``--data``.
        given: whether ``write`` reads that folder.
    """

    name: str
    source: str
    half: Half
    label: str | None
    write: Callable[[Path, Path | None], None]
    given: bool = False

    def files(self, folder: Path, data: Path | None) -> list[Path]:
        """Returns the files of the log, written into ``folder/NAME`` if they are not there.

        Raises:
            DataError: the log is read from ``--data``, which was not given or lacks it; or the package index cannot be
                reached.
        """
        own = folder / self.name
        if not (own / "complete").exists():
            if self.given and data is None:
                raise DataError(f"{self.name}: no data", f"give the folder that holds {self.source}: --data FOLDER")
            own.mkdir(parents=True, exist_ok=True)
            self.write(own, data)
            (own / "complete").touch()
        return sorted(path for path in own.iterdir() if path.name != "complete")


COLLECTION: tuple[LabelledLog, ...] = (
    LabelledLog("tutorial", "the tutorial's log", "development", None, drawn.tutorial),
    LabelledLog("rare_positives", "drawn: .25 % positives", "development", "conv", drawn.rare_positives),
    LabelledLog("movielens", "MovieLens-100K", "development", "liked", archives.movielens),
    LabelledLog("adult", "Adult", "development", "income", archives.adult),
    LabelledLog("open_bandit_all", "Open Bandit", "development", "click", archives.open_bandit("all")),
    LabelledLog("amazon_beauty", "Amazon Beauty", "development", "bought", given.amazon("Beauty"), given=True),
    LabelledLog("magic", "KEEL magic", "development", "Class", archives.keel("magic", "Class", "g")),
    LabelledLog("marketing", "KEEL marketing", "development", "high", archives.marketing),
    LabelledLog("habits", "drawn: apps used again and again", "development", "opened", drawn.habits),
    LabelledLog("frappe", "Frappe", "held out", "label", given.frappe, given=True),
    LabelledLog("census_income", "Census-Income", "held out", "income", archives.census("income")),
    LabelledLog("census_never_married", "Census-Income", "held out", "single", archives.census("single")),
    LabelledLog("open_bandit_men", "Open Bandit", "held out", "click", archives.open_bandit("men")),
    LabelledLog("open_bandit_women", "Open Bandit", "held out", "click", archives.open_bandit("women")),
    LabelledLog("kdd04_bio", "KDD04 bio", "held out", "target", archives.kdd04_bio),
    LabelledLog("amazon_toys", "Amazon Toys", "held out", "bought", given.amazon("Toys_and_Games"), given=True),
    LabelledLog("criteo_sample", "Criteo sample", "held out", "label", given.criteo, given=True),
    LabelledLog("clothing", "Women's clothing reviews", "held out", "recommended", archives.clothing),
    LabelledLog("phoneme", "KEEL phoneme", "held out", "Class", archives.keel("phoneme", "Class", "1")),
    LabelledLog("spambase", "KEEL spambase", "held out", "Class", archives.keel("spambase", "Class", "1")),
    LabelledLog("wide_ids", "drawn: wide ids and hashes", "held out", "installed", drawn.wide_ids),
)
"""The whole collection."""
