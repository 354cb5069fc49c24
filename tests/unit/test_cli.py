"""What the command line says when somebody stops it."""

import sys

import pytest

from specprefill_repro import cli, doctor


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
