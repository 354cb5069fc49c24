"""A study on a scripted machine, through every stage: blocks, looks, estimates, verdicts, page.

The same functions run as in any other study, from files to files. Only what would need weights is written by hand:
models without weights, prompts of made-up tokens, a gate that passed.
"""

from pathlib import Path

from tokenizers import Tokenizer, models

from specprefill_repro import stages
from specprefill_repro.engines.scripted import NAME, ScriptedEngine, World
from specprefill_repro.estimates.schema import Estimates
from specprefill_repro.files import content_id, read_model, write_json, write_text
from specprefill_repro.gate.schema import Check, GateResult
from specprefill_repro.models.schema import LocalSource, Manifest
from specprefill_repro.project import Project
from specprefill_repro.prompts.schema import Prompt, PromptSet
from specprefill_repro.study.plan import plan_cells, prompts_needed
from specprefill_repro.study.schema import Comparison, NeedleKind, Pair, Prompts, Study, Treatment
from specprefill_repro.trials.block import run_block
from specprefill_repro.verdicts.schema import Claim, Verdicts

WORDS = 1000
"""Token i reads as the number 1000 + i."""


def scripted_study(comparisons: tuple[Comparison, ...], claims: tuple[str, ...] = ("*",), seed: int = 1) -> Study:
    """A study of the pairs `pair` (large target, small draft) and `self` (the draft as its own draft)."""
    return Study(
        name=NAME,
        title="A scripted machine",
        question="Does the method find the truth of a machine whose truth is known?",
        seed=seed,
        engine=NAME,
        pairs={"pair": Pair(target="large", draft="small"), "self": Pair(target="small", draft="small")},
        prompts=Prompts(kinds=(NeedleKind.NUMBER,), answer_tokens=1),
        comparisons=comparisons,
        claims=claims,
    )


def usual_study(blocks: int = 3, most_blocks: int | None = None, lengths: tuple[int, ...] = (512, 1024)) -> Study:
    """Treatment and placebo on the pair, and the draft as its own draft, at two lengths."""

    def comparison(pair: str, treatment: Treatment, *keep: float) -> Comparison:
        return Comparison(
            pair=pair, treatment=treatment, lengths=lengths, keep=keep, blocks=blocks, most_blocks=most_blocks
        )

    return scripted_study(
        (
            comparison("pair", Treatment.SPECULATIVE, 0.2),
            comparison("pair", Treatment.PLACEBO),
            comparison("self", Treatment.SPECULATIVE, 0.2),
        )
    )


def run_chain(folder: Path, study: Study, world: World, claims: list[Claim], seed: int = 1) -> tuple[Project, Verdicts]:
    """Run the study in `folder` to its verdicts; `render_page` makes the page of it.

    Raises:
        ReproError: as the stages do; a scripted crash is one of a trial.
    """
    project = prepare(folder, study, claims)
    cells = plan_cells(study)
    engine = ScriptedEngine(world, seed, trials=sum(4 * cell.blocks for cell in cells))
    for cell in cells:
        for index in range(cell.blocks):
            run_block(project, study, cell, index, engine)

        def stops(blocks: int, cell: str = cell.id) -> bool:
            return stages.stopping(study.name, cell, blocks, project).stop

        for index in range(cell.blocks, cell.most_blocks):
            if stops(index):
                break
            run_block(project, study, cell, index, engine)
    stages.estimates(study.name, project)
    stages.verdicts(study.name, project)
    return project, read_model(project.verdicts(study.name), Verdicts)


def render_page(project: Project) -> Path:
    """Make the page of a study that `run_chain` ran, and return its path."""
    stages.report(NAME, project)
    return project.report(NAME)


def estimates_of(project: Project) -> Estimates:
    """The estimates that `run_chain` left."""
    return read_model(project.estimates(NAME), Estimates)


def prepare(folder: Path, study: Study, claims: list[Claim]) -> Project:
    """Write a project that needs no weights: study, cards, models, prompts, gates."""
    project = Project(folder)
    write_text(folder / "Snakefile", "")
    write_text(project.environment_lock, "")
    write_json(project.study_file(study.name), study)
    write_json(project.claims / "claims.yaml", {"claims": [claim.model_dump(mode="json") for claim in claims]})
    names = sorted({name for pair in study.pairs.values() for name in (pair.target, pair.draft)})
    write_json(
        project.models_file,
        {"models": {name: {"source": {"kind": "local", "path": name}, "license": "none"} for name in names}},
    )
    for name in names:
        manifest = _manifest(name)
        write_json(project.model_manifest(name), manifest)
        write_json(project.model_receipt(study.name, name), manifest)
        _write_tokenizer(project.model_folder(name))
    for name, pair in study.pairs.items():
        write_json(project.gate(study.name, name), _gate(name, pair))
    for cell in plan_cells(study):
        count = prompts_needed(study, cell.pair, cell.length)
        prompts = PromptSet(
            pair=cell.pair,
            tokenizer_sha256=content_id("tokenizer"),
            length=cell.length,
            prompts=tuple(_prompt(cell.length, number) for number in range(count)),
        )
        write_json(project.prompts(study.name, cell.pair, cell.length), prompts)
    return project


def _manifest(name: str) -> Manifest:
    return Manifest(
        name=name,
        source=LocalSource(kind="local", path=name),
        locked=True,
        model_type="llama",
        layers=1,
        vocabulary=WORDS,
        context=1_000_000,
        parameters=1,
        weight_bytes=4,
        dtype="float32",
        quantization=None,
        tokenizer_sha256=content_id("tokenizer"),
        weights_sha256=content_id(name),
        fingerprint=content_id(name),
        files=(),
    )


def _write_tokenizer(folder: Path) -> None:
    words = {str(1000 + token): token for token in range(WORDS)}
    write_text(folder / "tokenizer.json", Tokenizer(models.WordLevel(words, unk_token="1000")).to_str())


def _gate(name: str, pair: Pair) -> GateResult:
    check = Check(name="scripted", passed=True, measured="a scripted machine has no weights", required="nothing")
    return GateResult(
        pair=name,
        target=pair.target,
        draft=pair.draft,
        target_weights_sha256=content_id(pair.target),
        draft_weights_sha256=content_id(pair.draft),
        fingerprint=content_id(name),
        checks=(check,),
    )


def _prompt(length: int, number: int) -> Prompt:
    place = length // 2
    answer = 500 + number
    ids = tuple(answer if token == place else 1 + (token * 7 + number) % 400 for token in range(length))
    return Prompt(
        id=f"number-{length}-{number:03d}",
        kind=NeedleKind.NUMBER,
        depth=0.5,
        needles=(f"The secret number is {1000 + answer}.",),
        answer=str(1000 + answer),
        text="",
        reply="",
        ids=ids,
        free_from=0,
        needle_tokens=((place, place + 1),),
        seed=f"{length}/{number}",
        sha256=content_id(list(ids)),
    )
