"""What the commands of macOS print is read right, and whatever else they print is nothing known, never an error."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specprefill_repro.trials import macos
from specprefill_repro.trials.machine import machine_state
from specprefill_repro.trials.sensors import Sensors

RECORDED = Path(__file__).parents[1] / "data" / "macos"
COMMANDS = {
    macos.HEAT: "notifyutil",
    macos.HEAT_LIMITS: "therm",
    macos.POWER: "pmset",
    macos.PRESSURE: "pressure",
    macos.SWAP: "swapusage",
    macos.VM: "vm_stat",
    macos.WIRED: "wired",
    macos.CHIP: "chip",
    macos.VERSION: "sw_vers",
    macos.DISPLAYS: "displays",
}
PARSERS = (
    macos.thermal_pressure,
    macos.thermal_limits,
    macos.low_power,
    macos.on_battery,
    macos.memory_pressure,
    macos.swap_used,
    macos.wired_limit,
    macos.gpu_cores,
    macos.system_version,
)


def recorded(name: str) -> str:
    return (RECORDED / f"{name}.txt").read_text()


def mac(**variants: str) -> macos.Ask:
    """A Mac that prints the recorded outputs, some of them in another variant."""
    return lambda command: recorded(variants.get(COMMANDS[command], COMMANDS[command]))


@pytest.mark.parametrize(
    ("parse", "name", "expected"),
    [
        (macos.thermal_pressure, "notifyutil", "nominal"),
        (macos.thermal_pressure, "notifyutil-heavy", "heavy"),
        (macos.thermal_limits, "therm", "nominal"),
        (macos.thermal_limits, "therm-unlimited", "nominal"),
        (macos.thermal_limits, "therm-limited", "limited"),
        (macos.low_power, "pmset", False),
        (macos.low_power, "pmset-low", True),
        (macos.low_power, "pmset-powermode-low", True),
        (macos.low_power, "pmset-powermode-high", False),
        (macos.low_power, "pmset-without", None),
        (macos.on_battery, "ps", False),
        (macos.on_battery, "ps-battery", True),
        (macos.memory_pressure, "pressure", "normal"),
        (macos.memory_pressure, "pressure-critical", "critical"),
        (macos.swap_used, "swapusage", 1_060_372_480),
        (macos.swap_used, "swapusage-none", 0),
        (macos.wired_limit, "wired", 0),
        (macos.wired_limit, "wired-raised", 122_880),
        (macos.gpu_cores, "displays", 76),
        (macos.system_version, "sw_vers", "15.5 (24F74)"),
    ],
)
def test_recorded_output_is_read(parse, name, expected):
    assert parse(recorded(name)) == expected


def test_pages_become_bytes_and_file_pages_are_no_swap():
    before, after = macos.vm_statistics(recorded("vm_stat")), macos.vm_statistics(recorded("vm_stat-later"))
    assert after["swapouts"] - before["swapouts"] == 16384
    assert before["pages occupied by compressor"] == 120404 * 16384
    assert before["translation faults"] == 4029384756 * 16384


@settings(max_examples=200, deadline=None)
@given(st.text() | st.sampled_from(sorted(file.read_text() for file in RECORDED.glob("*.txt"))), st.integers(0, 400))
def test_no_output_raises_and_a_part_of_one_never_reads_as_another_state(text, length):
    for parse in PARSERS:
        parse(text[:length])
        assert parse(None) is None and parse("") is None
    macos.vm_statistics(text[:length])


def test_a_reading_holds_what_the_commands_print():
    assert macos.read_sensors(mac()) == Sensors(
        thermal_pressure="nominal",
        memory_pressure="normal",
        vm_swap_out_bytes=8192 * 16384,
        compressed_bytes=120404 * 16384,
        low_power=False,
    )
    assert macos.read_sensors(mac(notifyutil="wired", therm="therm-limited")).thermal_pressure == "limited"


def test_a_mac_without_any_of_the_commands_tells_nothing():
    assert macos.read_sensors(lambda command: None) == Sensors()
    assert macos.machine_facts(lambda command: None).keys() <= {"metallib_sha256"}


def test_no_serial_number_is_among_the_facts():
    facts = macos.machine_facts(mac())
    assert {"macos": "15.5 (24F74)", "gpu_cores": "76", "wired_limit_mib": "0"}.items() <= facts.items()
    assert "SERIAL" not in json.dumps(facts).upper()


def test_injected_readings_are_in_the_state_of_the_machine():
    state = machine_state(0.01, lambda: macos.read_sensors(mac(notifyutil="notifyutil-heavy")))
    assert (state.thermal_pressure, state.memory_pressure, state.low_power) == ("heavy", "normal", False)


@pytest.mark.parametrize("command", [("/nowhere/command",), ("/bin/sh", "-c", "exit 3"), ("/bin/sh", "-c", "sleep 60")])
def test_a_command_that_is_missing_fails_or_hangs_tells_nothing(command, monkeypatch):
    monkeypatch.setattr(macos, "LIMIT_SECONDS", 0.2)
    assert macos.ask(command) is None


def test_output_that_is_no_text_and_far_too_long_is_cut():
    command = (sys.executable, "-c", "import sys; sys.stdout.buffer.write(bytes([255]) * 3_000_000)")
    assert len(macos.ask(command) or "") == macos.MAX_OUTPUT


def test_a_mac_is_kept_awake_for_as_long_as_the_run_and_no_longer(tmp_path, monkeypatch):
    said, stand_in = tmp_path / "said", tmp_path / "caffeinate"
    stand_in.write_text(f'#!/bin/sh\necho "$@" > "{said}.new"\nmv "{said}.new" "{said}"\nexec sleep 60\n')
    stand_in.chmod(0o755)
    monkeypatch.setattr(macos, "CAFFEINATE", str(stand_in))
    monkeypatch.setattr(sys, "platform", "darwin")
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda *given, **named: started.append(popen(*given, **named)) or started[0]
    )
    with macos.kept_awake(os.getpid()):
        assert started[0].poll() is None
        while not said.exists():
            assert started[0].poll() is None
        assert said.read_text().split() == ["-dims", "-w", str(os.getpid())]
    assert started[0].poll() is not None


def test_without_the_command_a_run_goes_on(monkeypatch):
    monkeypatch.setattr(macos, "CAFFEINATE", "/nowhere/caffeinate")
    monkeypatch.setattr(sys, "platform", "darwin")
    with macos.kept_awake(os.getpid()):
        pass


def test_elsewhere_nothing_is_started(monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", lambda *given, **named: pytest.fail("a process was started"))
    with macos.kept_awake(os.getpid()):
        assert shutil.which("caffeinate") is None or sys.platform == "darwin"
