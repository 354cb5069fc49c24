"""`python -m specprefill_repro` is `specprefill-repro`."""

from specprefill_repro.cli import main

main()
