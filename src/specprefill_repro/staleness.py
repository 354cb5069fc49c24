"""What makes a finished stage stale, stage by stage: the parameters of the Snakemake rules.

Snakemake does not see edits under src/ nor of a lock file, so each rule gets a parameter that changes with them. A
parameter is one line of text, `name=hash name=hash`, so that Snakemake's log shows what changed.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from specprefill_repro.files import content_id, sha256_file
from specprefill_repro.fingerprint import code_fingerprint
from specprefill_repro.gate.run import gate_settings
from specprefill_repro.models.fingerprint import model_fingerprint
from specprefill_repro.models.load import base_of, load_definition
from specprefill_repro.project import Project
from specprefill_repro.study.plan import Cell, plan_cells, prompts_needed
from specprefill_repro.study.schema import Study
from specprefill_repro.trials.block import block_settings


def model_parameter(project: Project, study: Study, model: str) -> str:
    """Of rule `model`: definition, locked hashes, and what lies in the folder now."""
    return _line({"model": model_fingerprint(project, model)})


def environment_parameter(project: Project, environment: str) -> str:
    """Of rule `environment`: its lock."""
    return _line({"lock": sha256_file(project.engine_lock(environment))})


def prompts_parameter(project: Project, study: Study, pair: str, length: int) -> str:
    """Of rule `prompts`: the generator's code and what the study asks for."""
    asked = [study.seed, study.prompts.model_dump(mode="json"), prompts_needed(study, pair, length)]
    return _line(
        {
            "code": code_fingerprint(["specprefill_repro.prompts.build"]),
            "environment": sha256_file(project.environment_lock),
            "study": content_id(asked),
        }
    )


def gate_parameter(project: Project, study: Study) -> str:
    """Of rule `gate`."""
    return _line(gate_settings(project, study))


def block_parameter(project: Project, study: Study, cell: Cell) -> str:
    """Of rule `block`."""
    return _line(block_settings(project, study, cell))


def stopping_parameter(project: Project, study: Study, cell: Cell) -> str:
    """Of checkpoint `stopping`: the rule's code and the cap."""
    return _line(
        {"code": code_fingerprint(["specprefill_repro.estimates.stopping"]), "most": str(cell.most_blocks)},
    )


def estimates_parameter(project: Project, study: Study) -> str:
    """Of rule `estimates`: the code of the statistics and of the tables."""
    modules = ["specprefill_repro.estimates.build", "specprefill_repro.trials.table"]
    return _line({"code": code_fingerprint(modules)})


def verdicts_parameter(project: Project, study: Study) -> str:
    """Of rule `verdicts`: the rules' code, and which claims the study names."""
    return _line(
        {"code": code_fingerprint(["specprefill_repro.verdicts.build"]), "claims": content_id(list(study.claims))}
    )


def report_parameter(project: Project, study: Study) -> str:
    """Of rule `report`: its code, its templates, and the words of the study."""
    templates = Path(__file__).parent / "report" / "templates"
    digest = hashlib.sha256()
    for template in sorted(templates.rglob("*")):
        if template.is_file():
            digest.update(f"{template.relative_to(templates)}={sha256_file(template)}\n".encode())
    return _line(
        {
            "code": code_fingerprint(["specprefill_repro.report.build", "specprefill_repro.report.tables"]),
            "templates": digest.hexdigest(),
            "study": content_id(study),
            "environment": sha256_file(project.environment_lock),
            **_history(project, study),
        }
    )


def _history(project: Project, study: Study) -> dict[str, str]:
    """What is known of servers is part of a page that is about them."""
    shown = study.questions or study.has_servers
    return {"history": sha256_file(project.config / "engine_history.yaml")} if shown else {}


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


def _line(parts: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(parts.items()))
