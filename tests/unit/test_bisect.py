"""The commit at which SpecPrefill starts or stops working, in real repositories whose truth is known."""

import subprocess
from pathlib import Path

import pytest

from specprefill_repro.bisect import Found, bisect
from specprefill_repro.errors import ReproError

IDENTITY = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.org", "-c", "commit.gpgsign=false"]


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *IDENTITY, "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def repository(folder: Path, outcomes: list[str]) -> list[str]:
    """One commit for each outcome; returns their names."""
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    commits = []
    for number, outcome in enumerate(outcomes):
        (folder / "engine.txt").write_text(f"{outcome}\n{number}")
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "--message", f"Change {number}")
        commits.append(git(folder, "rev-parse", "HEAD"))
    return commits


def trial(folder: Path) -> str:
    outcome = (folder / "engine.txt").read_text().splitlines()[0]
    (folder / "left.txt").write_text("by a trial")
    if outcome == "broken":
        raise ReproError("The server ended with status 1.", "It can't be imported.", "Nothing.")
    return outcome


def walk(tmp_path: Path, outcomes: list[str], good: int, bad: int) -> tuple[Found, list[str]]:
    commits = repository(tmp_path / "their repo", outcomes)
    return bisect(tmp_path / "their repo", commits[good], commits[bad], trial), commits


@pytest.mark.parametrize("breaks_at", [1, 4, 8])
def test_the_commit_that_breaks_it_is_found(tmp_path, breaks_at):
    outcomes = ["sparse"] * breaks_at + ["fallback: a reason"] * (9 - breaks_at)
    found, commits = walk(tmp_path, outcomes, 0, 8)
    assert found.first == (commits[breaks_at],)
    assert not found.starts
    assert len(found.tried) <= 6


def test_the_commit_that_mends_it_is_found_when_the_good_one_is_newer(tmp_path):
    found, commits = walk(tmp_path, ["dense", "dense", "fallback: x", "sparse", "sparse"], 4, 0)
    assert found.first == (commits[3],) and found.starts


def test_commits_that_cannot_be_run_are_skipped(tmp_path):
    outcomes = ["sparse", "sparse", "sparse", "broken", "dense", "dense", "dense"]
    found, commits = walk(tmp_path, outcomes, 0, 6)
    assert set(found.first) == {commits[3], commits[4]}
    (skipped,) = [each for each in found.tried if each.outcome is None]
    assert skipped.commit == commits[3] and "can't" not in skipped.said and "status 1" in skipped.said


def test_the_user_s_checkout_is_not_touched(tmp_path):
    commits = repository(tmp_path / "repo", ["sparse", "dense", "dense"])
    (tmp_path / "repo" / "engine.txt").write_text("not committed")
    before = {path: path.read_bytes() for path in (tmp_path / "repo").rglob("*") if path.is_file()}
    bisect(tmp_path / "repo", commits[0], "main", trial)
    assert {path: path.read_bytes() for path in (tmp_path / "repo").rglob("*") if path.is_file()} == before


def test_two_commits_that_do_not_differ_are_refused_with_what_they_gave(tmp_path):
    with pytest.raises(ReproError, match=r"to come out as sparse; it gave: dense"):
        walk(tmp_path, ["dense", "dense", "dense"], 0, 2)


def test_an_unknown_commit_no_repository_and_two_branches_are_refused(tmp_path):
    commits = repository(tmp_path / "repo", ["sparse", "dense"])
    with pytest.raises(ReproError, match="has no commit 'nowhere'"):
        bisect(tmp_path / "repo", "nowhere", commits[1], trial)
    with pytest.raises(ReproError, match="has no commit '--help'"):
        bisect(tmp_path / "repo", "--help", commits[1], trial)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ReproError, match="is not a git repository"):
        bisect(tmp_path / "empty", "a", "b", trial)
    git(tmp_path / "repo", "checkout", "--quiet", "-b", "side", commits[0])
    git(tmp_path / "repo", "commit", "--quiet", "--allow-empty", "--message", "Side")
    with pytest.raises(ReproError, match="Neither of side and main is an ancestor"):
        bisect(tmp_path / "repo", "side", "main", trial)
