# Measure one block: four trials in clean processes, one at a time on the whole machine.
# The output is a receipt; the records lie in results/store and are never deleted.
rule block:
    input:
        inputs_of_block,
    output:
        f"{RESULTS}/blocks/{{cell}}/{{index}}.json",
    log:
        f"{RESULTS}/logs/blocks/{{cell}}-{{index}}.log",
    conda:
        "../../envs/pipeline.yaml"
    resources:
        accelerator=1,
    params:
        study=STUDY.name,
        settings=lambda wildcards: staleness.parameter(
            staleness.block_parts(PROJECT, STUDY, CELLS[wildcards.cell])
        ),
    shell:
        "specprefill-repro stage block {params.study} {wildcards.cell} {wildcards.index} 2> {log:q}"


# Decide from the width of a cell's interval, and from nothing else, whether it gets another block.
checkpoint stopping:
    input:
        lambda wildcards: block_receipts(CELLS[wildcards.cell], int(wildcards.blocks)),
    output:
        f"{RESULTS}/stopping/{{cell}}/{{blocks}}.json",
    log:
        f"{RESULTS}/logs/stopping/{{cell}}-{{blocks}}.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        study=STUDY.name,
        settings=lambda wildcards: staleness.parameter(
            staleness.stopping_parts(PROJECT, STUDY, CELLS[wildcards.cell])
        ),
    shell:
        "specprefill-repro stage stopping {params.study} {wildcards.cell} {wildcards.blocks} 2> {log:q}"
