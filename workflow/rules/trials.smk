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
        settings=lambda wildcards: staleness.block_parameter(
            PROJECT, STUDY, CELLS[wildcards.cell]
        ),
    shell:
        "specprefill-repro stage block {params.study} {wildcards.cell} {wildcards.index} 2> {log:q}"
