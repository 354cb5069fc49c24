"""Fixtures that more than one test folder uses. `tiny_model.py` beside this file makes models without a download."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from specprefill_repro.prefill.blas import use_fast_blas
from specprefill_repro.project import Project

ROOT = Path(__file__).resolve().parent.parent


OUTER_TEMPORARY = tempfile.gettempdir()


def pytest_configure(config: pytest.Config) -> None:
    """A folder for temporary files, and with it a machine lease, of this process's own; and a fast BLAS for MLX.

    No test asserts a time, so tests need not wait for each other's trials, nor for a study that runs beside them. The
    BLAS comes before any test imports MLX: the Linux wheel's own is some twenty times slower.
    """
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="specprefill-tests-", dir=OUTER_TEMPORARY)
    os.environ["SPECPREFILL_TEST_LEASE"] = str(Path(tempfile.tempdir) / "lease")
    use_fast_blas()


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)


@pytest.fixture(scope="session")
def real_project() -> Project:
    """This checkout, with its real configuration and its results folder."""
    return Project(ROOT)


@pytest.fixture(scope="session")
def smollm2_folder(real_project: Project) -> Path:
    """SmolLM2-135M-Instruct as an MLX model directory; fetched once (about 93 MB), then only verified."""
    from specprefill_repro.models.fetch import fetch_model

    fetch_model(real_project, "smollm2-135m")
    return real_project.model_folder("smollm2-135m")
