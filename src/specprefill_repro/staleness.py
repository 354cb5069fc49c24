"""What makes a finished stage stale, stage by stage: the parameters of the Snakemake rules.

Snakemake does not see edits under src/ nor of a lock file, so each rule gets a parameter that changes with them. A
parameter is one line of text, `name=hash name=hash`, so that Snakemake's log shows what changed. What each hash stands
for is written beside the results (made_from.py), for `specprefill-repro status`.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specprefill_repro import parts as part
from specprefill_repro.engines.interface import engine_of
from specprefill_repro.files import content_id, sha256_file
from specprefill_repro.fingerprint import definitions
from specprefill_repro.gate.run import GATE_CODE, gate_settings, sampling_rules
from specprefill_repro.models.fingerprint import describe_model, model_fingerprint
from specprefill_repro.models.load import base_of, load_definition
from specprefill_repro.parts import Part, Parts
from specprefill_repro.project import Project
from specprefill_repro.study.plan import Cell, plan_cells, prompts_needed
from specprefill_repro.study.schema import Study
from specprefill_repro.trials.block import block_code, block_settings
from specprefill_repro.trials.machine import machine_facts


def parameter(parts: Parts) -> str:
    """The parameter of a rule."""
    return " ".join(f"{name}={each.digest}" for name, each in sorted(parts.items()))


def model_parts(project: Project, study: Study, model: str) -> Parts:
    """Of rule `model`: definition, locked hashes, and what lies in the folder now."""
    return {"model": Part(model_fingerprint(project, model), lambda: describe_model(project, model))}


def environment_parts(project: Project, environment: str) -> Parts:
    """Of rule `environment`: its lock."""
    return {"lock": part.of_lock(project.engine_lock(environment))}


def prompts_parts(project: Project, study: Study, pair: str, length: int) -> Parts:
    """Of rule `prompts`: the generator's code and what the study asks for."""
    prompts, needed = study.prompts.model_dump(mode="json"), prompts_needed(study, pair, length)
    return {
        "code": part.of_code("specprefill_repro.prompts.build"),
        "environment": part.of_lock(project.environment_lock),
        "study": Part(
            content_id([study.seed, prompts, needed]),
            lambda: {"seed": study.seed, "prompts": prompts, "number of prompts": needed},
        ),
    }


def gate_parts(project: Project, study: Study) -> Parts:
    """Of rule `gate`."""
    described: dict[str, Callable[[], Any]] = {
        "code": lambda: definitions(GATE_CODE),
        "environment": lambda: part.pinned_versions(project.environment_lock),
        "machine": machine_facts,
        "selection": lambda: {
            "the study's": study.selection.model_dump(mode="json"),
            "with drawn tokens": [rule.model_dump(mode="json") for rule in sampling_rules(study)],
        },
    }
    return {name: Part(digest, described.get(name)) for name, digest in gate_settings(project, study).items()}


def block_parts(project: Project, study: Study, cell: Cell) -> Parts:
    """Of rule `block`."""
    engine = engine_of(project, study, cell.engine)
    own = study.engines.get(cell.engine)
    described: dict[str, Callable[[], Any]] = {
        "code": lambda: definitions(block_code(engine, cell)),
        "environment": lambda: part.pinned_versions(project.environment_lock),
        "machine": machine_facts,
        "arms": lambda: {
            "baseline": cell.baseline.model_dump(mode="json"),
            "treated": cell.treated.model_dump(mode="json"),
        },
        "prefill": lambda: {
            "prefill_step": study.prefill_step,
            "warmup_tokens": study.warmup_tokens,
            "answer_tokens": study.prompts.answer_tokens,
            "perplexity": study.prompts.perplexity,
        },
    }
    if own is not None:
        described["engine settings"] = lambda: own.model_dump(mode="json")
    if own is not None and own.environment is not None:
        lock = project.engine_lock(own.environment)
        described["engine environment"] = lambda: part.pinned_versions(lock)
    settings = block_settings(project, study, cell, engine)
    return {name: Part(digest, described.get(name)) for name, digest in settings.items()}


def stopping_parts(project: Project, study: Study, cell: Cell) -> Parts:
    """Of checkpoint `stopping`: the rule's code and the cap."""
    return {
        "code": part.of_code("specprefill_repro.estimates.stopping"),
        "environment": part.of_lock(project.environment_lock),
        "most": Part(str(cell.most_blocks)),
    }


def estimates_parts(project: Project, study: Study) -> Parts:
    """Of rule `estimates`: the code of the statistics and of the tables."""
    return {
        "code": part.of_code("specprefill_repro.estimates.cells"),
        "environment": part.of_lock(project.environment_lock),
    }


def verdicts_parts(project: Project, study: Study) -> Parts:
    """Of rule `verdicts`: the rules' code, and which claims the study names."""
    return {
        "code": part.of_code("specprefill_repro.verdicts.build"),
        "environment": part.of_lock(project.environment_lock),
        "claims": part.of_value(list(study.claims)),
    }


def report_parts(project: Project, study: Study) -> Parts:
    """Of rule `report`: its code, its templates, the error rates that it states, and the words of the study."""
    parts: dict[str, Part] = {
        "code": part.of_code("specprefill_repro.report.build", "specprefill_repro.report.tables"),
        "templates": _templates(),
        "error rates": Part(sha256_file(Path(__file__).parent / "calibration" / "results.json")),
        "study": Part(content_id(study), lambda: study.model_dump(mode="json")),
        "environment": part.of_lock(project.environment_lock),
    }
    if study.questions or study.has_servers:
        # What is known of servers is part of a page that is about them.
        parts["history"] = part.of_yaml(project.config / "engine_history.yaml")
    return parts


def _templates() -> Part:
    folder = Path(__file__).parent / "report" / "templates"
    hashes = {
        path.relative_to(folder).as_posix(): sha256_file(path) for path in sorted(folder.rglob("*")) if path.is_file()
    }
    digest = hashlib.sha256("".join(f"{name}={sha256}\n" for name, sha256 in hashes.items()).encode())
    return Part(digest.hexdigest(), lambda: {name: sha256[:16] for name, sha256 in hashes.items()})


def models_of(project: Project, study: Study) -> list[str]:
    """Every model that a study needs, those that others are made from included and first.

    Raises:
        ReproError: config/models.yaml does not define one of them.
    """
    ordered: list[str] = []
    for pair in study.pairs.values():
        for name in (pair.target, pair.draft):
            chain = [name]
            while (base := base_of(load_definition(project, chain[-1]).source)) is not None:
                chain.append(base)
            ordered.extend(model for model in reversed(chain) if model not in ordered)
    return ordered


def claim_files(project: Project) -> list[str]:
    """The files of config/claims, relative to the project."""
    return sorted(str(path.relative_to(project.root)) for path in project.claims.glob("*.yaml"))


def cells_by_id(study: Study) -> dict[str, Cell]:
    """The cells of a study by id."""
    return {cell.id: cell for cell in plan_cells(study)}
