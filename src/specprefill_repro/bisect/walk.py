"""`git bisect` between two commits of a server engine, judged by the evidence of a trial at each.

The commits are walked in a clone of their own that borrows the user's objects, so that the user's checkout, branches
and work trees stay as they are.
"""

import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specprefill_repro.errors import Exit, ReproError

GIT_SECONDS = 300
MAX_COMMITS = 200


@dataclass(frozen=True)
class Tried:
    """What a trial at one commit came to."""

    commit: str
    """Forty hex digits."""
    subject: str
    outcome: str | None
    """`sparse`, `dense` or `fallback: REASON`; None when no trial could be run."""
    said: str
    """The outcome, or why there is none."""

    @property
    def works(self) -> bool | None:
        return None if self.outcome is None else self.outcome == "sparse"


@dataclass(frozen=True)
class Found:
    """The end of the walk."""

    tried: tuple[Tried, ...]
    """In the order in which they were tried, the two given ones first."""
    first: tuple[str, ...]
    """The first commit of the other outcome; more than one when those between could not be tried."""
    starts: bool
    """SpecPrefill starts to work there; False: it stops."""


def bisect(
    checkout: Path,
    good: str,
    bad: str,
    trial: Callable[[Path], str],
    say: Callable[[str], None] = lambda line: None,
) -> Found:
    """Walk the commits between two of which one works and the other does not, whichever is older.

    Args:
        checkout: a git repository; it is only read.
        good, bad: anything that names a commit in it.
        trial: runs a speculative trial on the folder of a checked-out commit and returns its outcome; a ReproError
            means that this commit can't be judged.
        say: gets a line for each commit.

    Raises:
        ReproError: no repository, an unknown commit, neither is an ancestor of the other, or the two do not differ as
            was said.
    """
    with tempfile.TemporaryDirectory(prefix="specprefill-bisect-") as scratch:
        folder = Path(scratch) / "source"
        _clone(checkout, folder)
        works, fails = (_commit(checkout, folder, name) for name in (good, bad))
        if _is_ancestor(folder, works, fails):
            old, new, starts = works, fails, False
        elif _is_ancestor(folder, fails, works):
            old, new, starts = fails, works, True
        else:
            raise ReproError(
                f"Neither of {good} and {bad} is an ancestor of the other.",
                "They lie on two branches, so that no line of commits leads from one to the other.",
                f"Give their common ancestor as one of them: git -C '{checkout}' merge-base {good} {bad}",
            )
        tried: dict[str, Tried] = {}

        def attempt(commit: str) -> Tried:
            if commit not in tried:
                tried[commit] = _try(folder, commit, trial)
                say(f"{commit[:9]}  {tried[commit].said}  ({tried[commit].subject})")
            return tried[commit]

        for name, commit, expected in ((good, works, True), (bad, fails, False)):
            outcome = attempt(commit)
            if outcome.works is not expected:
                what = "sparse" if expected else "anything but sparse"
                raise ReproError(
                    f"{name} ({commit[:9]}) was to come out as {what}; it gave: {outcome.said}",
                    "The two commits do not differ as --good and --bad say, so there is nothing between them to find.",
                    "Give others, or swap them; --good is the one where SpecPrefill runs.",
                    Exit.TRIAL,
                )
        first = _walk(folder, old, new, lambda commit: attempt(commit).works, starts)
        return Found(tried=tuple(tried.values()), first=first, starts=starts)


def check_commits(checkout: Path, *names: str) -> None:
    """Look for the repository and the commits, before anything else is asked for.

    Raises:
        ReproError: there is no such folder, it is no repository, or it has no such commit.
    """
    if not checkout.is_dir():
        raise ReproError(
            f"There is no folder {checkout}.",
            "The path is misspelt, or relative to another folder.",
            "Give the folder of the engine's git repository: --checkout DIR",
        )
    _git(checkout, "rev-parse", "--git-dir", explain=f"{checkout} is not a git repository.")
    for name in names:
        _named_commit(checkout, name)


