"""Fixtures that more than one test folder uses. `tiny_model.py` beside this file makes models without a download."""

from pathlib import Path

import pytest

from specprefill_repro.prefill.blas import use_fast_blas
from specprefill_repro.project import Project

ROOT = Path(__file__).resolve().parent.parent


def pytest_configure() -> None:
    """Give MLX a fast BLAS before any test imports it: the Linux wheel's own is some twenty times slower."""
    use_fast_blas()


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
