"""The commit at which SpecPrefill starts or stops working, in real repositories whose truth is known."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from specprefill_repro.bisect import claim
from specprefill_repro.bisect.claim import bisect_claim
from specprefill_repro.bisect.walk import Found, bisect
from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.project import Project
from tiny_model import write_tiny_model

STAND_IN = Path(__file__).resolve().parent.parent / "stand_in_server.py"

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


@pytest.mark.parametrize("breaks_at", [1, 8])
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


def test_a_git_that_does_not_end_is_named(tmp_path, monkeypatch):
    repository(tmp_path / "source", ["sparse", "dense"])
    monkeypatch.setattr("specprefill_repro.bisect.walk.GIT_SECONDS", 1e-6)
    with pytest.raises(ReproError, match="git rev-parse took more than"):
        bisect(tmp_path / "source", "HEAD~1", "HEAD", trial)


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


STUDY = """
name: tiny
title: Tiny
question: Does it run?
seed: 7
pairs: {pair: {target: target, draft: draft}}
prompts: {kinds: [number]}
comparisons:
  - {pair: pair, treatment: placebo, lengths: [400], blocks: 1}
  - {pair: pair, treatment: speculative, lengths: [400], keep: [0.3, 0.5], blocks: 1}
claims: [mine]
"""
CLAIM = """
claims:
  - id: mine
    kind: expectation
    statement: SpecPrefill runs.
    source: this test
    source_url: null
    location: here
    access: own
    metric: speedup
    value: null
    unit: ratio
    trials: null
    spread: null
    rule: shown
    conditions: {pair: pair, treatment: speculative, keep: 0.5}
"""
MODELS = """
models:
  target: {source: {kind: local, path: weights/target}, license: none}
  draft: {source: {kind: local, path: weights/draft}, license: none}
"""


@pytest.fixture
def tiny_project(tmp_path: Path, real_project: Project) -> Project:
    root = tmp_path / "project"
    for name, content in (("studies/tiny", STUDY), ("claims/mine", CLAIM), ("models", MODELS)):
        file = root / "config" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    for name in ("claims/contradictions.yaml", "engine_history.yaml"):
        shutil.copy(real_project.config / name, root / "config" / name)
    write_tiny_model(root / "weights" / "target", seed=1, layers=2)
    write_tiny_model(root / "weights" / "draft", seed=2, layers=1)
    return Project(root)


def servers(folder: Path, faults: list[list[str]]) -> list[str]:
    """A repository with a package `omlx`, whose command is the stand-in with the faults of each commit."""
    (folder / "omlx").mkdir(parents=True)
    git(folder, "init", "--quiet")
    (folder / "omlx" / "__init__.py").touch()
    (folder / "omlx" / "_version.py").write_text('__version__ = "0.3.9.dev1"\n')
    commits = []
    for number, of_commit in enumerate(faults):
        command = [sys.executable, str(STAND_IN), "--as", "omlx==0.3.9.dev1"]
        command += [part for fault in of_commit for part in ("--fault", fault)]
        code = f"import os, sys\nos.execv({sys.executable!r}, {command!r} + sys.argv[1:])  # {number}\n"
        (folder / "omlx" / "cli.py").write_text(code)
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "--message", f"Change {number}")
        commits.append(git(folder, "rev-parse", "HEAD"))
    return commits


def test_real_servers_of_a_repository_are_walked_and_judged_by_their_logs(tmp_path, tiny_project, monkeypatch):
    # The machine's lease lies there; whoever measures on this machine now is not waited for.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    faults: list[list[str]] = [[], ["scoring-fails"], ["scoring-fails"]]
    commits = servers(tmp_path / "their source", faults)
    said: list[str] = []
    found = bisect_claim(
        tiny_project, "mine", "omlx", tmp_path / "their source", sys.executable, commits[0], "HEAD", say=said.append
    )
    assert found.first == (commits[1],) and not found.starts
    assert "keep0.5" in said[0] and "target with draft, 400 tokens" in said[0]
    outcomes = {tried.commit: tried.outcome for tried in found.tried}
    assert outcomes[commits[0]] == "sparse"
    assert outcomes[commits[1]].startswith("fallback: SpecPrefill scoring failed")


def test_a_claim_that_no_cell_is_about_and_an_engine_without_commits_are_refused(tmp_path, tiny_project):
    with pytest.raises(ReproError, match="engine 'vllm-mlx' can't be walked"):
        bisect_claim(tiny_project, "mine", "vllm-mlx", tmp_path, None, "a", "b")
    (tiny_project.config / "claims" / "mine.yaml").write_text(CLAIM.replace("keep: 0.5", "keep: 0.1"))
    with pytest.raises(ReproError, match="No speculative cell of any study is what the claim mine is about"):
        bisect_claim(tiny_project, "mine", "omlx", tmp_path, None, "a", "b")


@pytest.mark.parametrize(
    ("folder", "good", "said"),
    [
        ("nowhere", "HEAD", "There is no folder .*nowhere"),
        ("empty", "HEAD", "empty is not a git repository"),
        ("repo", "5cf1e6d", "repo has no commit '5cf1e6d'"),
    ],
)
def test_folder_and_commits_are_looked_for_before_any_model(
    tmp_path, tiny_project, monkeypatch, folder, good, said
) -> None:
    monkeypatch.setattr(claim, "fetch_model", lambda *given: pytest.fail("a model was asked for"))
    repository(tmp_path / "repo", ["sparse", "dense"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ReproError, match=said) as refused:
        bisect_claim(tiny_project, "mine", "omlx", tmp_path / folder, None, good, "HEAD")
    assert refused.value.exit_code is Exit.BAD_INPUT
