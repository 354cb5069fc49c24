"""What the doctor says of machines in every state, and that only what stops a measurement is an error."""

from dataclasses import replace

import pytest

from specprefill_repro import doctor
from specprefill_repro.doctor import Condition, Finding, Grade, condition_here, examine, findings
from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.fitting import Room
from specprefill_repro.project import find_project
from specprefill_repro.trials.canary import CanaryWork
from specprefill_repro.trials.lease import machine_lease
from specprefill_repro.trials.schema import MachineState

GB = 10**9
CPU = CanaryWork(
    mlx="0.32.4",
    device="Device(cpu, 0)",
    blas="OpenBLAS 0.3 threads=1",
    product_seconds=0.02,
    product_gflops=107.0,
    prefill_seconds=0.01,
)
QUIET = MachineState(load_1min=0.2, swap_out_bytes=0, available_bytes=20 * GB, cpu_mhz=None, other_cpu_percent=1.0)
LINUX = Condition(
    system="linux",
    version="6.8.0",
    architecture="x86_64",
    chip="AMD EPYC 7R13",
    cores=2,
    gpu_cores=None,
    memory_bytes=24 * GB,
    usable_bytes=21 * GB,
    mlx=CPU,
    nvidia=False,
    metallib=None,
    wired_limit_mib=None,
    governor=None,
    on_battery=None,
    state=QUIET,
    swap_used_bytes=0,
    disk_bytes=100 * GB,
    measuring=None,
)
MAC = replace(
    LINUX,
    system="darwin",
    version="15.5",
    architecture="arm64",
    chip="Apple M2 Ultra",
    gpu_cores=76,
    memory_bytes=137 * GB,
    usable_bytes=103 * GB,
    mlx=CPU.model_copy(update={"device": "Device(gpu, 0)", "blas": "system", "product_gflops": 9000.0}),
    metallib="ab" * 32,
    wired_limit_mib=0,
    on_battery=False,
    state=QUIET.model_copy(
        update={
            "available_bytes": 100 * GB,
            "thermal_pressure": "nominal",
            "memory_pressure": "normal",
            "low_power": False,
        }
    ),
)


def state(seen: Condition, **changes: object) -> Condition:
    return replace(seen, state=seen.state.model_copy(update=changes))


def mlx(seen: Condition, **changes: object) -> Condition:
    return replace(seen, mlx=seen.mlx.model_copy(update=changes))


def of(seen: Condition, name: str) -> Finding:
    (found,) = (item for item in findings(seen) if item.name == name)
    return found


@pytest.mark.parametrize("machine", [LINUX, MAC], ids=["linux", "mac"])
def test_a_machine_in_good_order_gets_no_advice(machine):
    assert [(item.name, item.advice) for item in findings(machine) if item.grade is not Grade.OK or item.advice] == []


def test_the_mac_is_described_by_what_makes_it_fast():
    said = {item.name: item.value for item in findings(MAC)}
    assert said["chip"] == "Apple M2 Ultra, 2 cores, 76 GPU cores"
    assert "Metal kernels abababababab" in said["kernels"]
    assert said["wired limit"].startswith("the system's own, about 103.0 GB")
    assert said["power"] == "low-power mode is off, on mains power"
    assert said["heat"] == "no thermal pressure"


