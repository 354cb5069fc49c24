# What all rules share: the study, where things lie, and the command that runs one stage.
import sys

from specprefill_repro import staleness
from specprefill_repro.engines.interface import engines_of
from specprefill_repro.errors import ReproError
from specprefill_repro.estimates.schema import Look
from specprefill_repro.estimates.stopping import blocks_to_run
from specprefill_repro.files import read_model
from specprefill_repro.models.load import base_of, load_definition
from specprefill_repro.project import Project
from specprefill_repro.study.load import load_study
from specprefill_repro.study.scale import scaled_name
from specprefill_repro.trials.parent import lead_run

lead_run()

PROJECT = Project(Path(workflow.basedir))
try:
    STUDY = load_study(PROJECT, scaled_name(config["study"], config.get("scale")))
    CELLS = staleness.cells_by_id(STUDY)
    MODELS = staleness.models_of(PROJECT, STUDY)
    engines_of(PROJECT, STUDY)
except ReproError as error:
    sys.exit(f"{error}")

RESULTS = f"results/studies/{STUDY.name}"
# The page is an output while there is none. Later its receipt alone is: Snakemake deletes outputs before a rerun, and
# the old page has to stay readable until the new one has replaced it.
PAGE = f"reports/{STUDY.name}/index.html"
REPORT = [
    f"{RESULTS}/report.json",
    *([] if PROJECT.report(STUDY.name).exists() else [PAGE]),
]
GATES = [f"{RESULTS}/gate/{pair}.json" for pair in STUDY.pairs]
# The estimates, and the records that they were made from as tables: nothing after them reads the store.
ESTIMATES = [
    f"{RESULTS}/{name}"
    for name in ("estimates.json", "trials.parquet", "blocks.parquet")
]
RECEIPTS = [f"{RESULTS}/models/{model}.json" for model in MODELS]


def receipts_of_cell(cell):
    """Its blocks; a function of what its looks decided, where their number is not fixed."""

    def stops(blocks):
        made = checkpoints.stopping.get(cell=cell.id, blocks=blocks).output[0]
        return read_model(Path(made), Look).stop

    if cell.blocks == cell.most_blocks:
        return block_receipts(cell, cell.blocks)
    return lambda wildcards: block_receipts(cell, blocks_to_run(cell, stops))


def block_receipts(cell, blocks):
    return [f"{RESULTS}/blocks/{cell.id}/{index}.json" for index in range(blocks)]


# One entry a cell, so that Snakemake plans the cells without waiting for one another.
BLOCKS = [receipts_of_cell(cell) for cell in CELLS.values()]


wildcard_constraints:
    environment="[a-z0-9._-]+",
    model="[a-z0-9._-]+",
    pair="[a-z0-9._-]+",
    cell="[a-z0-9._-]+",
    length="[0-9]+",
    index="[0-9]+",
    blocks="[0-9]+",


def receipts_of_pair(wildcards):
    pair = STUDY.pairs[wildcards.pair]
    return sorted(
        {f"{RESULTS}/models/{pair.target}.json", f"{RESULTS}/models/{pair.draft}.json"}
    )


def receipt_of_base(wildcards):
    base = base_of(load_definition(PROJECT, wildcards.model).source)
    return [] if base is None else [f"{RESULTS}/models/{base}.json"]


def inputs_of_block(wildcards):
    cell = CELLS[wildcards.cell]
    settings = STUDY.engines.get(cell.engine)
    environment = settings.environment if settings else None
    return [
        f"{RESULTS}/gate/{cell.pair}.json",
        f"{RESULTS}/prompts/{cell.pair}-{cell.length}.json",
        *([f"{RESULTS}/environments/{environment}.json"] if environment else []),
    ]
