"""The machine-readable twins that lie beside the page: trials.csv, estimates.json, verdicts.json."""

import csv
import io
import json
from pathlib import Path
from typing import Any

from specprefill_repro.files import content_id, write_json, write_text
from specprefill_repro.report.data import ReportData
from specprefill_repro.trials.schema import TrialRecord


def write_tables(data: ReportData, folder: Path) -> None:
    """Write the three files into `folder`."""
    write_text(folder / "trials.csv", trials_csv(data))
    write_json(folder / "estimates.json", data.estimates)
    write_json(folder / "verdicts.json", data.verdicts)


def trials_csv(data: ReportData) -> str:
    """All trials in the order in which they ran, one a line.

    Nested fields become columns such as `evidence.tokens_kept`; lists and dictionaries are JSON. Text that a
    spreadsheet would take for a formula gets a leading apostrophe.
    """
    lines = [_flat(record) for record in sorted(data.records, key=lambda r: (r.started_at, r.cell, r.position))]
    columns = list(dict.fromkeys(name for line in lines for name in line))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _flat(record: TrialRecord) -> dict[str, Any]:
    plain = record.model_dump(mode="json")
    line: dict[str, Any] = {"record": content_id(plain)}
    for name, value in plain.items():
        if isinstance(value, dict) and name != "environment":
            line |= {f"{name}.{key}": _cell(inner) for key, inner in value.items()}
        else:
            line[name] = _cell(value)
    return line


def _cell(value: Any) -> Any:
    if isinstance(value, (dict, list)):
        return json.dumps(value, sort_keys=True, ensure_ascii=False)
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return value
