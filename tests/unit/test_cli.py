"""What the command line says when somebody stops it."""

import sys
from collections.abc import Callable

import pytest

from specprefill_repro import cli, doctor
from specprefill_repro.errors import ReproError


def test_a_stopped_command_says_that_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "examine", stopped)
    monkeypatch.setattr(sys, "argv", ["specprefill-repro", "doctor"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130
    assert "Finished blocks are kept" in capsys.readouterr().err


EVIL = "EvilChip \x1b]0;owned\x07\x1b[2J\u202e"


def test_what_others_wrote_can_not_steer_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a bundle's summary, and of an error that quotes a file."""

    def quote(_: object, tell: Callable[[str], None]) -> None:
        tell(EVIL)
        raise ReproError(EVIL, EVIL, EVIL)

    monkeypatch.setattr(doctor, "examine", quote)
    monkeypatch.setattr(sys, "argv", ["specprefill-repro", "doctor"])
    with pytest.raises(SystemExit):
        cli.main()
    shown = capsys.readouterr()
    assert shown.out.count("EvilChip ⟨U+001B⟩") == 1 and shown.err.count("EvilChip ⟨U+001B⟩") == 3
    assert not {"\x1b", "\x07", "\u202e"} & {*shown.out, *shown.err}
