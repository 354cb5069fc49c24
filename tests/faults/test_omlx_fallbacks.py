"""oMLX: every way of running dense, or wrongly, comes out as what it was; only a proven run comes out as sparse."""

import gzip
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specprefill_repro.engines import omlx
from specprefill_repro.engines.server import Limits
from specprefill_repro.errors import ReproError
from specprefill_repro.project import Project
from specprefill_repro.study.engines import OmlxEngine
from specprefill_repro.study.plan import Arm, ArmKind
from specprefill_repro.trials.job import Job, Measurement
from tiny_model import write_tiny_tokenizer

STAND_IN = Path(__file__).resolve().parent.parent / "stand_in_server.py"
PROMPT = 599
OLD, NEW = "0.3.5.dev1", "0.3.9.dev1"
LLAMA = {"model_type": "llama"}
LIMITS = Limits(ready=30, answer=30, stop=5)


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tiny_tokenizer(folder)
    return folder / "tokenizer.json"


@pytest.fixture
def job(tmp_path: Path, tokenizer_file: Path) -> Callable[..., Job]:
    def make(
        kind: ArmKind = ArmKind.SPECULATIVE, target: Any = LLAMA, draft: Any = LLAMA, keep: float = 0.3, **more: Any
    ) -> Job:
        for name, config in (("target", target), ("draft", draft)):
            folder = tmp_path / "models with space" / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "config.json").write_text(json.dumps(config))
            (folder / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
        speculative = kind is ArmKind.SPECULATIVE
        values: dict[str, Any] = {
            "target_folder": str(tmp_path / "models with space" / "target"),
            "draft_folder": str(tmp_path / "models with space" / "draft") if speculative else None,
            "arm": Arm(kind=kind, keep=keep if speculative else 1.0),
            "ids": tuple(range(PROMPT)),
            "needle_tokens": ((10, 12),),
            "warmup_ids": (1, 2, 3),
            "step": 2048,
            "answer_tokens": 4,
            "seed": "1/cell/prompt",
            "logits_file": str(tmp_path / "logits.f32"),
            "log_file": str(tmp_path / "server.log.gz"),
            "text": "What is the secret number?",
        }
        return Job(**{**values, **more})

    return make


@pytest.fixture
def measure(real_project: Project, job: Callable[..., Job]) -> Callable[..., Measurement]:
    def run(version: str = NEW, *faults: str, threshold: int = 1, options: str = "", **of_job: Any) -> Measurement:
        named = " ".join(f"--fault {fault}" for fault in faults)
        stand_in = shlex.join([sys.executable, str(STAND_IN)])
        command = f"{stand_in} --as omlx=={version} --prompt-tokens {PROMPT} {named} {options}"
        given = OmlxEngine(kind="omlx", command=command, threshold=threshold)
        return omlx.Omlx(real_project, given, LIMITS).measure(job(**of_job), None)

    return run


@pytest.mark.parametrize("version", [OLD, NEW])
def test_a_proven_run_is_sparse_and_its_record_holds_the_proof(measure, tmp_path, version):
    measured = measure(version)
    assert measured.outcome == "sparse"
    evidence = measured.evidence
    assert evidence.prompt_tokens == evidence.tokens_scored == PROMPT
    assert evidence.tokens_kept == 183  # 5 chunks of 32 and the last one of 23
    assert evidence.cached_tokens == evidence.draft_cached_tokens == 0
    assert any("sparse prefill 182/599" in line for line in evidence.lines)
    # One measurement in several fields, beside the client's clock.
    assert evidence.server_seconds["time_to_first_token"] == evidence.server_seconds["prompt_eval_duration"]
    assert measured.environment["omlx"] == version
    log = gzip.decompress((tmp_path / "server.log.gz").read_bytes()).decode()
    assert "SpecPrefill: draft model set (no SSD cache)" in log
    assert str(tmp_path) not in log + repr(measured)


def test_the_dense_arm_is_dense_and_has_no_draft(measure):
    measured = measure(OLD, kind=ArmKind.DENSE)
    assert measured.outcome == "dense"
    assert measured.evidence.tokens_scored == 0 and measured.evidence.tokens_kept == PROMPT


def test_the_key_of_the_run_is_in_no_record_and_no_log(measure, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(omlx, "new_secret", lambda: made.append(f"secret{len(made):010d}") or made[-1])
    measured = measure(NEW, "key-in-log")
    log = gzip.decompress((tmp_path / "server.log.gz").read_bytes()).decode()
    assert "Authorization" in log
    for secret in made:
        assert secret not in log and secret not in measured.model_dump_json()


GEMMA3_VISION = {"model_type": "gemma3", "vision_config": {}, "text_config": {"rope_scaling": None}}
SLIDING = {**LLAMA, "sliding_window": 512, "layer_types": ["sliding_attention", "full_attention"]}
FALLBACKS = {
    # Row of docs/engines.md: release, switches of the stand-in, what else is given, what the outcome says.
    "4 norm without gate": (OLD, [], {"draft": {"model_type": "qwen3"}}, "no attribute 'num_attention_heads'"),
    "5 Gemma 4 draft": (OLD, [], {"draft": {"model_type": "gemma4_text"}}, "shared_kv"),
    "9 below threshold": (NEW, [], {"threshold": PROMPT}, "599 prompt tokens are not above the threshold of 599"),
    "10 draft unloadable": (NEW, ["draft-unloadable"], {}, "SpecPrefill: draft model load failed"),
    "16 vision engine": (OLD, [], {"target": {"model_type": "gemma3", "vision_config": {}}}, "row 16"),
    "17 media": (NEW, ["media"], {}, "no line of SpecPrefill for this request"),
    "18 target cached": (NEW, ["target-cached"], {}, "559 prompt tokens came from a cache"),
    "19 draft cached": (NEW, ["draft-cached"], {}, "512 prompt tokens of the draft came from a cache"),
    "20 settings not loaded": (NEW, ["stale-settings"], {}, "does not say that a draft was loaded"),
    "21 another engine": (NEW, ["dflash"], {}, "an engine without SpecPrefill took the model: DFlash"),
    "22 window kept": (NEW, [], {"target": SLIDING}, "row 22"),
    "23 traditional": (NEW, [], {"target": {**LLAMA, "rope_traditional": True}}, "row 23"),
    "keep not forwarded": (NEW, ["ignores-request-keep"], {}, "119 of 599 tokens were kept, 183 to 193 were asked for"),
    "sparse prefill fails": (NEW, ["sparse-prefill-fails"], {}, "SpecPrefill sparse prefill failed"),
}


@pytest.mark.parametrize("name", FALLBACKS)
def test_a_run_that_was_not_what_was_asked_says_what_it_was(measure, name):
    version, faults, given, said = FALLBACKS[name]
    measured = measure(version, *faults, **given)
    assert measured.outcome.startswith("fallback: ")
    assert said in measured.outcome


def test_a_draft_of_another_vocabulary_is_refused_before_anything_runs(measure, job, tmp_path):
    other = write_tiny_tokenizer(tmp_path / "other", vocabulary=400) if (tmp_path / "other").mkdir() is None else 0
    assert other
    made = job()
    (Path(made.draft_folder) / "tokenizer.json").write_bytes((tmp_path / "other" / "tokenizer.json").read_bytes())
    engine = omlx.Omlx(None, OmlxEngine(kind="omlx", command=shlex.quote(sys.executable)))  # type: ignore[arg-type]
    with pytest.raises(ReproError, match="different tokenizers"):
        engine.prepare(made, tmp_path, 1)
