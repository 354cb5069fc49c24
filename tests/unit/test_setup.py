"""envs/setup: two at once don't destroy each other's environment, and nothing of the checkout is run by accident."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PYTHON = f"""#!/bin/sh
# The real interpreter, but for `-m venv FOLDER`: that takes a moment, and writes as it goes.
if [ "${{2:-}}" = venv ]; then
    mkdir "$3" "$3/bin" || exit 1
    for part in 1 2 3 4 5 6; do
        sleep 0.1
        echo x >"$3/$part" || exit 1
    done
    printf 'made\\n' >>"$3/../times-made"
    exit 0
fi
exec "{sys.executable}" "$@"
"""
UV = "#!/bin/sh\n"


@pytest.fixture
def checkout(tmp_path):
    """A checkout of what envs/setup reads, and beside it commands that stand for Python and uv."""
    root, commands = tmp_path / "a checkout", tmp_path / "commands"
    (root / "envs").mkdir(parents=True)
    commands.mkdir()
    for name in ("envs/setup", "envs/pipeline.lock", "envs/test.lock", "pyproject.toml", ".gitignore"):
        shutil.copy(ROOT / name, root / name)
    write_command(commands / "python3.12", PYTHON)
    write_command(commands / "uv", UV)
    return root


def write_command(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def start(root: Path, path: str | None = None) -> "subprocess.Popen[str]":
    commands = root.parent / "commands"
    environment = {
        **os.environ,
        "PATH": path if path is not None else f"{commands}:{os.environ['PATH']}",
        "PYTHON": str(commands / "python3.12"),
    }
    return subprocess.Popen(
        [root / "envs" / "setup", "pipeline"],
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.02)


def test_a_second_set_up_waits_for_the_first_and_finds_it_done(checkout):
    first = start(checkout)
    wait_for(checkout / ".venv" / "1")
    second = start(checkout)
    said = second.communicate()[1]
    assert (first.wait(), second.returncode) == (0, 0), said + first.communicate()[1]
    assert said == "Waiting for another set-up of this checkout to end ...\n"
    assert (checkout / "times-made").read_text() == "made\n"
    assert (checkout / ".venv" / "6").exists()
    first.communicate()


def test_a_killed_set_up_is_made_anew_once_what_it_started_has_ended(checkout):
    first = start(checkout)
    wait_for(checkout / ".venv" / "1")
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = start(checkout)
    said = second.communicate()[1]
    assert second.returncode == 0, said
    assert said.startswith("Waiting for another set-up of this checkout to end ...\nSetting up")
    # The first one's installer wrote to its end, and only then the second began.
    assert (checkout / "times-made").read_text() == "made\n" * 2
    assert [(checkout / ".venv" / str(part)).exists() for part in range(1, 7)] == [True] * 6
    first.communicate()


def test_what_a_set_up_leaves_is_ignored_by_git(checkout):
    subprocess.run(["git", "init", "-q", checkout], check=True)
    (checkout / "envs" / "setup").write_text((checkout / "envs" / "setup").read_text().replace("3000000", "10" * 9))
    assert start(checkout).wait() == 3
    assert start(checkout).wait() == 3
    (checkout / ".venv.log").touch()
    done = subprocess.run(["git", "-C", checkout, "status", "--porcelain"], capture_output=True, text=True, check=True)
    assert {line.split()[-1] for line in done.stdout.splitlines()} == {".gitignore", "envs/", "pyproject.toml"}


@pytest.mark.parametrize("tail", ["", "::/nowhere:"])
def test_commands_are_not_looked_for_in_the_checkout(checkout, tail):
    for name in ("uv", "awk", "df"):
        write_command(checkout / name, f"#!/bin/sh\necho {name} >>'{checkout}/ran'\n")
    done = start(checkout, f"{checkout.parent / 'commands'}:/usr/bin:/bin{tail}")
    assert done.wait() == 0, done.communicate()[1]
    (checkout.parent / "commands" / "uv").unlink()
    shutil.rmtree(checkout / ".venv")
    # Without uv, pip of the new environment would do it: a stand-in has none.
    assert start(checkout, f"{checkout.parent / 'commands'}:/usr/bin:/bin{tail}").wait() == 3
    assert not (checkout / "ran").exists()


def test_a_checkout_that_cannot_be_written_is_explained(checkout):
    (checkout / ".venv.lock").mkdir()
    done = start(checkout)
    said = done.communicate()[1]
    assert done.returncode == 3
    assert "Could not write" in said and "why:" in said and "next:" in said
