"""Engines are found by name, and a change of one's code makes no other's trials stale."""

import pytest

from specprefill_repro.engines.interface import MODULES, engine_named
from specprefill_repro.errors import ReproError
from specprefill_repro.fingerprint import import_closure
from specprefill_repro.study.plan import ArmKind


@pytest.mark.parametrize("name", MODULES)
def test_every_engine_is_found_under_its_own_name(name: str) -> None:
    assert engine_named(name).name == name


def test_an_unknown_engine_is_refused_with_the_names_of_the_known_ones() -> None:
    with pytest.raises(ReproError, match="There is no engine 'olmx'; there are: mlx-lm"):
        engine_named("olmx")


@pytest.mark.parametrize("name", MODULES)
def test_the_code_of_an_engine_is_its_own_module_and_holds_no_other_engine(name: str) -> None:
    code = import_closure(engine_named(name).code([ArmKind.DENSE, ArmKind.SPECULATIVE]))
    assert MODULES[name] in code
    assert not code & (set(MODULES.values()) - {MODULES[name]})


def test_the_worker_s_code_counts_and_that_of_other_arms_does_not() -> None:
    code = import_closure(engine_named("mlx-lm").code([ArmKind.DENSE]))
    assert {"specprefill_repro.trials.worker", "specprefill_repro.prefill.dense"} <= code
    assert "specprefill_repro.prefill.scoring" not in code
