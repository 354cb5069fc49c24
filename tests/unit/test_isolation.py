"""What is imported is what the environment holds, whatever the user's shell says; records name its versions."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import mlx_lm
import pytest

from specprefill_repro import isolation
from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.isolation import check_imported, isolated
from specprefill_repro.study.plan import Arm, ArmKind
from specprefill_repro.trials import canary
from specprefill_repro.trials.job import Job
from specprefill_repro.trials.parent import lead_run
from specprefill_repro.trials.trial import run_worker, worker_environment
from tiny_model import write_tiny_model

SHADOWED = ("json", "typer", "pydantic", "yaml", "mlx", "mlx_lm", "specprefill_repro")


@pytest.fixture
def shadows(tmp_path):
    """A folder of modules that nobody may import."""
    folder = tmp_path / "shadows"
    folder.mkdir()
    for name in SHADOWED:
        (folder / f"{name}.py").write_text(f"raise SystemExit('the wrong {name}')")
    return folder


@pytest.fixture
def job(tmp_path):
    return Job(
        target_folder=str(write_tiny_model(tmp_path / "model", seed=1, layers=1)),
        draft_folder=None,
        arm=Arm(kind=ArmKind.DENSE),
        ids=tuple(range(1, 65)),
        needle_tokens=((10, 12),),
        warmup_ids=tuple(range(1, 17)),
        step=64,
        answer_tokens=1,
        seed="7",
        logits_file=str(tmp_path / "logits.f32"),
    )


def test_no_setting_of_python_that_changes_code_is_passed_on():
    given = dict.fromkeys(("PATH", "HOME", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONOPTIMIZE"), "/x")
    found = isolated({**given, "PYTHONDONTWRITEBYTECODE": "1"})
    assert found.keys() == {"PATH", "HOME", "PYTHONDONTWRITEBYTECODE", *isolation.OWN}
    assert found["PYTHONPATH"] == str(Path(isolation.__file__).resolve().parents[1])
    assert isolated(found) == found


@pytest.mark.parametrize(
    "steering", [{}, {"PYTHONSTARTUP": "/nowhere"}, {"PYTHONOPTIMIZE": "1"}, {"PYTHONUSERBASE": "/nowhere"}]
)
def test_the_command_line_imports_nothing_from_the_users_folders(shadows, steering, tmp_path):
    # The package itself is named first, so that it starts at all; what it needs then lies in the second folder.
    (shadows / "specprefill_repro.py").unlink()
    (shadows / "json.py").unlink()  # Of the standard library; nothing that runs after the start can help there.
    environment = {**os.environ, **steering, "PYTHONPATH": f"{isolation.OWN['PYTHONPATH']}:{shadows}"}
    done = subprocess.run(
        [Path(sys.executable).parent / "specprefill-repro", "claims", "list", "demo-placebo*"],
        cwd=Path(__file__).parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "demo-placebo" in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no disk that is always full")
def test_a_full_disk_under_the_output_is_explained():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [Path(sys.executable).parent / "specprefill-repro", "claims", "list"],
            cwd=Path(__file__).parent,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == Exit.ENVIRONMENT
    assert "the disk is full" in done.stderr and "next:" in done.stderr


def test_a_trial_imports_nothing_from_the_users_or_the_working_folder(job, shadows, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(shadows))
    monkeypatch.chdir(shadows)
    assert run_worker(job).outcome == "dense"
    assert canary.work() is not None


def test_jobs_of_a_run_import_nothing_from_the_users_folders(shadows, monkeypatch):
    monkeypatch.setattr(os, "environ", os.environ.copy())
    for name in ("PYTHONPATH", "PYTHONHOME", "PYTHONINSPECT"):
        os.environ[name] = str(shadows)
    lead_run()
    assert {name: value for name, value in os.environ.items() if name.startswith("PYTHON")} == isolated(
        {name: value for name, value in os.environ.items() if name in isolation.HARMLESS}
    )


def test_a_trial_refuses_a_library_that_is_not_the_installed_one(job, monkeypatch, tmp_path):
    installed = Path(mlx_lm.__file__).parent
    shutil.copytree(installed, tmp_path / "patched" / "mlx_lm")
    environment = {**worker_environment(), "PYTHONPATH": str(tmp_path / "patched")}
    monkeypatch.setattr("specprefill_repro.trials.trial.worker_environment", lambda: environment)
    with pytest.raises(ReproError, match=r"mlx_lm was imported from .*patched.*, not from .*-packages") as error:
        run_worker(job)
    assert error.value.exit_code is Exit.ENVIRONMENT
    assert not Path(job.logits_file).exists()


def test_one_strange_module_of_a_package_is_enough(monkeypatch, tmp_path):
    check_imported("mlx", "mlx_lm")
    with pytest.raises(ReproError, match="from nowhere"):
        check_imported("no_such_package")
    strange = type(sys)("mlx_lm.models.strange")
    strange.__file__ = str(tmp_path / "mlx_lm" / "models" / "strange.py")
    monkeypatch.setitem(sys.modules, strange.__name__, strange)
    with pytest.raises(ReproError, match="mlx_lm was imported from"):
        check_imported("mlx", "mlx_lm")
