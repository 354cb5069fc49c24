"""Engines are found by the names that a study gives them; a change of one's code makes no other's trials stale."""

from typing import get_args

import pytest

from specprefill_repro.engines.interface import MODULES, engine_of, engines_of
from specprefill_repro.errors import ReproError
from specprefill_repro.fingerprint import import_closure
from specprefill_repro.project import Project
from specprefill_repro.study.engines import EngineSettings, MlxLmEngine, OmlxEngine, VllmMlxEngine
from specprefill_repro.study.plan import ArmKind
from specprefill_repro.study.schema import Prompts, Study
from synthetic_records import demo_study

SETTINGS = {
    "mlx-lm": MlxLmEngine(),
    "vllm-mlx": VllmMlxEngine(kind="vllm-mlx", version="0.2.9"),
    "omlx": OmlxEngine(kind="omlx", command="omlx"),
}


@pytest.fixture
def study() -> Study:
    study = demo_study()
    prompts = Prompts(kinds=study.prompts.kinds, begin_reply=False)
    engines = {f"my-{kind}": SETTINGS[kind] for kind in MODULES}
    comparisons = (
        study.comparisons[0],
        *(study.comparisons[1].model_copy(update={"engine": name}) for name in engines),
    )
    return demo_study(prompts=prompts, engines=engines, comparisons=comparisons)


def test_every_kind_that_a_study_can_name_has_its_module() -> None:
    union, _ = get_args(EngineSettings)
    assert (
        set(MODULES) == set(SETTINGS) == {kind.model_fields["kind"].annotation.__args__[0] for kind in get_args(union)}
    )


@pytest.mark.parametrize("kind", MODULES)
def test_every_engine_is_found_under_its_own_name(kind: str, study: Study, real_project: Project) -> None:
    assert engine_of(real_project, study, f"my-{kind}").name == kind


def test_the_engines_of_a_study_are_those_that_its_comparisons_name(study: Study, real_project: Project) -> None:
    assert list(engines_of(real_project, study)) == ["mlx-lm", *study.engines]


def test_an_unknown_engine_is_refused_with_the_names_of_the_known_ones(study: Study, real_project: Project) -> None:
    with pytest.raises(ReproError, match="There is no engine 'olmx'; there are: mlx-lm, my-mlx-lm"):
        engine_of(real_project, study, "olmx")


def test_a_version_without_a_lock_is_refused_with_the_names_of_those_that_have_one(real_project: Project) -> None:
    study = demo_study(engines={"old": VllmMlxEngine(kind="vllm-mlx", version="0.0.1")})
    with pytest.raises(ReproError, match=r"no environment 'vllm-mlx-0.0.1'; there are: vllm-mlx-0.2.9") as error:
        engine_of(real_project, study, "old")
    assert "envs/lock" in error.value.next


@pytest.mark.parametrize("kind", MODULES)
def test_the_code_of_an_engine_is_its_own_module_and_holds_no_other_engine(
    kind: str, study: Study, real_project: Project
) -> None:
    engine = engine_of(real_project, study, f"my-{kind}")
    code = import_closure(engine.code([ArmKind.DENSE, ArmKind.SPECULATIVE]))
    assert MODULES[kind] in code
    assert not code & (set(MODULES.values()) - {MODULES[kind]})


def test_the_worker_s_code_counts_and_that_of_other_arms_does_not(study: Study, real_project: Project) -> None:
    code = import_closure(engine_of(real_project, study, "mlx-lm").code([ArmKind.DENSE]))
    assert {"specprefill_repro.trials.worker", "specprefill_repro.prefill.dense"} <= code
    assert "specprefill_repro.prefill.scoring" not in code
