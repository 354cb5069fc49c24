"""Installers: ended when they hang, with all that they started, and quoted without passwords."""

import sys

import psutil
import pytest

from specprefill_repro.errors import Exit, ReproError, without_password
from specprefill_repro.installers import run_installer


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("https://x:y@host/jane/tool", "https://host/jane/tool"),
        ("failed: 'https://token@host/simple/a', retrying", "failed: 'https://host/simple/a', retrying"),
        ("git+https://a:p@ss@host:80/x and http://b:c@other/y", "git+https://host:80/x and http://other/y"),
        ("https://host/a@b and jane@host", "https://host/a@b and jane@host"),
    ],
)
def test_an_address_is_shown_without_its_password(said: str, shown: str) -> None:
    assert without_password(said) == shown


def test_status_and_words_come_back_without_the_password() -> None:
    code = "import sys; sys.stderr.write('no route to http://jane:s3cret@host/simple'); sys.exit(7)"
    assert run_installer([sys.executable, "-c", code], "test") == (7, "no route to http://host/simple")


def test_an_installer_that_hangs_is_ended_with_what_it_started() -> None:
    sleep = "import time; time.sleep(10_000)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {sleep!r}])"
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with pytest.raises(ReproError, match="Could not install x: it was not done after 1 seconds") as caught:
        run_installer([sys.executable, "-c", code], "install x", limit=1.0)
    assert caught.value.exit_code is Exit.ENVIRONMENT
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before
    left = [each for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"] == [sys.executable, "-c", sleep]]
    _, alive = psutil.wait_procs(left, timeout=10)
    assert [each for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []
