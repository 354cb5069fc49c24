"""A site on GitHub Pages, or wherever else a branch is served: one commit on the branch gh-pages of a git remote.

Plain git, in a temporary repository without a work tree, so nothing of the branch is ever unpacked here and the
checkout of the project is not touched. The push is never forced: a branch that moved meanwhile refuses it.
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from specprefill_repro.bundles.contents import Files
from specprefill_repro.errors import Exit, ReproError, without_password
from specprefill_repro.publish.site import INDEX, Listing, Site, read_site

BRANCH = "gh-pages"
AUTHOR = ("specprefill-repro", "specprefill-repro@localhost")
"""Of the commits: not the user's own name and address, which would become public."""
UNJEKYLLED = ".nojekyll"
"""Its presence tells GitHub to serve the files as they are."""


class GitBranch:
    def __init__(self, remote: str) -> None:
        self.remote = remote
        self._tip: str | None = None

    @property
    def place(self) -> str:
        return f"branch {BRANCH} of {without_password(self.remote)}"

    def read(self) -> Site:
        """The site that is on the branch.

        Raises:
            ReproError: the remote can't be read, or something else is published there.
        """
        with self._fetched() as (repository, tip):
            self._tip = tip
            if tip is None:
                return Site(Listing(), frozenset())
            paths = frozenset(_git(repository, "ls-tree", "-r", "-z", "--name-only", tip).decode().split("\0")) - {""}
            if INDEX not in paths and paths - {UNJEKYLLED}:
                raise ReproError(
                    f"{self.place} holds other files.",
                    "The branch is in use for something else, and a site needs one of its own.",
                    "Give another remote with --remote, or delete the branch there.",
                )

            def fetch(path: str) -> bytes:
                return _git(repository, "cat-file", "blob", f"{tip}:{path}")

            return read_site(fetch(INDEX) if INDEX in paths else None, paths, self.place, fetch)

    def held(self, tell: Callable[[str], None]) -> AbstractContextManager[None]:
        """Nothing to hold: git refuses what is not made from the branch as it is."""
        return nullcontext()

    def write(self, files: Files, message: str) -> str:
        """Add the files in one commit on top of the branch as it was read, and push it; returns the site's address.

        Raises:
            ReproError: the branch moved since, or the push failed; it is then as it was.
        """
        with self._fetched() as (repository, tip):
            if tip != self._tip:
                raise ReproError(
                    f"{self.place} moved meanwhile, and nothing was pushed.",
                    "Somebody else published there; the list that was made would leave out their report.",
                    "Run the same command again.",
                    Exit.ENVIRONMENT,
                )
            if tip is not None:
                _git(repository, "read-tree", tip)
            for path, content in {**files, UNJEKYLLED: b""}.items():
                blob = _git(repository, "hash-object", "-w", "--stdin", input=content).decode().strip()
                _git(repository, "update-index", "--add", "--cacheinfo", f"100644,{blob},{path}")
            tree = _git(repository, "write-tree").decode().strip()
            parents = ["-p", tip] if tip is not None else []
            commit = _git(repository, "commit-tree", tree, *parents, "-m", message).decode().strip()
            self._ask(repository, "push", "--quiet", "--", self.remote, f"{commit}:refs/heads/{BRANCH}")
        return self.address

    @property
    def address(self) -> str:
        """Where GitHub serves the branch; of another host, the branch itself."""
        found = re.search(r"github\.com[:/]([\w.-]+)/([\w.-]+?)(?:\.git)?/?$", self.remote)
        if found is None:
            return self.place
        owner, name = found[1].lower(), found[2]
        return f"https://{owner}.github.io/" + ("" if name.lower() == f"{owner}.github.io" else f"{name}/")

    @contextmanager
    def _fetched(self) -> Iterator[tuple[Path, str | None]]:
        """A temporary repository that has the tip of the branch, and that commit (None: there is no branch yet)."""
        with tempfile.TemporaryDirectory(prefix="specprefill-repro-") as folder:
            repository = Path(folder)
            _git(repository, "init", "--quiet", "--bare", "--template=")
            told = self._ask(repository, "ls-remote", "--", self.remote, f"refs/heads/{BRANCH}").decode().split()
            if not told:
                yield repository, None
                return
            self._ask(repository, "fetch", "--quiet", "--depth=1", "--no-tags", "--", self.remote, told[0])
            yield repository, told[0]

    def _ask(self, repository: Path, *arguments: str) -> bytes:
        try:
            return _git(repository, *arguments)
        except ReproError as error:
            raise ReproError(
                f"git {arguments[0]} failed at {self.place}: {error.what.replace(self.remote, self.place)}",
                "There is no network, no right to read or write there, or the branch moved meanwhile. It is unchanged.",
                "Check that this works: git ls-remote REMOTE; then run the same command again.",
                Exit.ENVIRONMENT,
            ) from None


def remote_of(project_root: Path, remote: str | None) -> str:
    """The address of the remote to publish to: the given one, else the checkout's `origin`.

    Raises:
        ReproError: neither; or what was given begins like an option of git.
    """
    found = remote
    if found is None:
        command = ["git", "-C", str(project_root), "remote", "get-url", "--push", "origin"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        except OSError as error:
            raise _no_git() from error
        found = done.stdout.strip()
    if not found or found.startswith("-"):
        raise ReproError(
            "There is no git remote to publish to.",
            "The checkout has no remote named origin, and --remote names none.",
            "Name one: --remote git@github.com:OWNER/NAME.git",
        )
    # A relative path would be taken from the temporary repository.
    local = project_root / found
    return str(local.resolve()) if "://" not in found and local.is_dir() else found


def _git(repository: Path, *arguments: str, input: bytes = b"") -> bytes:
    """Run git on the temporary repository, without hooks, prompts or the user's own identity.

    Raises:
        ReproError: it failed, or there is no git; `what` has its last words.
    """
    name, address = AUTHOR
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("GIT_") or key in KEPT},
        "GIT_DIR": str(repository),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_AUTHOR_NAME": name,
        "GIT_AUTHOR_EMAIL": address,
        "GIT_COMMITTER_NAME": name,
        "GIT_COMMITTER_EMAIL": address,
        "LC_ALL": "C",
    }
    command = ["git", "-c", "core.hooksPath=/dev/null", "-c", "commit.gpgSign=false", *arguments]
    try:
        done = subprocess.run(command, cwd=repository, env=environment, input=input, capture_output=True, check=False)
    except OSError as error:
        raise _no_git() from error
    if done.returncode != 0:
        words = " | ".join(done.stderr.decode(errors="replace").strip().splitlines()[-3:])
        raise ReproError(
            without_password(words)[:300],
            f"git {arguments[0]} failed.",
            "Run the same command again.",
            Exit.ENVIRONMENT,
        )
    return done.stdout


def _no_git() -> ReproError:
    return ReproError(
        "There is no git on the PATH.", "Publishing to a branch needs it.", "Install git.", Exit.ENVIRONMENT
    )


KEPT = ("GIT_SSH", "GIT_SSH_COMMAND", "GIT_ASKPASS", "GIT_SSL_CAINFO", "GIT_PROXY_COMMAND")
"""Settings of the user's that say how a remote is reached."""
