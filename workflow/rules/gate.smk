# Prove, before anything is timed, that every arm of a pair computes what it says.
rule gate:
    input:
        receipts_of_pair,
    output:
        f"{RESULTS}/gate/{{pair}}.json",
    log:
        f"{RESULTS}/logs/gate/{{pair}}.log",
    conda:
        "../../envs/pipeline.yaml"
    resources:
        accelerator=1,
    params:
        study=STUDY.name,
        settings=lambda wildcards: staleness.parameter(
            staleness.gate_parts(PROJECT, STUDY)
        ),
    shell:
        "specprefill-repro stage gate {params.study} {wildcards.pair} 2> {log:q}"