@pytest.mark.parametrize(
    ("seen", "name", "grade", "says", "advice"),
    [
        (replace(LINUX, memory_bytes=3 * GB), "memory", Grade.BAD, "3.0 GB", "larger machine"),
        (state(LINUX, available_bytes=2 * GB), "memory", Grade.LOOK, "2.0 GB are free", "End other programs"),
        (state(MAC, memory_pressure="critical"), "memory", Grade.LOOK, "critical", "End other programs"),
        (replace(MAC, architecture="x86_64"), "system", Grade.BAD, "x86_64", "Apple silicon"),
        (replace(MAC, version="13.6"), "system", Grade.BAD, "macOS 13.6", "macOS 14"),
        (replace(LINUX, architecture="aarch64"), "system", Grade.LOOK, "aarch64", "./test"),
        (replace(LINUX, system="win32"), "system", Grade.BAD, "win32", "Linux"),
        (replace(LINUX, mlx=None), "MLX", Grade.BAD, "can't be used", "./envs/setup"),
        (replace(LINUX, nvidia=True), "MLX", Grade.LOOK, "cpu", "NVIDIA"),
        (mlx(MAC, device="Device(cpu, 0)"), "MLX", Grade.LOOK, "cpu", "MLX_DEVICE"),
        (mlx(LINUX, product_gflops=2.1, blas="stock"), "kernels", Grade.LOOK, "2 GFLOPS", "slow BLAS"),
        (replace(MAC, metallib=None), "kernels", Grade.LOOK, "no compiled Metal kernels", "./envs/setup"),
        (replace(MAC, wired_limit_mib=130_000), "wired limit", Grade.LOOK, "130,000 MiB", "iogpu.wired_limit_mb"),
        (replace(MAC, wired_limit_mib=110_000), "wired limit", Grade.OK, "set by hand", ""),
        (state(MAC, low_power=True), "power", Grade.LOOK, "low-power mode is on", "lowpowermode 0"),
        (replace(MAC, on_battery=True), "power", Grade.LOOK, "on battery", "Connect"),
        (replace(LINUX, governor="powersave (acpi-cpufreq)"), "power", Grade.LOOK, "powersave", "performance"),
        (replace(LINUX, governor="powersave (intel_pstate)"), "power", Grade.OK, "intel_pstate", ""),
        (state(MAC, thermal_pressure="moderate"), "heat", Grade.LOOK, "moderate", "don't count"),
        (state(LINUX, throttle_events=12), "heat", Grade.LOOK, "12 times", "air"),
        (state(LINUX, throttle_events=0), "heat", Grade.OK, "never slowed", ""),
        (replace(LINUX, swap_used_bytes=5 * GB), "swap", Grade.LOOK, "5.0 GB", "don't count"),
        (replace(LINUX, disk_bytes=GB), "disk", Grade.BAD, "1.0 GB free", "Free some"),
        (state(LINUX, load_1min=7.0), "other load", Grade.LOOK, "7.0 on 2 cores", "End other work"),
        (state(LINUX, other_cpu_percent=80.0), "other load", Grade.LOOK, "80 %", "End other work"),
        (replace(LINUX, measuring="4711"), "other load", Grade.LOOK, "4711 is measuring", "Wait"),
    ],
)
def test_what_is_wrong_is_graded_and_comes_with_what_to_do(seen, name, grade, says, advice):
    found = of(seen, name)
    assert found.grade is grade and says in found.value
    assert advice in found.advice and bool(found.advice) == (grade is not Grade.OK)


def test_only_what_is_bad_is_an_error_and_it_comes_after_everything_else():
    told: list[str] = []
    room = Room(21 * GB, 100 * GB)
    examine(find_project(), told.append, state(LINUX, load_1min=9.0), room)
    assert any(line.startswith("look  other load") for line in told)
    told.clear()
    with pytest.raises(ReproError, match=r"disk \(1.0 GB free\), MLX|MLX .*disk") as caught:
        examine(find_project(), told.append, replace(LINUX, disk_bytes=GB, mlx=None), room)
    assert caught.value.exit_code is Exit.ENVIRONMENT and caught.value.next
    assert any("specprefill-repro plan" in line for line in told)


def test_it_ends_with_what_fits_and_what_to_run_instead():
    told: list[str] = []
    examine(find_project(), told.append, LINUX, Room(21 * GB, 100 * GB))
    text = "\n".join(told)
    assert "fits          demo," in text and "fits          small-mac," in text
    assert "does not fit  issue-qwen-122b: needs about" in text and "--scale tiny" in text


def test_this_machine_is_looked_at_and_a_measurement_on_it_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "work", lambda: CPU)
    monkeypatch.setattr(doctor, "lease_path", lambda: tmp_path / "lease")
    here = condition_here(find_project())
    assert here.measuring is None and here.memory_bytes > 0 and 0 < here.usable_bytes <= here.memory_bytes
    assert {"chip", "memory", "system", "MLX", "disk"} <= {item.name for item in findings(here)}
    with machine_lease(tmp_path / "lease"):
        assert condition_here(find_project()).measuring is not None
