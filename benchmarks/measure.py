"""What the benchmarks share: intervals of paired ratios, a table, and a file of results with the machine's state."""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from specprefill_repro.estimates.statistics import summary
from specprefill_repro.trials.machine import machine_facts, software_facts

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results" / "benchmarks"


def ratio(log_ratios: Sequence[float]) -> dict[str, float]:
    """Geometric mean of paired ratios and its 95 % interval (Student's t on the logarithms)."""
    found = summary(log_ratios)
    interval = found.interval(0.95)
    return {
        "ratio": found.speedup,
        "low": interval.low if interval else float("nan"),
        "high": interval.high if interval else float("nan"),
        "pairs": len(log_ratios),
    }


def words(found: dict[str, float]) -> str:
    """A ratio with its interval, for a table."""
    return f"{found['ratio']:.3f} ({found['low']:.3f} to {found['high']:.3f})"


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    made = Table(*columns, title=title, title_justify="left")
    for row in rows:
        made.add_row(*row)
    Console(width=150).print(made)


def write(name: str, content: dict[str, Any]) -> None:
    """Write results/benchmarks/NAME.json, with machine, versions, load and time."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    state = {"load": os.getloadavg(), "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    path.write_text(json.dumps({"machine": machine_facts() | software_facts(), **state, **content}, indent=1))
    print(f"written: {path.relative_to(ROOT)}, load now {os.getloadavg()[0]:.1f}")
