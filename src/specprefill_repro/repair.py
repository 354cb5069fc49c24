"""Take away what was damaged since it was made, so that a run makes it again.

Snakemake looks at what a step reads and at its parameters. It does not see that an output was edited, that one in the
middle of the flow was removed, or that a record which a receipt names is gone.
"""

from pathlib import Path

from specprefill_repro.project import Project
from specprefill_repro.status import NOT_RUN, study_status
from specprefill_repro.study.schema import Study


def remove_damaged(project: Project, study: Study) -> list[str]:
    """Remove the outputs of steps that are not as they were made, and of all that read them; page and records stay.

    Returns:
        A line on each of those steps, and why; none on those that were never run.

    Raises:
        ReproError: as `study_status`.
    """
    standings = study_status(project, study)
    gone: set[Path] = set()
    for each in standings:
        if each.damaged or gone.intersection((*each.step.inputs, *each.step.after)):
            gone.update(each.step.outputs)
    for file in gone - {project.report(study.name)}:
        file.unlink(missing_ok=True)
    damaged = [each for each in standings if each.damaged and each.reasons != (NOT_RUN,)]
    return [f"{each.step.id} is made again: {'; '.join(each.reasons)}" for each in damaged]
