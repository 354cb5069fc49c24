"""The state of the machine: what it voids, that older records stay as they were, and the canary before each block."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from specprefill_repro.calibration.chain import prepare, usual_study
from specprefill_repro.calibration.worlds import COSTS, claim
from specprefill_repro.engines.scripted import ScriptedEngine, World
from specprefill_repro.estimates.evidence import evidence_problems, pair_problems
from specprefill_repro.files import canonical_json, content_id, read_model
from specprefill_repro.report.rows import canary_rows
from specprefill_repro.study.plan import plan_cells
from specprefill_repro.trials import block, canary, linux
from specprefill_repro.trials.machine import machine_state
from specprefill_repro.trials.schema import BlockReceipt, Canary, MachineState, TrialRecord
from specprefill_repro.trials.sensors import Sensors, read_sensors
from specprefill_repro.trials.table import Trials, block_table, to_models
from synthetic_records import demo_study, synthetic_study_records

OLD_FIELDS = {"load_1min", "swap_out_bytes", "available_bytes", "cpu_mhz", "other_cpu_percent"}
STUDY = synthetic_study_records(demo_study(blocks=1), 1)
RECORD = next(record for record in STUDY.records if record.treated)


def between(before: Sensors, after: Sensors, record: TrialRecord = RECORD) -> TrialRecord:
    """A trial with these readings before and after it; nothing was swapped out by psutil's count."""
    states = {"before": machine_state(0.001, lambda: before), "after": machine_state(0.001, lambda: after)}
    quiet = {side: state.model_copy(update={"swap_out_bytes": 0}) for side, state in states.items()}
    return record.model_copy(update=quiet)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (Sensors(), Sensors(), None),
        (Sensors(thermal_pressure="nominal"), Sensors(thermal_pressure="nominal"), None),
        (Sensors(thermal_pressure="nominal"), Sensors(thermal_pressure="heavy"), "thermal pressure (heavy)"),
        (Sensors(thermal_pressure="moderate"), Sensors(thermal_pressure="nominal"), "thermal pressure (moderate)"),
        (Sensors(thermal_pressure="nominal"), Sensors(), None),
        (Sensors(throttle_events=7), Sensors(throttle_events=7), None),
        (Sensors(throttle_events=7), Sensors(throttle_events=9), "slowed for heat 2 times"),
        (Sensors(throttle_events=7), Sensors(), None),
        (Sensors(vm_swap_out_bytes=100), Sensors(vm_swap_out_bytes=100), None),
        (Sensors(vm_swap_out_bytes=100), Sensors(vm_swap_out_bytes=16484), "16,384 bytes were swapped out"),
        (Sensors(memory_pressure="warning"), Sensors(memory_pressure="critical"), None),
    ],
)
def test_a_trial_is_void_by_the_state_of_the_machine_whatever_its_time(before, after, words):
    for seconds in (RECORD.seconds, 1e-3 * RECORD.seconds):
        factor = seconds / RECORD.seconds
        phases = {name: factor * value for name, value in RECORD.phases.model_dump().items()}
        record = RECORD.model_copy(update={"seconds": seconds, "phases": RECORD.phases.model_copy(update=phases)})
        found = evidence_problems(between(before, after, record))
        assert (found == []) if words is None else (len(found) == 1 and words in found[0])


def test_the_systems_own_count_of_swapping_wins_over_one_that_counts_file_pages():
    record = between(Sensors(vm_swap_out_bytes=5), Sensors(vm_swap_out_bytes=5))
    record = record.model_copy(update={"after": record.after.model_copy(update={"swap_out_bytes": 4096})})
    assert evidence_problems(record) == []


@pytest.mark.parametrize(("dense", "treated", "counts"), [(False, True, False), (True, True, True), (None, True, True)])
def test_a_pair_of_which_one_trial_ran_in_low_power_mode_does_not_count(dense, treated, counts):
    trials = [next(record for record in STUDY.records if record.treated is side) for side in (False, True)]
    pair = [
        between(Sensors(low_power=mode), Sensors(), trial) for mode, trial in zip((dense, treated), trials, strict=True)
    ]
    assert ("low-power mode was on in one of the two arms" in pair_problems(*pair)) is not counts


def test_records_and_receipts_from_before_there_were_sensors_keep_their_hash():
    plain = RECORD.model_dump(mode="json")
    assert set(plain["before"]) == OLD_FIELDS
    assert content_id(TrialRecord.model_validate_json(canonical_json(plain))) == content_id(RECORD)
    assert "canary" not in STUDY.receipts[0].model_dump(mode="json")


def test_readings_survive_the_table():
    record = between(Sensors(thermal_pressure="nominal", low_power=False, throttle_events=3), Sensors())
    assert Trials.of_records([record, RECORD]).records() == [record, RECORD]
    receipts = [STUDY.receipts[0], STUDY.receipts[1].model_copy(update={"canary": reading(0)})]
    assert to_models(block_table(receipts), BlockReceipt) == receipts


