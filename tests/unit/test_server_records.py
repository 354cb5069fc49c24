"""Records of a server through every stage to the page and back again, beside those of our own engine."""

import json
import shutil
from pathlib import Path

import pytest

from specprefill_repro import stages
from specprefill_repro.calibration.chain import estimates_of, prepare, render_page, scripted_study
from specprefill_repro.calibration.worlds import COSTS, claim
from specprefill_repro.engines.scripted import Noise, ScriptedEngine, World
from specprefill_repro.errors import ReproError
from specprefill_repro.files import read_model
from specprefill_repro.project import Project
from specprefill_repro.study.engines import VllmMlxEngine
from specprefill_repro.study.plan import plan_cells
from specprefill_repro.study.schema import Comparison, NeedleKind, Prompts, Study, Treatment
from specprefill_repro.trials.block import run_block
from specprefill_repro.trials.schema import BlockReceipt, ServerEvidence
from specprefill_repro.trials.store import Store
from specprefill_repro.verify import verify_page
from vllm_mlx_stand_in import LLAMA, installed, stand_in

LENGTH = 512
SERVER = "our-server"


def two_engines() -> Study:
    def comparison(engine: str | None) -> Comparison:
        return Comparison(
            pair="pair", engine=engine, treatment=Treatment.SPECULATIVE, lengths=(LENGTH,), keep=(0.2,), blocks=1
        )

    plain = scripted_study((comparison(None),))
    changes = {
        "prompts": Prompts(kinds=(NeedleKind.NUMBER,), answer_tokens=2, begin_reply=False),
        "engines": {SERVER: VllmMlxEngine(kind="vllm-mlx", version="0.2.9")},
        "comparisons": (comparison(None), comparison(SERVER)),
    }
    return Study(**{name: getattr(plain, name) for name in Study.model_fields} | changes)


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: object) -> tuple[Project, Study]:
    installed(monkeypatch)
    study = two_engines()
    project = prepare(folder, study, [claim()])
    shutil.copy(Path(__file__).parents[2] / "config" / "engine_history.yaml", project.config)
    for model in ("large", "small"):
        (project.model_folder(model) / "config.json").write_text(json.dumps(LLAMA))
    server = stand_in("0.2.9", own=("--prompt-tokens", str(LENGTH)), **changes)
    engines = {SERVER: server, study.engine: ScriptedEngine(World(COSTS, Noise(0.01)), 1, 4)}
    for cell in plan_cells(study):
        run_block(project, study, cell, 0, engines[cell.engine])
    stages.estimates(study.name, project)
    stages.verdicts(study.name, project)
    return project, study


def test_a_page_with_two_engines_is_made_from_its_records_and_recomputed_from_them(tmp_path, monkeypatch):
    project, study = run(tmp_path, monkeypatch)
    own, server = estimates_of(project).cells
    assert (own.cell, server.cell) == ("pair-512-speculative-keep0.2", f"pair-512-speculative-keep0.2-on-{SERVER}")
    assert (own.engine, server.engine) == (study.engine, SERVER)
    assert len(own.pairs) == len(server.pairs) == 2 and own.problems == server.problems == ()
    # 16 chunks of 32: four are kept.
    assert server.actual_keep == 128 / LENGTH and server.outcomes == {"sparse": 2}
    # The stand-in reads a quarter as fast as it drafts: what one engine takes says nothing of the other.
    assert server.dense_median_seconds != own.dense_median_seconds and server.predicted_speedup is None
    assert server.median_kl_nats is None and own.median_kl_nats is not None
    page = render_page(project)
    text = page.read_text()
    assert SERVER in text and "keep 0.2 and threshold 1 by the server&#39;s log" in text.replace("'", "&#39;")
    assert str(tmp_path) not in text
    assert 'id="engines"' in text and "vllm-mlx, pull request 180, commit f518c07" in text
    verified = verify_page(page)
    assert (verified.records, verified.divergences) == (8, 2)


def test_a_server_that_fell_back_has_no_pair_that_counts(tmp_path, monkeypatch):
    project, _ = run(tmp_path, monkeypatch, faults=("scoring-fails",))
    cell = estimates_of(project).cells[1]
    assert cell.pairs == () and cell.speedup is None
    assert all(outcome.startswith("fallback: SpecPrefill failed") for outcome in cell.outcomes)
    assert all("SpecPrefill failed" in problem for problem in cell.problems)


def test_a_block_of_a_server_is_found_again_and_measured_anew_when_its_log_was_touched(tmp_path, monkeypatch):
    project, study = run(tmp_path, monkeypatch)
    cell = plan_cells(study)[1]
    receipt = read_model(project.block_receipt(study.name, cell.id, 0), BlockReceipt)
    store = Store(project.store)
    assert store.find_receipt(receipt.fingerprint) == receipt
    evidence = store.get_record(receipt.records[0]).evidence
    assert isinstance(evidence, ServerEvidence)
    log = store.server_log_path(evidence.log_sha256)
    log.write_bytes(log.read_bytes()[:-1])
    assert store.find_receipt(receipt.fingerprint) is None
    with pytest.raises(ReproError, match="was changed"):
        store.check_artifact(store.get_record(receipt.records[0]))
