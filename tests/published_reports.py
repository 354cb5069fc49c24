"""Small but complete reports whose pages verify: one comparison on a scripted machine, through every stage."""

from pathlib import Path

from specprefill_repro.calibration.chain import run_chain, scripted_study
from specprefill_repro.calibration.worlds import TRUE_WORLDS, claim
from specprefill_repro.project import Project
from specprefill_repro.study.schema import Comparison, Treatment

STUDY = "scripted"


def small_report(folder: Path, world: int = 0, seed: int = 1) -> Project:
    """A project in `folder` with a finished study of twelve trials; its page is rendered by `stages.report`."""
    comparison = Comparison(pair="pair", treatment=Treatment.SPECULATIVE, lengths=(512,), keep=(0.2,), blocks=3)
    study = scripted_study((comparison,), seed=seed)
    project, _ = run_chain(folder, study, TRUE_WORLDS[world].world, [claim(length=512)], seed)
    return project