def test_throttling_is_summed_over_all_counters_of_all_processors(tmp_path):
    for cpu, core, package in ((0, "3\n", "10\n"), (1, "4\n", "10\n"), (2, "strange\n", "")):
        folder = tmp_path / f"cpu{cpu}" / "thermal_throttle"
        folder.mkdir(parents=True)
        (folder / "core_throttle_count").write_text(core)
        (folder / "package_throttle_count").write_text(package)
    (tmp_path / "cpufreq").mkdir()
    assert linux.read_sensors(tmp_path) == Sensors(throttle_events=27)
    assert linux.read_sensors(tmp_path / "nowhere") == Sensors()


def test_the_governor_is_named_with_its_driver(tmp_path):
    for cpu, name in ((0, "powersave"), (1, "powersave"), (2, "performance")):
        folder = tmp_path / f"cpu{cpu}" / "cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text(f"{name}\n")
        (folder / "scaling_driver").write_text("acpi-cpufreq\n")
    assert linux.governor(tmp_path) == "performance (acpi-cpufreq), powersave (acpi-cpufreq)"
    assert linux.governor(tmp_path / "nowhere") is None


def test_a_reading_here_never_fails_and_is_a_state():
    assert isinstance(read_sensors(), Sensors)
    state = machine_state(0.001)
    assert MachineState.model_validate_json(state.model_dump_json()) == state


def test_the_canary_works_in_a_process_of_its_own_and_leaves_mlx_out_of_this_one():
    found = canary.work()
    assert found is not None
    assert found.product_seconds > 0 and found.prefill_seconds > 0 and math.isfinite(found.product_gflops)
    assert found.mlx and found.device and found.blas


def test_the_canary_does_the_same_work_every_time():
    code = (
        "from specprefill_repro.trials import canary_process as c\n"
        "import mlx.core as mx\n"
        "layer = [c._weights(*shape, seed=place) for place, shape in enumerate("
        "[(c.WIDTH, c.WIDTH)] * 4 + [(c.WIDTH, c.INNER)] * 2 + [(c.INNER, c.WIDTH)])]\n"
        "out = c._layer(c._weights(8, c.WIDTH, seed=99)[None], layer)\n"
        "print([float(x) for x in (mx.abs(out).max(), mx.abs(c._weights(4, 4, 1)).max(), mx.isfinite(out).all())])"
    )
    outputs = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout for _ in "ab"
    }
    assert len(outputs) == 1
    largest, bound, finite = json.loads(outputs.pop())
    assert 0 < largest < 100 and bound <= (3 / 4) ** 0.5 and finite == 1.0


@pytest.mark.parametrize("failing", ["exit", "hang", "strange"])
def test_a_canary_that_fails_is_missing_and_no_error(failing, tmp_path, monkeypatch):
    stand_in = tmp_path / "python"
    action = {"exit": "exit 9", "hang": "exec sleep 60", "strange": "echo '{\"mlx\": 1}'"}[failing]
    stand_in.write_text(f"#!/bin/sh\n{action}\n")
    stand_in.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stand_in))
    monkeypatch.setattr(canary, "LIMIT_SECONDS", 0.3)
    assert canary.canary() is None


def reading(number: int, factor: float = 1.0) -> Canary:
    return Canary(
        product_seconds=0.02 * factor,
        prefill_seconds=0.01 * factor,
        started_at=f"2026-01-01T00:{number:02d}:00.000+00:00",
    )


def test_the_canary_is_read_before_each_block_and_stored_in_its_receipt(tmp_path: Path, monkeypatch):
    study = usual_study(lengths=(512,))
    project = prepare(tmp_path, study, [claim()])
    cell, engine = plan_cells(study)[0], ScriptedEngine(World(COSTS), 1, 100)
    done_before: list[int] = []
    monkeypatch.setattr(block, "canary", lambda lease: done_before.append(engine.done) or reading(len(done_before)))
    assert block.run_block(project, study, cell, 0, engine).canary is None, "a scripted machine has no state"
    monkeypatch.setattr(engine, "needs_machine", True, raising=False)
    receipts = [block.run_block(project, study, cell, index, engine) for index in (1, 2)]
    assert done_before == [4, 8]
    assert [receipt.canary for receipt in receipts] == [reading(1), reading(2)]
    assert read_model(project.block_receipt(study.name, cell.id, 2), BlockReceipt) == receipts[1]
    assert block.run_block(project, study, cell, 2, engine) == receipts[1] and done_before == [4, 8]


def test_the_page_shows_how_the_canary_changed():
    order = [(0, 1.0), (2, 1.2), (1, 1.0), (3, 1.2)]
    receipts = [
        STUDY.receipts[place].model_copy(update={"canary": reading(number, factor)})
        for place, (number, factor) in enumerate(order)
    ]
    rows = canary_rows([*receipts, *STUDY.receipts[4:]])
    assert [(row[1], row[5]) for row in rows] == [("4", "+20 %"), ("4", "+20 %")]
    assert canary_rows(receipts[:1]) == []
