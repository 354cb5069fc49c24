"""Hints name the command as whoever reads them can paste it."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from specprefill_repro.this_command import this_command

ROOT = Path(__file__).resolve().parents[2]
BARE = re.compile(
    r"(?<![/\w-])specprefill-repro (?=(lock|plan|doctor|status|models|claims|verify|import|bisect|run)\b)"
)
OTHERS = {
    "crate.py": "told to whoever holds the bundle, on another machine",
    "verify.py": "in the checkout of another version",
    "engines.py": "on a page, which is the same wherever it is made",
    "fetch.py": "the head of a file that is the same for all",
}
PAGES = [ROOT / "README.md", ROOT / "config" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def texts(file: Path) -> list[str]:
    """Every string of a module that is not a docstring."""
    tree = ast.parse(file.read_text())
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in alone)
    return [node.value for node in constants if isinstance(node.value, str)]


def test_no_hint_names_the_command_as_if_it_were_on_the_path() -> None:
    bare = {
        file.name
        for file in (ROOT / "src").rglob("*.py")
        if file.name not in OTHERS and any(BARE.search(text) for text in texts(file))
    }
    assert bare == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_name_the_command_where_the_checkout_has_it(page: Path) -> None:
    assert [line for line in page.read_text().splitlines() if BARE.search(line)] == []


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the command in .venv/bin, which is the current one."""
    command = tmp_path / ".venv" / "bin" / "specprefill-repro"
    command.parent.mkdir(parents=True)
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(sys, "argv", [str(command), "plan"])
    return command


def test_it_is_named_from_the_current_folder(checkout: Path) -> None:
    assert this_command() == ".venv/bin/specprefill-repro"
    assert Path(this_command()).samefile(checkout)


def test_it_is_named_in_full_from_elsewhere(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (elsewhere := checkout.parent / "other").mkdir()
    monkeypatch.chdir(elsewhere)
    assert this_command() == str(checkout)


def test_its_name_alone_is_enough_where_the_shell_finds_it(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{checkout.parent}{os.pathsep}/bin")
    assert this_command() == "specprefill-repro"


def test_a_hint_can_be_pasted_however_the_program_was_started(tmp_path: Path) -> None:
    started = [sys.executable, "-m", "specprefill_repro", "claims", "show", "no-such-claim"]
    done = subprocess.run(started, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PATH": "/bin"})
    hint = re.search(r"List the cards with: (.*)", done.stderr)
    assert done.returncode == 2 and hint is not None
    pasted = subprocess.run(
        ["/bin/sh", "-c", hint[1]], capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PATH": "/bin"}
    )
    assert pasted.returncode == 0 and "green-122b-2b-8K" in pasted.stdout
