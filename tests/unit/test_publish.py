"""A site gets a report whole or not at all, keeps the old ones, and nothing private leaves unseen."""

import errno
import hashlib
import html.parser
import json
import os
import re
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from published_reports import STUDY, small_report
from specprefill_repro import stages, verify
from specprefill_repro.bundles import contents
from specprefill_repro.bundles.archive import write_archive
from specprefill_repro.bundles.contents import checksums, identity_of, make_bundle
from specprefill_repro.cli import app
from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.files import write_text
from specprefill_repro.project import Project
from specprefill_repro.publish import command
from specprefill_repro.publish import folder as folder_module
from specprefill_repro.publish.command import publish
from specprefill_repro.publish.folder import Folder
from specprefill_repro.publish.scan import Own, own_values, scan
from specprefill_repro.publish.site import Entry, Listing, Site, new_files, render_index


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = small_report(tmp_path_factory.mktemp("publish"))
    stages.report(STUDY, made)
    return made


@pytest.fixture(scope="module", autouse=True)
def one_recomputation_of_each_page() -> Any:
    """Recomputing takes a second; a page is recomputed again only when it is another one."""
    known: dict[bytes, verify.Verified] = {}
    original = contents.verify_page

    def once(path: Path) -> verify.Verified:
        text = path.read_bytes()
        if text not in known:
            known[text] = original(path)
        return known[text]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contents, "verify_page", once)
        yield


@pytest.fixture(scope="module")
def bundle(project: Project) -> dict[str, bytes]:
    return make_bundle(project, STUDY)[0]


def run(project: Project, target: Path, *codes: str, go: bool = True) -> str:
    lines: list[str] = []
    publish(project, STUDY, Folder(target), go, codes, lines.append)
    return "\n".join(lines)


def on_disk(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def links(page: bytes) -> list[str]:
    found = []

    class Reader(html.parser.HTMLParser):
        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            found.extend(value or "" for name, value in attributes if name in ("href", "src"))

    Reader().feed(page.decode())
    return [link for link in found if not link.startswith("data:")]


def test_a_dry_run_shows_every_file_and_writes_none(project: Project, tmp_path: Path) -> None:
    shown = run(project, tmp_path / "site", go=False)
    assert not (tmp_path / "site").exists()
    assert "Dry run: nothing was written" in shown
    for name in (
        "index.html",
        "bundle.zip",
        "| trials.parquet",
        "| SHA256SUMS",
        "| ro-crate-metadata.json",
        "trials.csv",
    ):
        assert name in shown


def test_a_published_report_verifies_where_it_was_copied_to(
    project: Project, bundle: dict[str, bytes], tmp_path: Path
) -> None:
    run(project, tmp_path / "site")
    moved = (tmp_path / "site").rename(tmp_path / "elsewhere")
    folder = moved / "reports" / identity_of(bundle)
    assert verify.verify_page(folder / "index.html").records == 12
    assert {path.name for path in folder.iterdir()} == {
        "index.html", "trials.parquet", "trials.csv", "blocks.parquet", "estimates.json", "verdicts.json", "bundle.zip"
    }  # fmt: skip
    for link in links((moved / "index.html").read_bytes()):
        assert (moved / link).is_file(), link


def test_the_sums_of_a_bundle_are_those_that_sha256sum_checks(
    project: Project, bundle: dict[str, bytes], tmp_path: Path
) -> None:
    run(project, tmp_path / "site")
    (archive,) = (tmp_path / "site").rglob("bundle.zip")
    zipfile.ZipFile(archive).extractall(tmp_path / "out")
    done = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path / "out", capture_output=True)
    assert done.returncode == 0 and done.stdout.count(b": OK") == len(bundle) - 1
    assert hashlib.sha256((tmp_path / "out" / "SHA256SUMS").read_bytes()).hexdigest()[:16] == archive.parent.name


