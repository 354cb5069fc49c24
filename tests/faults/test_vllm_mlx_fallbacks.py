"""Every way in which vllm-mlx runs dense, or wrongly, without an error in its answer: the fault happens, and is named.

Numbers of rows are those of config/engine_history.yaml.
"""

import gzip
from pathlib import Path

import pytest

from specprefill_repro.engines.server import Limits
from specprefill_repro.errors import ReproError
from specprefill_repro.estimates.evidence import evidence_problems
from specprefill_repro.study.plan import Arm, ArmKind
from specprefill_repro.study.schema import NeedleKind
from specprefill_repro.trials.job import Job, Measurement
from specprefill_repro.trials.schema import PromptFacts, ServerEvidence, TrialRecord
from tiny_model import CORPUS
from vllm_mlx_stand_in import LLAMA, PROMPT, installed, make_job, measured, stand_in, write_model


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("models with space")
    return write_model(folder / "target"), write_model(folder / "draft")


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    installed(monkeypatch)


@pytest.fixture
def job(models, tmp_path):
    return make_job(tmp_path, *models)


def record(job: Job, seen: Measurement) -> TrialRecord:
    facts = PromptFacts(
        id="number-599-000", sha256="0" * 64, tokens=len(job.ids), kind=NeedleKind.NUMBER, depth=0.5, answer="4821"
    )
    return TrialRecord(
        cell="pair-599-speculative-keep0.3-on-server",
        block=0,
        position=0,
        treated=job.arm.kind is ArmKind.SPECULATIVE,
        requested=job.arm,
        engine="vllm-mlx",
        target="target",
        draft="draft",
        target_weights_sha256="0" * 64,
        draft_weights_sha256="0" * 64,
        prompt=facts,
        answer_text=seen.text,
        answer_found=False,
        **{name: getattr(seen, name) for name in Measurement.model_fields if name in TrialRecord.model_fields},
    )


def test_what_ran_as_asked_is_sparse_with_its_numbers(job):
    seen = measured(stand_in("0.2.9"), job)
    assert seen.outcome == "sparse"
    evidence = seen.evidence
    assert isinstance(evidence, ServerEvidence)
    assert (evidence.prompt_tokens, evidence.tokens_scored, evidence.tokens_kept) == (PROMPT, PROMPT, 183)
    assert (evidence.keep_logged, evidence.threshold_logged, evidence.cache_tokens_before) == (0.3, 1, 0)
    assert seen.phases is None and seen.environment["vllm-mlx"] == "0.2.9"
    assert evidence_problems(record(job, seen)) == []
    log = gzip.decompress(Path(job.log_file).read_bytes()).decode()
    assert "SpecPrefill: scored 599 tokens" in log
    assert str(Path(job.target_folder).parent) not in log + seen.environment["server options"]


def test_the_dense_arm_is_the_same_command_without_the_flags_and_is_dense(models, tmp_path):
    dense = make_job(tmp_path, models[0], None)
    seen = measured(stand_in("0.2.9"), dense)
    assert seen.outcome == "dense" and evidence_problems(record(dense, seen)) == []
    assert "specprefill" not in seen.environment["server options"]


LLAMA3 = {**LLAMA, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}
QWEN3 = {**LLAMA, "model_type": "qwen3"}
GEMMA4 = {**LLAMA, "model_type": "gemma4_text"}
VISION = {**LLAMA, "vision_config": {}}

CASES = {
    "1 plain rotary embedding of the draft": ("0.6.0", {}, {}, "no attribute 'num_heads'"),
    "2 compacted positions": ("0.6.0", {"faults": ("scoring-works",)}, {}, "map of positions"),
    "3 array on another thread": ("0.6.0", {}, {"draft": LLAMA3, "target": LLAMA3}, "no Stream"),
    "4 normalised queries": ("0.2.9", {}, {"draft": QWEN3}, "num_attention_heads"),
    "5 Gemma 4 draft": ("0.2.9", {}, {"draft": GEMMA4}, "shared_kv"),
    "6 one token": ("0.2.9", {"timed_tokens": 1}, {}, "must be non-zero"),
    "7 continuous batching": ("0.6.0", {"add": ("--continuous-batching",)}, {}, "one request at a time"),
    "8 vision route": ("0.2.9", {"add": ("--mllm",)}, {}, "model of images"),
    "9 below the threshold": ("0.2.9", {"threshold": PROMPT}, {}, "not above the threshold of 599"),
    "10 draft not loaded": ("0.2.9", {"faults": ("draft-unloadable",)}, {}, "draft model load failed"),
    "11 above 65,536 tokens": ("0.2.9", {"own": ("--prompt-tokens", "65537", "--cost", "0")}, {}, "exceeds max 65536"),
    "12 no draft named": ("0.2.9", {"drop": ("--specprefill-draft-model",)}, {}, "draft was loaded"),
    "23 traditional rotation": ("0.2.9", {}, {"target": {**LLAMA, "rope_traditional": True}}, "halves"),
    "22 sliding window": ("0.2.8", {}, {"target": {**LLAMA, "layer_types": ["sliding_attention"]}}, "window"),
    "scoring raises": ("0.2.9", {"faults": ("scoring-fails",)}, {}, "SpecPrefill failed"),
    "sparse prefill raises": ("0.2.9", {"faults": ("sparse-prefill-fails",)}, {}, "SpecPrefill failed"),
    "nothing is left out": ("0.2.9", {"faults": ("compacts-nothing",)}, {}, "599 of 599 tokens were kept"),
    "another keep rate": ("0.2.9", {"faults": ("ignores-request-keep",)}, {}, "119 of 599 tokens were kept"),
}
"""Row: release, how the stand-in differs, configs of the models, what the outcome says."""


