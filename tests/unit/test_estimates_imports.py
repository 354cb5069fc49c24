"""Anybody must be able to recompute a report on any machine: analysis and report import neither mlx nor mlx_lm."""

import subprocess
import sys

PROGRAM = """
import importlib, pkgutil, sys
for name in ("estimates", "verdicts", "report", "study", "bundles", "publish", "merge"):
    package = importlib.import_module(f"specprefill_repro.{name}")
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
print(*sorted(name for name in sys.modules if name.partition(".")[0] in ("mlx", "mlx_lm", "transformers", "torch")))
"""


def test_analysis_and_report_import_neither_mlx_nor_mlx_lm() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""