def test_the_crate_is_read_by_the_library_of_its_format(bundle: dict[str, bytes], tmp_path: Path) -> None:
    from rocrate.rocrate import ROCrate

    for name, text in bundle.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(text)
    crate = ROCrate(tmp_path)
    described = {entity.id for entity in crate.data_entities}
    assert described == set(bundle) - {"ro-crate-metadata.json"}
    assert all((tmp_path / name).is_file() for name in described)
    assert "scripted" in crate.description.lower() and crate.root_dataset["license"].id.startswith("https://")


def test_the_same_report_gives_the_same_bundle_and_is_not_written_twice(
    project: Project, bundle: dict[str, bytes], tmp_path: Path
) -> None:
    assert make_bundle(project, STUDY)[0] == bundle
    run(project, tmp_path / "site")
    before = on_disk(tmp_path / "site")
    assert "already holds this report" in run(project, tmp_path / "site")
    assert on_disk(tmp_path / "site") == before


def test_an_older_report_keeps_its_link_and_its_bytes(
    project: Project, bundle: dict[str, bytes], tmp_path: Path
) -> None:
    run(project, tmp_path / "site")
    before = on_disk(tmp_path / "site")
    site = Folder(tmp_path / "site").read()
    newer = json.loads(bundle["bundle.json"]) | {"date": "2099-01-01T00:00:00.000+00:00", "title": "A later one"}
    other = bundle | {"bundle.json": json.dumps(newer).encode(), "SHA256SUMS": b"another"}
    entry, files = new_files(other, site)
    Folder(tmp_path / "site").write(files, "")
    after = on_disk(tmp_path / "site")
    assert {name for name in before if after[name] != before[name]} == {"index.html"}
    page = after["index.html"].decode()
    assert page.index(entry.identity) < page.index(identity_of(bundle))
    assert all((tmp_path / "site" / link).is_file() for link in links(after["index.html"]))


