"""Where things lie. Every path of the project is made here."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Project:
    """The folders of one checkout. `root` holds the Snakefile."""

    root: Path

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

    @property
    def store(self) -> Path:
        return self.results / "store"

    def model_folder(self, model: str) -> Path:
        return self.results / "models" / model

    def model_manifest(self, model: str) -> Path:
        return self.results / "models" / f"{model}.json"

    def study_results(self, study: str) -> Path:
        return self.results / "studies" / study

    def prompts(self, study: str, pair: str, length: int) -> Path:
        return self.study_results(study) / "prompts" / f"{pair}-{length}.json"

    def gate(self, study: str, pair: str) -> Path:
        return self.study_results(study) / "gate" / f"{pair}.json"

    def block_receipt(self, study: str, cell: str, index: int) -> Path:
        return self.study_results(study) / "blocks" / cell / f"{index}.json"

    def report(self, study: str) -> Path:
        return self.root / "reports" / study / "index.html"
