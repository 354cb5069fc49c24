# Install the environment of a server engine from its lock, apart from ours. It is never a rule output.
rule environment:
    output:
        f"{RESULTS}/environments/{{environment}}.json",
    log:
        f"{RESULTS}/logs/environments/{{environment}}.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        study=STUDY.name,
        settings=lambda wildcards: staleness.parameter(
            staleness.environment_parts(PROJECT, wildcards.environment)
        ),
    shell:
        "specprefill-repro stage environment {params.study} {wildcards.environment} 2> {log:q}"