@pytest.mark.parametrize("fails_at", range(8))
def test_a_write_that_fails_anywhere_leaves_the_old_site(
    project: Project, bundle: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    target = tmp_path / "site"
    target.mkdir()
    old = render_index(Listing())
    (target / "index.html").write_bytes(old)
    written = []

    def full_disk(path: Path, text: bytes) -> None:
        if len(written) == fails_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(path)
        path.write_bytes(text)

    monkeypatch.setattr(folder_module, "write_bytes", full_disk)
    with pytest.raises((ReproError, OSError)):
        Folder(target).write(new_files(bundle, Folder(target).read())[1], "")
    assert (target / "index.html").read_bytes() == old
    assert not list(target.rglob(".new-*"))
    monkeypatch.undo()
    # The next try succeeds, whatever the failed one left.
    Folder(target).write(new_files(bundle, Folder(target).read())[1], "")
    assert all((target / link).is_file() for link in links((target / "index.html").read_bytes()))


def test_a_killed_copy_leaves_the_old_site(project: Project, bundle: dict[str, bytes], tmp_path: Path) -> None:
    target = tmp_path / "site"
    run(project, target)
    before = on_disk(target)
    files = {f"reports/0123456789abcdef/{name}": b"x" for name in ("index.html", "estimates.json", "verdicts.json")}
    child = os.fork()
    if child == 0:
        original = folder_module.write_bytes

        def dies(path: Path, text: bytes) -> None:
            original(path, text)
            if path.name == "estimates.json":
                os.kill(os.getpid(), signal.SIGKILL)

        folder_module.write_bytes = dies  # type: ignore[assignment]
        Folder(target).write({**files, "index.html": b"new"}, "")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    after = on_disk(target)
    assert {name: after[name] for name in before} == before
    assert not (target / "reports" / "0123456789abcdef").exists()


@pytest.mark.parametrize("name", ["index.html", "notes.txt"])
def test_a_folder_with_something_else_in_it_is_left_alone(project: Project, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(ReproError):
        run(project, tmp_path)
    assert on_disk(tmp_path) == {name: b"mine"}


def test_a_report_that_was_edited_is_not_published(project: Project, tmp_path: Path) -> None:
    page = project.report(STUDY)
    text = page.read_text()
    try:
        write_text(page, text.replace("<h1", "<h1 title='edited'", 1))
        with pytest.raises(ReproError, match="does not follow from its records"):
            run(project, tmp_path / "site")
    finally:
        write_text(page, text)
    with pytest.raises(ReproError, match="no report of the study"):
        publish(project, "nothing", Folder(tmp_path / "site"), True, [], print)
    assert not (tmp_path / "site").exists()


def test_a_lock_file_that_changed_since_is_left_out_and_said(project: Project) -> None:
    original = project.environment_lock.read_bytes()
    try:
        project.environment_lock.write_bytes(b"changed")
        files, remarks = make_bundle(project, STUDY)
    finally:
        project.environment_lock.write_bytes(original)
    assert "envs/pipeline.lock" not in files and "has changed since" in remarks[0]


SECRETS = {
    "home path": ["/Users/jane/models", "/home/jane/x", r"C:\\Users\\jane\\x", "/root/secret"],
    "token": [
        "hf_" + "aB3" * 11, "ghp_" + "x" * 36, "github_pat_" + "a1_" * 10, "sk-" + "q" * 40, "AKIA" + "Q" * 16,
        "Authorization: Bearer " + "z" * 30, "https://jane:secret@host/x", "-----BEGIN OPENSSH PRIVATE KEY-----",
    ],
    "host name": ["janes-mbp.local", "Janes-MacBook-Pro", "nas.lan"],
    "serial number": ["Serial Number (system): C02XK0ABJGH5", '"IOPlatformUUID: 8A1D2E3F-0000-1111-2222-333344445555'],
    "network address": ["a4:83:e7:01:02:03", "192.168.1.17"],
    "mail address": ["jane@example.org"],
}  # fmt: skip


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in SECRETS.items() for text in texts])
def test_what_is_private_is_found_with_its_place(kind: str, text: str) -> None:
    found = scan({"data.json": f'{{\n "a": "b",\n "note": "{text}"\n}}'.encode(), "other.txt": b"nothing"}, [])
    assert [(each.kind, each.path, each.line) for each in found if each.kind == kind] == [(kind, "data.json", 3)]
    if kind == "token":
        assert text not in "".join(map(str, found)), "a secret is not shown in full"


def test_own_names_are_found_letter_by_letter_and_only_as_whole_words() -> None:
    own = [Own("user name", "janed"), Own("host name", "wolke7"), Own("token", "s3cr3t-value"), Own("user name", "O'B")]
    text = b"Made by JANED on wolke7 with s3cr3t-value; janedoe and wolke70 are others"
    found = scan({"a.txt": text, "b.html": b"<p>O&#39;B</p>"}, own)
    assert sorted((each.kind, each.times) for each in found) == [
        ("host name", 1), ("token", 1), ("user name", 1), ("user name", 1)
    ]  # fmt: skip


def test_secrets_of_the_environment_are_looked_for_and_common_names_are_not() -> None:
    texts = {each.text for each in own_values({"USER": "root", "MY_API_KEY": "abcdefgh1", "HOMEPAGE": "abcdefgh2"})}
    assert "abcdefgh1" in texts and not texts & {"root", "abcdefgh2"}


