# From records to estimates, and from estimates and claims to verdicts. Neither needs MLX.
rule estimates:
    input:
        *BLOCKS,
        gates=GATES,
    output:
        *ESTIMATES,
    log:
        f"{RESULTS}/logs/estimates.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        study=STUDY.name,
        settings=lambda wildcards: staleness.parameter(
            staleness.estimates_parts(PROJECT, STUDY)
        ),
    shell:
        "specprefill-repro stage estimates {params.study} 2> {log:q}"


rule verdicts:
    input:
        ESTIMATES,
        claims=staleness.claim_files(PROJECT),
        models=RECEIPTS,
    output:
        f"{RESULTS}/verdicts.json",
    log:
        f"{RESULTS}/logs/verdicts.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        study=STUDY.name,
        settings=lambda wildcards: staleness.parameter(
            staleness.verdicts_parts(PROJECT, STUDY)
        ),
    shell:
        "specprefill-repro stage verdicts {params.study} 2> {log:q}"
