# Render the page, with every record inside.
rule report:
    input:
        ESTIMATES,
        verdicts=f"{RESULTS}/verdicts.json",
        gates=GATES,
        models=RECEIPTS,
    output:
        *REPORT,
    log:
        f"{RESULTS}/logs/report.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        study=STUDY.name,
        settings=lambda wildcards: staleness.parameter(
            staleness.report_parts(PROJECT, STUDY)
        ),
    shell:
        "specprefill-repro stage report {params.study} 2> {log:q}"
