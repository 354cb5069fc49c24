# Fetch, convert or derive a model, verify it, and write its receipt. Weights are never rule outputs.
rule model:
    input:
        receipt_of_base,
    output:
        f"{RESULTS}/models/{{model}}.json",
    log:
        f"{RESULTS}/logs/model/{{model}}.log",
    conda:
        "../../envs/pipeline.yaml"
    resources:
        # Nothing is downloaded, hashed or converted beside a trial of another pair.
        accelerator=1,
    params:
        study=STUDY.name,
        settings=lambda wildcards: staleness.parameter(
            staleness.model_parts(PROJECT, STUDY, wildcards.model)
        ),
    shell:
        "specprefill-repro stage model {params.study} {wildcards.model} 2> {log:q}"
