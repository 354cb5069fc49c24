# Write the prompts of one pair and length: exact token ids, unique, with a hash.
rule prompts:
    input:
        receipts_of_pair,
    output:
        f"{RESULTS}/prompts/{{pair}}-{{length}}.json",
    log:
        f"{RESULTS}/logs/prompts/{{pair}}-{{length}}.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        study=STUDY.name,
        settings=lambda wildcards: staleness.parameter(
            staleness.prompts_parts(
                PROJECT, STUDY, wildcards.pair, int(wildcards.length)
            )
        ),
    shell:
        "specprefill-repro stage prompts {params.study} {wildcards.pair} {wildcards.length} 2> {log:q}"
