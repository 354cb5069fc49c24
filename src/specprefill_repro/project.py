"""Where things lie. Every path of the project is made here."""

from dataclasses import dataclass
from pathlib import Path

from specprefill_repro.errors import ReproError

MERGED = "merged"
"""Folder of the page over many machines, among those of the studies."""


@dataclass(frozen=True)
class Project:
    """The folders of one checkout. `root` holds the Snakefile."""

    root: Path

    def relative(self, path: Path) -> str:
        """A path of the project as it is shown and recorded: below its root, with slashes."""
        return path.relative_to(self.root).as_posix()

    @property
    def config(self) -> Path:
        return self.root / "config"

    @property
    def results(self) -> Path:
        return self.root / "results"

    def study_file(self, study: str) -> Path:
        return self.config / "studies" / f"{study}.yaml"

    @property
    def models_file(self) -> Path:
        return self.config / "models.yaml"

    @property
    def models_lock(self) -> Path:
        return self.config / "models.lock.yaml"

    @property
    def claims(self) -> Path:
        return self.config / "claims"

    @property
    def environment_lock(self) -> Path:
        return self.root / "envs" / "pipeline.lock"

    def engine_lock(self, environment: str) -> Path:
        """Lock file of a server engine's environment."""
        return self.root / "envs" / f"{environment}.lock"

    def engine_environment(self, environment: str) -> Path:
        """Where the environment of a server engine is installed."""
        return self.results / "environments" / environment

    @property
    def store(self) -> Path:
        return self.results / "store"

    def model_folder(self, model: str) -> Path:
        return self.results / "models" / model

    def model_manifest(self, model: str) -> Path:
        return self.results / "models" / f"{model}.json"

    def model_downloads(self, model: str) -> Path:
        """Where files of a Hub model lie, one folder a commit, until the model is complete."""
        return self.results / "models" / f".{model}.download"

    def study_results(self, study: str) -> Path:
        return self.results / "studies" / study

    def model_receipt(self, study: str, model: str) -> Path:
        return self.study_results(study) / "models" / f"{model}.json"

    def environment_receipt(self, study: str, environment: str) -> Path:
        return self.study_results(study) / "environments" / f"{environment}.json"

    def prompts(self, study: str, pair: str, length: int) -> Path:
        return self.study_results(study) / "prompts" / f"{pair}-{length}.json"

    def gate(self, study: str, pair: str) -> Path:
        return self.study_results(study) / "gate" / f"{pair}.json"

    def block_receipts(self, study: str, cell: str) -> Path:
        return self.study_results(study) / "blocks" / cell

    def block_receipt(self, study: str, cell: str, index: int) -> Path:
        return self.block_receipts(study, cell) / f"{index}.json"

    def stopping(self, study: str, cell: str, blocks: int) -> Path:
        return self.study_results(study) / "stopping" / cell / f"{blocks}.json"

    def estimates(self, study: str) -> Path:
        return self.study_results(study) / "estimates.json"

    def trials(self, study: str) -> Path:
        return self.study_results(study) / "trials.parquet"

    def blocks(self, study: str) -> Path:
        return self.study_results(study) / "blocks.parquet"

    def verdicts(self, study: str) -> Path:
        return self.study_results(study) / "verdicts.json"

    def report(self, study: str) -> Path:
        return self.root / "reports" / study / "index.html"

    @property
    def merged_report(self) -> Path:
        return self.report(MERGED)

    def report_receipt(self, study: str) -> Path:
        return self.study_results(study) / "report.json"

    def made_from(self, study: str, step: str) -> Path:
        """What a step's outputs were made from; beside them, and no output itself."""
        return self.study_results(study) / "made-from" / f"{step}.json"

    def part(self, digest: str) -> Path:
        """What the digest of a part stands for, whichever study and step has it."""
        return self.results / "parts" / f"{digest}.json"


def find_project(start: Path | None = None) -> Project:
    """The project that the folder `start` (default: the current one) lies in, else the checkout this package is from.

    Raises:
        ReproError: neither holds a Snakefile.
    """
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents, Path(__file__).resolve().parents[2]):
        if (folder / "Snakefile").is_file() and (folder / "config" / "studies").is_dir():
            return Project(folder)
    raise ReproError(
        f"No project found in {here} or above it.",
        "The command works on a checkout of the project, which holds a Snakefile and config/studies.",
        "cd into the checkout, then run it again.",
    )
