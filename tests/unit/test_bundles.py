"""A bundle comes in whole and true, or not at all, whoever made it."""

import io
import json
import re
import shutil
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from published_reports import STUDY, small_report
from specprefill_repro import stages, verify
from specprefill_repro.bundles import archive
from specprefill_repro.bundles.archive import read_archive, write_archive
from specprefill_repro.bundles.contents import checksums, identity_of, make_bundle
from specprefill_repro.bundles.crate import METADATA, crate_metadata
from specprefill_repro.bundles.imported import import_bundle
from specprefill_repro.bundles.schema import Summary
from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.project import Project

Files = dict[str, bytes]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Files:
    made = small_report(tmp_path_factory.mktemp("bundles"))
    stages.report(STUDY, made)
    return make_bundle(made, STUDY)[0]


def resealed(files: Files, forged: Files | None = None) -> Files:
    """The bundle as somebody would make it who knows the format: description and sums made to fit."""
    inner = {name: content for name, content in files.items() if name not in ("SHA256SUMS", METADATA)} | (forged or {})
    inner[METADATA] = crate_metadata(inner, Summary.model_validate_json(files["bundle.json"]))
    return {**inner, "SHA256SUMS": checksums(inner)}


def refused(tmp_path: Path, content: bytes) -> str:
    (tmp_path / "bundle.zip").write_bytes(content)
    with pytest.raises(ReproError) as caught:
        import_bundle(Project(tmp_path / "project"), tmp_path / "bundle.zip")
    assert caught.value.exit_code is Exit.VERIFICATION
    kept = [path for path in (tmp_path / "project").rglob("*") if path.is_file()]
    assert kept == [], "nothing of a refused bundle is kept"
    return caught.value.what


def test_a_bundle_is_imported_under_its_hash_and_once(bundle: Files, tmp_path: Path) -> None:
    (tmp_path / "b.zip").write_bytes(write_archive(bundle))
    project = Project(tmp_path / "project")
    found = import_bundle(project, tmp_path / "b.zip")
    folder, summary = found.folder, found.summary
    assert folder == project.results / "imported" / identity_of(bundle)
    assert (summary.study, summary.records) == (STUDY, 12)
    assert (folder / "index.html").read_bytes() == bundle["index.html"]
    assert read_archive(folder / "bundle.zip") == bundle
    assert import_bundle(project, tmp_path / "b.zip").folder == folder
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


@pytest.mark.parametrize("name", ["index.html", "trials.parquet", "claims.json", "SHA256SUMS", METADATA])
def test_one_flipped_byte_is_caught(bundle: Files, tmp_path: Path, name: str) -> None:
    content = bytearray(bundle[name])
    content[len(content) // 2] ^= 1
    what = refused(tmp_path, write_archive({**bundle, name: bytes(content)}))
    assert "SHA256SUMS" in what


def change_json(name: str, edit: Callable[[dict[str, object]], None]) -> Callable[[Files], Files]:
    def change(files: Files) -> Files:
        value = json.loads(files[name])
        edit(value)
        return {**files, name: json.dumps(value).encode()}

    return change


def first_rows(table: bytes, rows: int) -> bytes:
    out = io.BytesIO()
    pq.write_table(pq.read_table(io.BytesIO(table)).slice(0, rows), out)
    return out.getvalue()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (change_json("bundle.json", lambda value: value.update(records=13)), "bundle.json says something else"),
        (change_json("bundle.json", lambda value: value.update(verdicts={"reproduced": 9})), "says something else"),
        (lambda files: {**files, "claims.json": b"[]"}, "claims.json says something else"),
        (change_json("verdicts.json", lambda value: value.update(verdicts=[])), "verdicts.json says something else"),
        (change_json("estimates.json", lambda value: value.update(cells=[])), "estimates.json says something else"),
        (lambda files: {**files, "trials.csv": b"record\n"}, "trials.csv says something else"),
        (lambda files: {**files, "trials.parquet": first_rows(files["trials.parquet"], 4)}, "trials.parquet says"),
        (lambda files: {**files, "blocks.parquet": first_rows(files["blocks.parquet"], 1)}, "blocks.parquet says"),
        (lambda files: {**files, "blocks.parquet": b"PAR1"}, "blocks.parquet says"),
        (lambda files: {**files, "index.html": files["index.html"].replace(b"<h1", b"<h1 lang=en")}, "does not follow"),
        (lambda files: {**files, "extra.exe": b"MZ"}, "which no bundle has"),
        (lambda files: {name: text for name, text in files.items() if name != "trials.parquet"}, "is missing"),
    ],
)
def test_a_bundle_that_was_changed_and_sealed_again_is_caught(
    bundle: Files, tmp_path: Path, change: Callable[[Files], Files], what: str
) -> None:
    assert what in refused(tmp_path, write_archive(resealed(change(bundle))))


def a_digit(files: Files, name: str) -> bytes:
    """The file with its last digit between two others replaced: a number that still is one."""
    if name.endswith(".parquet"):  # digits in it are those of its library's version
        return first_rows(files[name], 2)
    found = [*re.finditer(rb"(?<=\d)\d(?=\d)", files[name])][-1].start()
    other = b"7" if files[name][found : found + 1] != b"7" else b"3"
    return files[name][:found] + other + files[name][found + 1 :]


CONTENTS: dict[str, Callable[[Files, str], bytes]] = {
    "nothing": lambda files, name: b"",
    "zeros": lambda files, name: b"\0" * len(files[name]),
    "a formula": lambda files, name: b"=cmd|calc\n" + files[name][10:],
    "a changed digit": a_digit,
    "a changed word": lambda files, name: files[name].replace(b"r", b"x", 1),
    "a byte more": lambda files, name: files[name] + b"\n",
}
"""Ways to forge a file."""
TEXTS = ("trials.csv", "estimates.json", "verdicts.json", "claims.json", "gates.json", "models.json", "study.yaml")