def test_a_finding_stops_the_upload_until_it_is_acknowledged_by_its_code(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USER", "Scripted")  # a word of the report
    monkeypatch.setenv("MY_TOKEN", "machine-that-occurs-nowhere")
    target = tmp_path / "site"
    shown = run(project, target, go=False)
    assert "user name: 'Scripted'" in shown or "user name: 'scripted'" in shown
    codes = [line.split("[")[1][:8] for line in shown.splitlines() if line.strip().startswith("[")]
    with pytest.raises(ReproError, match="not acknowledged") as caught:
        run(project, target, *codes[:-1])
    assert codes[-1] in caught.value.next and not target.exists()
    run(project, target, *codes)
    assert (target / "index.html").is_file()


def entry_of(bundle: dict[str, bytes], **changes: Any) -> Entry:
    entry, _ = new_files(bundle, Site(Listing(), frozenset()))
    return entry.model_copy(update={"summary": entry.summary.model_copy(update=changes)})


def test_nothing_of_an_entry_becomes_markup(bundle: dict[str, bytes]) -> None:
    evil = "</script><script>alert(1)</script>\u202e"
    page = render_index(Listing(reports=(entry_of(bundle, title=evil, machine=evil, verdicts={evil: 1}),))).decode()
    assert page.count("<script") == 1 and page.count("</script>") == 1 and "alert(1)&lt;" in page
    assert "\u202e" not in page.split("<main>")[1].split("</main>")[0]


@pytest.mark.parametrize(
    "edit", [lambda page: page.replace(b'"identity":"', b'"identity":"../'), lambda page: page.replace(b"{", b"[")]
)
def test_an_index_that_was_edited_is_not_built_upon(
    bundle: dict[str, bytes], tmp_path: Path, edit: Callable[[bytes], bytes]
) -> None:
    page = render_index(Listing(reports=(entry_of(bundle),)))
    (tmp_path / "index.html").write_bytes(edit(page))
    with pytest.raises(ReproError):
        Folder(tmp_path).read()


def relabelled(files: dict[str, bytes], **changes: Any) -> dict[str, bytes]:
    """A bundle that says something else of itself, and is whole."""
    inner = {name: text for name, text in files.items() if name != "SHA256SUMS"}
    inner["bundle.json"] = json.dumps(json.loads(files["bundle.json"]) | changes).encode()
    return {**inner, "SHA256SUMS": checksums(inner)}


EDITS: dict[str, Callable[[bytes], bytes]] = {
    "more records": lambda page: page.replace(b'"records":12', b'"records":99'),
    "and in the table": lambda page: page.replace(b'"records":12', b'"records":99').replace(b"12 trials", b"99 trials"),
    "another answer": lambda page: page.replace(b'"answer":"Yes"', b'"answer":"Ja!"'),
    "another title": lambda page: page.replace(b'"title":"', b'"title":"Not '),
    "another size": lambda page: re.sub(rb'"bundle_bytes":\d', b'"bundle_bytes":9', page).replace(
        b'es":9', b'es":1', 1
    ),
    "another machine": lambda page: page.replace(b'"machine":"Scripted', b'"machine":"Faster'),
}
"""Of the list in the index; the reports beside it stay as they are."""


@pytest.mark.parametrize("edit", EDITS)
def test_an_index_that_says_something_else_than_its_reports_is_not_built_upon(
    project: Project, bundle: dict[str, bytes], tmp_path: Path, edit: str
) -> None:
    target = tmp_path / "site"
    run(project, target)
    index = target / "index.html"
    edited = EDITS[edit](index.read_bytes())
    assert edited != index.read_bytes()
    index.write_bytes(edited)
    before = on_disk(target)
    with pytest.raises(ReproError, match="says something else about the report") as caught:
        run(project, target)
    assert caught.value.exit_code is Exit.VERIFICATION and on_disk(target) == before


@pytest.mark.parametrize("change", ["edited", "cut", "no zip", "of another report"])
def test_a_bundle_on_a_site_that_was_changed_is_not_built_upon(
    project: Project, bundle: dict[str, bytes], tmp_path: Path, change: str
) -> None:
    target = tmp_path / "site"
    run(project, target)
    (archive,) = target.rglob("bundle.zip")
    archive.write_bytes(
        {
            "edited": write_archive({**bundle, "bundle.json": relabelled(bundle, records=99)["bundle.json"]}),
            "cut": archive.read_bytes()[:-30],
            "no zip": b"<html></html>",
            "of another report": write_archive(relabelled(bundle, title="Another")),
        }[change]
    )
    with pytest.raises(ReproError) as caught:
        run(project, target)
    assert caught.value.exit_code is Exit.VERIFICATION


def test_publications_to_one_folder_at_once_lose_no_report(
    project: Project, bundle: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has looked at the site, which is not there yet, before any of them writes."""
    together, target = threading.Barrier(3), tmp_path / "site"
    own = threading.local()
    original = Folder.read

    def all_look_first(self: Folder) -> Site:
        found = original(self)
        if not getattr(own, "looked", False):
            own.looked = True
            together.wait(20)
        return found

    monkeypatch.setattr(Folder, "read", all_look_first)
    monkeypatch.setattr(
        command, "make_bundle", lambda project, study: (relabelled(bundle, title=threading.current_thread().name), [])
    )
    names = ["First", "Second", "Second"]
    threads = [threading.Thread(target=run, args=(project, target), name=name) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    listed = original(Folder(target)).listing.reports
    assert sorted(entry.summary.title for entry in listed) == ["First", "Second"], "the same report counts once"
    assert len(list(target.glob("reports/*/index.html"))) == 2
    assert sorted(path.name for path in target.iterdir()) == ["index.html", "reports"], "a lock is not published"


def test_a_publication_waits_for_another_process_and_says_so(
    project: Project, bundle: dict[str, bytes], tmp_path: Path
) -> None:
    target = tmp_path / "site"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(target)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdin is not None and holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    lines: list[str] = []

    def let_go(line: str) -> None:
        lines.append(line)
        if line.startswith("Waiting for another publication"):
            holder.communicate("")

    publish(project, STUDY, Folder(target), True, [], let_go)
    holder.wait()
    assert any(line.startswith("Waiting for another publication") for line in lines)
    assert len(Folder(target).read().listing.reports) == 1


HOLDS = """
import sys
from pathlib import Path
from specprefill_repro.publish.folder import Folder
with Folder(Path(sys.argv[1])).held(print):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("place", ["~nosuchuser-anywhere/x", "/proc/x", "/", "long", "a file", "through a file"])
@pytest.mark.parametrize("go", [False, True])
def test_a_place_where_no_site_can_be_is_an_error_in_three_parts(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, go: bool
) -> None:
    (tmp_path / "file").write_text("mine")
    given = {
        "long": str(tmp_path / ("x" * 5000)),
        "a file": str(tmp_path / "file"),
        "through a file": str(tmp_path / "file" / "site"),
    }.get(place, place)
    monkeypatch.chdir(project.root)
    found = CliRunner().invoke(app, ["publish", STUDY, "--to", given, *(["--yes"] if go else [])])
    if place == "/proc/x" and not go:
        return  # nothing is made there before it is told to
    assert isinstance(found.exception, ReproError), found.exception
    error = found.exception
    assert error.exit_code in (Exit.BAD_INPUT, Exit.ENVIRONMENT)
    assert error.what and error.why and error.next and len(str(error)) < 1500
    assert on_disk(tmp_path) == {"file": b"mine"}


@pytest.mark.parametrize("name", ["../reports/scripted", "./scripted", "/etc", "..", "", "scripted/", "x" * 5000])
def test_a_path_is_no_name_of_a_study_to_publish(project: Project, tmp_path: Path, name: str) -> None:
    with pytest.raises(ReproError, match="no report of the study") as caught:
        publish(project, name, Folder(tmp_path / "site"), False, [], print)
    assert caught.value.exit_code is Exit.BAD_INPUT and len(str(caught.value)) < 500


def test_a_site_that_lost_a_report_is_not_built_upon(
    project: Project, bundle: dict[str, bytes], tmp_path: Path
) -> None:
    other = entry_of(bundle).model_copy(update={"identity": "0" * 16})
    (tmp_path / "index.html").write_bytes(render_index(Listing(reports=(other,))))
    with pytest.raises(ReproError, match="does not hold it"):
        run(project, tmp_path)


def test_the_command_line_publishes(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.root)
    found = CliRunner().invoke(app, ["publish", STUDY, "--to", str(tmp_path / "site"), "--yes"])
    assert found.exit_code == 0, found.output
    assert "Permanent link" in found.output and (tmp_path / "site" / "index.html").is_file()