@pytest.mark.parametrize("case", CASES)
def test_a_silent_fallback_is_named_and_never_counts(case, models, tmp_path):
    version, changes, configs, named = CASES[case]
    target, draft = models
    if configs:
        target = write_model(tmp_path / "target", configs.get("target"))
        draft = write_model(tmp_path / "draft", configs.get("draft"))
    job = make_job(tmp_path, target, draft)
    if "65537" in changes.get("own", ()):
        job = job.model_copy(update={"ids": tuple(range(65537))})
    seen = measured(stand_in(version, **changes), job)
    assert seen.outcome.startswith("fallback: ") and named in seen.outcome, seen.outcome
    assert any(seen.outcome in problem for problem in evidence_problems(record(job, seen)))
    assert str(tmp_path) not in seen.outcome


def test_row_13_a_stream_that_the_server_gave_up_is_no_answer(job, capfd):
    dense = job.model_copy(update={"draft_folder": None, "arm": Arm(kind=ArmKind.DENSE)})
    slow = ("--prompt-tokens", str(PROMPT), "--cost", "0.01")
    with pytest.raises(ReproError, match="holds no text"):
        measured(stand_in("0.2.9", own=slow, drop=("--timeout",), add=("--timeout", "0.2")), dense)
    assert "OUTPUT INACTIVITY TIMEOUT" in capfd.readouterr().err


def test_row_24_two_tokenizers_are_refused_before_anything_runs(models, tmp_path):
    draft = write_model(tmp_path / "draft", corpus=CORPUS[::-1])
    with pytest.raises(ReproError, match=r"different tokenizers: target .*, draft"):
        measured(stand_in("0.2.9"), make_job(tmp_path, models[0], draft))


def test_cached_tokens_are_no_sparse_trial(job, monkeypatch):
    engine = stand_in("0.2.9", faults=("cached-tokens",))
    monkeypatch.setattr(type(engine), "cached_tokens", lambda self, answer: 512)
    seen = measured(engine, job)
    assert seen.outcome == "fallback: 512 prompt tokens came from a cache"
    assert seen.evidence.cache_tokens_before == 512


def test_another_count_of_tokens_voids_the_trial_with_both_numbers(job):
    seen = measured(stand_in("0.2.9", faults=("wrong-count",)), job)
    assert "the server counted 600 prompt tokens, the prompt has 599" in evidence_problems(record(job, seen))


def test_the_server_counts_the_tokens_that_our_own_tokenizer_makes_of_the_same_text(models, tmp_path):
    from specprefill_repro.prompts.tokenizer import load_tokenizer

    text = "The treasure is hidden in room 4821. " * 20
    tokenizer = load_tokenizer(Path(models[0]))
    ids = tuple(tokenizer.encode(tokenizer.render(text)).ids)
    job = make_job(tmp_path, *models, text=text, ids=ids)
    seen = measured(stand_in("0.2.9", own=()), job)
    assert (seen.outcome, seen.evidence.prompt_tokens) == ("sparse", len(ids))


def test_warm_up_and_answer_are_requests_of_their_own_and_only_the_timed_one_is_evidence(job):
    asked = job.model_copy(update={"warmup_text": "Another text.", "answer_tokens": 5})
    engine = stand_in("0.2.9", own=("--prompt-tokens", str(PROMPT), "--answer", "one two three four five six"))
    seen = measured(engine, asked)
    assert seen.outcome == "sparse" and seen.text == "one two three four five"
    assert sum("scored" in line for line in seen.evidence.lines) == 1
    assert seen.evidence.completion_tokens == 2 and seen.warmup_seconds > 0
    log = gzip.decompress(Path(job.log_file).read_bytes()).decode()
    assert log.count("SpecPrefill: scored") == 3


def test_limits_are_long_enough_for_a_large_model_by_default():
    assert Limits().answer >= 7200 and Limits().ready >= 600