@pytest.mark.parametrize("forged", CONTENTS)
@pytest.mark.parametrize("name", [*TEXTS, "trials.parquet", "blocks.parquet", "bundle.json"])
def test_no_file_of_a_bundle_can_be_another_one(
    bundle: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, forged: str
) -> None:
    """Whoever forges one file also makes description and sums fit; each must follow from the page all the same."""
    page_is_known(bundle, monkeypatch)
    content = CONTENTS[forged](bundle, name)
    assert content != bundle[name]
    files = resealed(bundle, {name: content})
    assert name in refused(tmp_path, write_archive(files))


def test_another_lock_file_than_the_one_of_the_trials_is_refused(
    bundle: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page_is_known(bundle, monkeypatch)
    what = refused(tmp_path, write_archive(resealed(bundle, {"envs/pipeline.lock": b"evil==1.0"})))
    assert "envs/pipeline.lock is not the one" in what


def page_is_known(bundle: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing the page takes a second, and here it is always the same one: the tables beside it are still checked."""
    page = bundle["index.html"].decode()
    monkeypatch.setattr(verify, "render_report", lambda data, trials: page)


def test_a_table_that_another_version_packed_is_taken(bundle: Files, tmp_path: Path) -> None:
    packed = io.BytesIO()
    pq.write_table(pq.read_table(io.BytesIO(bundle["trials.parquet"])), packed, compression="snappy")
    assert packed.getvalue() != bundle["trials.parquet"]
    (tmp_path / "b.zip").write_bytes(write_archive(resealed(bundle, {"trials.parquet": packed.getvalue()})))
    assert import_bundle(Project(tmp_path / "project"), tmp_path / "b.zip").unchecked == ()


def test_what_can_not_be_checked_is_named(bundle: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page_is_known(bundle, monkeypatch)
    files = resealed(bundle, {"envs/omlx.lock": b"anything"})
    files[METADATA] = files[METADATA].replace(b"The report", b"Not the report")
    files["SHA256SUMS"] = checksums(files)
    (tmp_path / "b.zip").write_bytes(write_archive(files))
    found = import_bundle(Project(tmp_path / "project"), tmp_path / "b.zip")
    assert found.unchecked == ("envs/omlx.lock", f"{METADATA} (the words in it)")
    shutil.rmtree(tmp_path / "project")
    assert "no bundle has" in refused(tmp_path, write_archive(resealed(bundle, {"envs/a/b.lock": b""})))


def entries(*made: tuple[str, int | None, bytes]) -> bytes:
    """A zip file with these entries: name, Unix mode (None: as usual), content."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as out:
        for name, mode, content in made:
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (0o100644 if mode is None else mode) << 16
            out.writestr(info, content)
    return file.getvalue()


@pytest.mark.parametrize(
    "name",
    ["../x", "a/../../x", "/etc/x", "C:/x", "a\\..\\x", "~/x", "a//b", "./x", "a/", "a\nb", "a\u202eb", "x" * 300],
)
def test_a_path_that_leads_out_or_hides_something_is_refused(tmp_path: Path, name: str) -> None:
    assert "path" in refused(tmp_path, entries(("index.html", None, b""), (name, None, b"")))


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFDIR])
def test_links_devices_and_folders_are_refused(tmp_path: Path, kind: int) -> None:
    assert "not a plain file" in refused(tmp_path, entries(("index.html", kind | 0o777, b"/etc/passwd")))


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("names", [("a", "a"), ("A", "a"), ("\u00e9", "e\u0301")])
def test_names_that_are_one_file_on_some_disk_are_refused(tmp_path: Path, names: tuple[str, str]) -> None:
    assert "stands twice" in refused(tmp_path, entries(*((name, None, b"") for name in names)))


def test_a_name_that_is_a_file_and_a_folder_is_refused(tmp_path: Path) -> None:
    assert "a file and a folder" in refused(tmp_path, entries(("a", None, b""), ("a/b", None, b"")))


def test_a_zip_bomb_is_refused_whatever_it_says_of_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_CONTENT_BYTES", 10_000)
    honest = entries(("index.html", None, b"\0" * 20_000))
    assert "unpacked it takes more" in refused(tmp_path, honest)
    size = (20_000).to_bytes(4, "little")
    assert honest.count(size) == 2
    lying = honest.replace(size, (100).to_bytes(4, "little"))
    assert "refused" in refused(tmp_path, lying)


def test_too_many_files_and_too_large_an_archive_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "at most 200" in refused(tmp_path, entries(*((f"f{number}", None, b"") for number in range(201))))
    monkeypatch.setattr(archive, "MAX_ARCHIVE_BYTES", 100)
    (tmp_path / "large.zip").write_bytes(b"PK" * 100)
    with pytest.raises(ReproError, match="larger than 100 bytes"):
        read_archive(tmp_path / "large.zip")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x1f\x8b" + b"\0" * 50, b"<html></html>"])
def test_what_is_no_zip_file_is_refused(tmp_path: Path, content: bytes) -> None:
    assert "can't be unpacked" in refused(tmp_path, content)


def test_an_encrypted_or_damaged_entry_is_refused(bundle: Files, tmp_path: Path) -> None:
    content = entries(("index.html", None, b"abc" * 100))
    assert "encrypted" in refused(
        tmp_path, content.replace(b"PK\x01\x02\x14\x03\x14\0\0\0", b"PK\x01\x02\x14\x03\x14\0\1\0")
    )
    whole = write_archive(bundle)
    assert "refused" in refused(tmp_path, whole[: len(whole) // 2])
