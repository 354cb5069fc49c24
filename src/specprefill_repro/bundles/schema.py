"""What a bundle says about itself, as it lies in bundle.json and in the index of a site."""

import re
from datetime import datetime

from pydantic import Field

from specprefill_repro import __version__
from specprefill_repro.estimates.schema import Estimates
from specprefill_repro.report.answer import answer
from specprefill_repro.report.data import ReportData
from specprefill_repro.report.rows import synthetic_models
from specprefill_repro.schema import Frozen
from specprefill_repro.trials.table import Trials

FORMAT = 1


class Summary(Frozen):
    """One line about a report. All of it but the version follows from the report's data."""

    format: int = FORMAT
    study: str = Field(max_length=200)
    title: str = Field(max_length=1000)
    machine: str = Field(max_length=1000)
    """Chip, cores, memory and system, as the trials' processes found them."""
    date: str = Field(max_length=40)
    """Of the last trial: UTC, ISO 8601; empty where no record has one."""
    records: int
    answer: str = Field(max_length=200)
    """The report's headline."""
    verdicts: dict[str, int]
    """How many statements got which verdict."""
    synthetic: tuple[str, ...]
    """Models with random weights: the answers of such a report mean nothing."""
    package: str = Field(default=__version__, max_length=40)
    """Version that made the bundle."""


def summary_of(data: ReportData, trials: Trials) -> Summary:
    """The line of a report that has trials."""
    words = [verdict.word.value for verdict in data.verdicts.verdicts]
    times = trials.table["started_at"].to_pylist()
    return Summary(
        study=data.study.name,
        title=data.study.title,
        machine=machine_of(data.estimates),
        date=max((time for time in times if _is_time(time)), default=""),
        records=len(trials),
        answer=answer(data).headline,
        verdicts={word: words.count(word) for word in sorted(set(words))},
        synthetic=tuple(synthetic_models(data)),
    )


def machine_of(estimates: Estimates) -> str:
    """The kind of machine that the trials ran on, in words; machines of the same kind have the same words."""
    found = {name: " or ".join(values) for name, values in estimates.environment.items()}
    cores, memory = found.get("cores"), found.get("memory_gib")
    parts = [
        found.get("chip") or "unknown chip",
        f"{cores} cores" if cores else "",
        f"{memory} GiB" if memory else "",
        found.get("system", ""),
    ]
    return ", ".join(part for part in parts if part)


def _is_time(text: str) -> bool:
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)", text):
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