def _walk(folder: Path, old: str, new: str, works: Callable[[str], bool | None], starts: bool) -> tuple[str, ...]:
    said = _git(folder, "bisect", "start", "--term-old=before", "--term-new=after", new, old)
    for _ in range(MAX_COMMITS):
        found = re.search(r"^([0-9a-f]{40}) is the first after commit", said, re.MULTILINE)
        if found:
            return (found[1],)
        if "only skipped commits left" in said.lower() or "only 'skip'ped commits left" in said:
            return tuple(re.findall(r"^([0-9a-f]{40})$", said, re.MULTILINE))
        judged = works(_git(folder, "rev-parse", "HEAD").strip())
        term = "skip" if judged is None else "after" if judged is starts else "before"
        # Status 2: only skipped commits are left, which the output names.
        said = _git(folder, "bisect", term, allowed=(0, 2))
    raise ReproError(
        f"No answer after {MAX_COMMITS} commits.", "That is more than any bisection takes.", "Give commits closer by."
    )


def _try(folder: Path, commit: str, trial: Callable[[Path], str]) -> Tried:
    # Whatever an earlier trial left behind must not be there for this one.
    _git(folder, "checkout", "--quiet", "--force", "--detach", commit)
    _git(folder, "clean", "--quiet", "-ffdx")
    subject = _git(folder, "log", "-1", "--format=%s").strip()[:100]
    try:
        outcome = trial(folder)
    except ReproError as error:
        return Tried(commit=commit, subject=subject, outcome=None, said=f"no trial: {error.what}")
    return Tried(commit=commit, subject=subject, outcome=outcome, said=outcome)


def _clone(checkout: Path, folder: Path) -> None:
    top = _git(checkout, "rev-parse", "--git-dir", explain=f"{checkout} is not a git repository.").strip()
    source = (checkout / top).resolve()
    _git(checkout, "clone", "--quiet", "--shared", "--no-checkout", "--no-tags", str(source), str(folder))


def _commit(checkout: Path, folder: Path, name: str) -> str:
    """Resolved in the user's repository, whose branches and tags the clone does not have."""
    commit = _named_commit(checkout, name)
    _git(folder, "cat-file", "-e", commit)
    return commit


def _named_commit(checkout: Path, name: str) -> str:
    said = _git(
        checkout,
        "rev-parse",
        "--verify",
        "--quiet",
        "--end-of-options",
        f"{name}^{{commit}}",
        explain=f"{checkout} has no commit {name!r}.",
    )
    return said.strip().splitlines()[-1]


def _is_ancestor(folder: Path, older: str, newer: str) -> bool:
    done = _run(folder, "merge-base", "--is-ancestor", older, newer)
    return done.returncode == 0


def _git(folder: Path, *arguments: str, allowed: tuple[int, ...] = (0,), explain: str | None = None) -> str:
    done = _run(folder, *arguments)
    if done.returncode not in allowed:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no word about why"]
        raise ReproError(
            explain or f"git {arguments[0]} failed: {last[0]}",
            last[0],
            f"Look at the repository: git -C '{folder}' status",
        )
    return done.stdout


def _run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    # No hooks, no pager, no questions: the repository is somebody else's.
    command = ["git", "-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false", "-C", str(folder)]
    try:
        return subprocess.run(
            [*command, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GIT_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError as error:
        raise ReproError(
            "git was not found.", "It is not installed, or not on the PATH.", "Install git.", Exit.ENVIRONMENT
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ReproError(
            f"git {arguments[0]} took more than {GIT_SECONDS} seconds.",
            "The disk or the network folder that holds the repository is very slow, or git waits for something.",
            f"Try it by hand: git -C '{folder}' {arguments[0]}",
            Exit.ENVIRONMENT,
        ) from error
