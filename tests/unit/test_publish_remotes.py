"""GitHub Pages with plain git and a real remote on disk; a Space with the Hub's own client and a Hub on loopback."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hub_server import HubServer
from specprefill_repro.bundles.contents import checksums
from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.files import canonical_json
from specprefill_repro.publish.github_pages import GitBranch, remote_of
from specprefill_repro.publish.hf_space import Space
from specprefill_repro.publish.site import Listing, new_files, render_index

NAME = "jane/reports"
TABLES = ("trials.parquet", "trials.csv", "blocks.parquet", "estimates.json", "verdicts.json")


def bundle(number: int) -> dict[str, bytes]:
    """A bundle as far as a site looks into one."""
    summary = {
        "study": "demo", "title": "Demo", "machine": "M", "date": f"2026-01-0{number}T00:00:00+00:00", "records": 4,
        "answer": "Yes", "verdicts": {"reproduced": 1}, "synthetic": [],
    }  # fmt: skip
    named = {name: f"{name} {number}".encode() for name in ("index.html", *TABLES)} | {
        "bundle.json": canonical_json(summary)
    }
    return {**named, "SHA256SUMS": checksums(named)}


def add(destination: Any, number: int) -> tuple[str, dict[str, bytes]]:
    """Publish report `number` there; returns its folder and the files that were given."""
    entry, files = new_files(bundle(number), destination.read())
    destination.write(files, f"Add report {number}")
    return entry.folder, files


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Jane Doe")
    monkeypatch.setenv("GIT_AUTHOR_EMAIL", "jane@example.org")
    folder = tmp_path / "remote.git"
    git(tmp_path, "init", "--quiet", "--bare", str(folder))
    return folder


def checkout(remote: Path, into: Path) -> dict[str, bytes]:
    git(into.parent, "clone", "--quiet", "--branch", "gh-pages", str(remote), str(into))
    files = (file for file in into.rglob("*") if file.is_file() and ".git" not in file.relative_to(into).parts)
    return {str(file.relative_to(into)): file.read_bytes() for file in files}


def test_each_report_is_one_commit_and_the_old_ones_stay(remote: Path, tmp_path: Path) -> None:
    first, given = add(GitBranch(str(remote)), 1)
    second, _ = add(GitBranch(str(remote)), 2)
    found = checkout(remote, tmp_path / "served")
    assert all(found[path] == content for path, content in given.items() if path != "index.html")
    assert f"{second}/bundle.zip" in found and ".nojekyll" in found
    assert first.encode() in found["index.html"] and second.encode() in found["index.html"]
    log = git(remote, "log", "--format=%s|%an|%ae|%cn", "gh-pages").splitlines()
    assert [line.split("|")[0] for line in log] == ["Add report 2", "Add report 1"]
    assert "Jane" not in "".join(log) and "jane@" not in "".join(log)
    assert git(remote, "branch", "--format=%(refname:short)") == "gh-pages"


def test_other_branches_and_the_checkout_are_not_touched(remote: Path, tmp_path: Path) -> None:
    work = tmp_path / "project"
    git(tmp_path, "clone", "--quiet", str(remote), str(work))
    (work / "a.txt").write_text("a")
    git(work, "add", ".")
    git(work, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a")
    git(work, "push", "--quiet", "origin", "HEAD:main")
    before = git(remote, "rev-parse", "main")
    add(GitBranch(remote_of(work, None)), 1)
    assert git(remote, "rev-parse", "main") == before
    assert (
        git(work, "status", "--porcelain") == "" and git(work, "branch", "--format=%(refname:short)").count("\n") == 0
    )


def test_a_refused_push_leaves_the_old_site(remote: Path) -> None:
    add(GitBranch(str(remote)), 1)
    before = git(remote, "rev-parse", "gh-pages")
    hook = remote / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho no room >&2\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(ReproError, match="git push failed") as caught:
        add(GitBranch(str(remote)), 2)
    assert "unchanged" in caught.value.why
    assert git(remote, "rev-parse", "gh-pages") == before


def test_a_branch_that_moved_meanwhile_is_not_overwritten(remote: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(GitBranch(str(remote)), 1)
    original = GitBranch._ask

    def moves_first(self: GitBranch, repository: Path, *arguments: str) -> bytes:
        if arguments[0] == "push":
            monkeypatch.setattr(GitBranch, "_ask", original)
            add(GitBranch(str(remote)), 2)
        return original(self, repository, *arguments)

    monkeypatch.setattr(GitBranch, "_ask", moves_first)
    with pytest.raises(ReproError, match="git push failed"):
        add(GitBranch(str(remote)), 3)
    assert git(remote, "log", "-1", "--format=%s", "gh-pages") == "Add report 2"


@pytest.mark.parametrize("reports_before", [0, 1])
def test_two_publications_to_a_branch_at_once_lose_no_report(remote: Path, tmp_path: Path, reports_before: int) -> None:
    """Both read the branch before either writes: the later one is refused, and succeeds when it is run again."""
    for number in range(reports_before):
        add(GitBranch(str(remote)), 3 + number)
    one, other = GitBranch(str(remote)), GitBranch(str(remote))
    made = [new_files(bundle(number), branch.read()) for number, branch in ((1, one), (2, other))]
    one.write(made[0][1], "Add")
    with pytest.raises(ReproError, match="moved meanwhile, and nothing was pushed"):
        other.write(made[1][1], "Add")
    add(GitBranch(str(remote)), 2)
    page = checkout(remote, tmp_path / "served")["index.html"].decode()
    assert all(f'id="{entry.identity}"' in page for entry, _ in made) and page.count("<tr id=") == 2 + reports_before


def test_an_index_on_a_branch_that_says_more_than_its_reports_is_not_built_upon(remote: Path, tmp_path: Path) -> None:
    add(GitBranch(str(remote)), 1)
    work = tmp_path / "work"
    index = checkout(remote, work)["index.html"]
    (work / "index.html").write_bytes(index.replace(b'"records":4', b'"records":99'))
    git(work, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam", "edited")
    git(work, "push", "--quiet", "origin", "gh-pages")
    with pytest.raises(ReproError, match="says something else about the report"):
        add(GitBranch(str(remote)), 2)


def test_without_git_a_branch_is_an_error_in_three_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for ask in (lambda: remote_of(tmp_path, None), GitBranch("https://host/x").read):
        with pytest.raises(ReproError, match="no git on the PATH") as caught:
            ask()
        assert caught.value.exit_code is Exit.ENVIRONMENT


def test_a_branch_with_something_else_on_it_is_left_alone(remote: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    git(tmp_path, "clone", "--quiet", str(remote), str(work))
    (work / "mine.html").write_text("mine")
    git(work, "add", ".")
    git(work, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "mine")
    git(work, "push", "--quiet", "origin", "HEAD:gh-pages")
    with pytest.raises(ReproError, match="holds other files"):
        GitBranch(str(remote)).read()


def test_a_remote_that_is_not_there_is_an_error_in_three_parts_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(ReproError) as caught:
        GitBranch("http://jane:s3cret@127.0.0.1:9/x.git").read()
    assert "s3cret" not in str(caught.value) and "ls-remote failed" in caught.value.what
    for wrong in ("--upload-pack=touch x", ""):
        with pytest.raises(ReproError, match="no git remote"):
            remote_of(tmp_path, wrong)


def test_the_address_of_a_site_on_github_is_told() -> None:
    assert GitBranch("git@github.com:Jane/tool.git").address == "https://jane.github.io/tool/"
    assert GitBranch("https://github.com/jane/jane.github.io").address == "https://jane.github.io/"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with HubServer(tmp_path) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.address)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("HF_TOKEN", running.spaces.token)
        yield running


def test_a_space_is_made_and_gets_a_report_in_one_commit_each(hub: HubServer) -> None:
    first, given = add(Space(NAME), 1)
    made = hub.spaces.made[NAME]
    assert made.sdk == "static" and len(made.commits) == 2
    second, _ = add(Space(NAME), 2)
    assert len(made.commits) == 3
    now = made.commits[-1]
    assert all(now[path] == content for path, content in given.items() if path != "index.html")
    assert first.encode() in now["index.html"] and second.encode() in now["index.html"]
    assert b"sdk: static" in now["README.md"]
    assert Space(NAME).read().listing.reports[0].folder == second


def test_a_dry_run_needs_no_token_and_makes_no_space(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    space = Space(NAME)
    _, files = new_files(bundle(1), space.read())
    assert hub.spaces.made == {}
    with pytest.raises(ReproError, match="HF_TOKEN is not set"):
        space.write(files, "")
    assert hub.spaces.made == {}


def test_the_token_stands_in_no_file_no_error_and_nowhere_on_disk(hub: HubServer, tmp_path: Path) -> None:
    add(Space(NAME), 1)
    token = hub.spaces.token
    assert not any(token.encode() in content for content in hub.spaces.made[NAME].commits[-1].values())
    hub.spaces.refuses["commit"] = 403
    with pytest.raises(ReproError) as caught:
        add(Space(NAME), 2)
    assert token not in str(caught.value)
    assert not any(token.encode() in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


@pytest.mark.parametrize(("step", "status"), [("preupload", 403), ("batch", 403), ("commit", 400)])
def test_an_upload_that_fails_at_any_step_leaves_the_old_site(hub: HubServer, step: str, status: int) -> None:
    add(Space(NAME), 1)
    before = dict(hub.spaces.made[NAME].commits[-1])
    hub.spaces.refuses[step] = status
    with pytest.raises(ReproError, match="could not be read or written") as caught:
        add(Space(NAME), 2)
    assert "unchanged" in caught.value.why
    assert hub.spaces.made[NAME].commits[-1] == before and len(hub.spaces.made[NAME].commits) == 2


def test_a_space_that_changed_meanwhile_is_not_overwritten(hub: HubServer) -> None:
    add(Space(NAME), 1)
    made = hub.spaces.made[NAME]
    hub.spaces.before_commit = lambda: made.commits.append({**made.commits[-1], "other.txt": b"theirs"})
    with pytest.raises(ReproError, match="412") as caught:
        add(Space(NAME), 2)
    assert "changed meanwhile" in caught.value.why
    assert made.commits[-1]["other.txt"] == b"theirs"


def test_two_publications_that_make_a_space_at_once_lose_no_report(hub: HubServer) -> None:
    one, other = Space(NAME), Space(NAME)
    made = [new_files(bundle(number), space.read()) for number, space in ((1, one), (2, other))]
    one.write(made[0][1], "Add")
    with pytest.raises(ReproError, match="made by another publication meanwhile"):
        other.write(made[1][1], "Add")
    add(Space(NAME), 2)
    assert {entry.identity for entry in Space(NAME).read().listing.reports} == {entry.identity for entry, _ in made}


def test_a_space_in_use_for_something_else_is_left_alone(hub: HubServer) -> None:
    add(Space(NAME), 1)
    hub.spaces.made[NAME].commits.append({"app.py": b"", "README.md": b""})
    with pytest.raises(ReproError, match="holds other files"):
        Space(NAME).read()
    hub.spaces.made[NAME].commits.append({"index.html": b"mine"})
    with pytest.raises(ReproError, match="did not make"):
        Space(NAME).read()


@pytest.mark.parametrize("name", ["reports", "a/b/c", "../x", "a/..b\n", "-a/b"])
def test_what_is_no_name_of_a_space_is_refused(name: str) -> None:
    with pytest.raises(ReproError, match="not the name of a Space"):
        Space(name)


def test_an_empty_site_is_a_page_too() -> None:
    assert b"No report yet" in render_index(Listing())
    assert os.environ.get("HF_TOKEN") != "hf_" + "w" * 20
