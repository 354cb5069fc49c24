"""Run the gate for one pair of a study, from files to a file."""

from specprefill_repro.files import content_id, read_model, sha256_file, write_json
from specprefill_repro.fingerprint import code_fingerprint
from specprefill_repro.gate.schema import GateResult
from specprefill_repro.models.schema import Manifest
from specprefill_repro.project import Project
from specprefill_repro.study.schema import Selection, Study
from specprefill_repro.trials.lease import machine_lease
from specprefill_repro.trials.machine import machine_facts

GATE_CODE = ("specprefill_repro.gate.checks",)
"""Modules whose code can change the gate's result."""


def gate_settings(project: Project, study: Study) -> dict[str, str]:
    """What is known before the gate runs and can change its result, by name; a parameter of its Snakemake rule."""
    return {
        "code": code_fingerprint(GATE_CODE),
        "environment": sha256_file(project.environment_lock),
        "machine": content_id(machine_facts()),
        "selection": content_id([study.selection.model_dump(), [rule.model_dump() for rule in sampling_rules(study)]]),
    }


def sampling_rules(study: Study) -> tuple[Selection, ...]:
    """The study's rules that draw look-ahead tokens."""
    return tuple(rule for rule in study.selections if rule.temperature > 0)


def run_gate(project: Project, study: Study, pair_name: str) -> GateResult:
    """Check a pair and write the result, passed or not; a failed gate stops that pair's timing, not the study."""
    pair = study.pairs[pair_name]
    target = read_model(project.model_manifest(pair.target), Manifest)
    draft = read_model(project.model_manifest(pair.draft), Manifest)

    from specprefill_repro.prefill.blas import use_fast_blas

    use_fast_blas()
    from specprefill_repro.gate.checks import run_checks
    from specprefill_repro.gate.pair import load_pair

    with machine_lease():
        loaded = load_pair(
            target,
            draft,
            project.model_folder(target.name),
            project.model_folder(draft.name),
            study.selection,
            sampling_rules(study),
        )
        checks = tuple(run_checks(loaded))
    result = GateResult(
        pair=pair_name,
        target=target.name,
        draft=draft.name,
        target_weights_sha256=target.weights_sha256,
        draft_weights_sha256=draft.weights_sha256,
        fingerprint=content_id(
            {**gate_settings(project, study), "target": target.weights_sha256, "draft": draft.weights_sha256}
        ),
        checks=checks,
    )
    write_json(project.gate(study.name, pair_name), result)
    return result
