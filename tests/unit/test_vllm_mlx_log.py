"""What real vllm-mlx servers logged, read by the engine: each way of asking is what it was."""

import json
from pathlib import Path
from typing import Any

import pytest

from specprefill_repro.engines.chat import ChatAnswer
from specprefill_repro.engines.server_evidence import LogClaims, Scored, kept_bounds, outcome
from specprefill_repro.study.plan import Arm, ArmKind
from vllm_mlx_stand_in import LLAMA, make_job, stand_in, write_model

RECORDED = Path(__file__).resolve().parents[1] / "reference" / "engines"
VERSIONS = ("0.2.9", "0.6.0")
SCORER = "SpecPrefill failed, falling back to normal path: 'Attention' object has no attribute 'num_heads'"

OUTCOMES = {
    "as the engine asks": {"0.2.9": "sparse", "0.6.0": f"fallback: {SCORER}"},
    "dense": {"0.2.9": "dense", "0.6.0": "dense"},
    "one token": {
        "0.2.9": "fallback: SpecPrefill failed, falling back to normal path: Maximum number of tokens must be non-zero",
        "0.6.0": f"fallback: {SCORER}",
    },
    "continuous batching": {
        # With these random weights its batching engine sends events without any text.
        "0.2.9": "The server's answer is not whole: the answer holds no text",
        "0.6.0": "fallback: the server batches requests, and then ignores SpecPrefill for text",
    },
    "threshold not below the prompt": dict.fromkeys(
        VERSIONS, "fallback: 610 prompt tokens are not above the threshold of 610"
    ),
    "draft that can't be loaded": dict.fromkeys(
        VERSIONS, "fallback: SpecPrefill: draft model load failed: No safetensors found"
    ),
    "no draft named": dict.fromkeys(VERSIONS, "fallback: the log does not say that a draft was loaded"),
    "draft of Qwen 3": {
        "0.2.9": "fallback: SpecPrefill failed, falling back to normal path: 'Attention' object has no attribute "
        "'num_attention_heads'",
        "0.6.0": f"fallback: {SCORER}",
    },
}


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return {version: json.loads((RECORDED / f"vllm-mlx-{version}.json").read_text()) for version in VERSIONS}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[str, str, str]:
    folder = tmp_path_factory.mktemp("models")
    qwen = {**LLAMA, "model_type": "qwen3"}
    return (
        write_model(folder / "target"),
        write_model(folder / "draft"),
        write_model(folder / "qwen3", qwen),
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("way", OUTCOMES)
def test_a_real_server_s_lines_are_what_they_were(version, way, recorded, folders, tmp_path):
    said = recorded[version]["ways"][way]
    if "error" in said:
        assert said["error"].startswith(OUTCOMES[way][version])
        return
    target, draft, qwen = folders
    total, threshold = recorded[version]["prompt_tokens"], recorded[version]["threshold"]
    threshold = total if way.startswith("threshold") else threshold
    chosen = None if way == "dense" else qwen if "Qwen" in way else draft
    job = make_job(tmp_path, target, chosen, ids=tuple(range(total)))
    engine = stand_in(version, threshold=threshold)
    claims = engine.read_log(job, "\n".join(said["started"]), "\n".join(said["request"]))
    answer = ChatAnswer(1.0, 1.0, "a", "a", "length", said["usage"])
    found = outcome(job.arm, total, threshold, claims, engine.cached_tokens(answer), engine.kept_bounds(job))
    assert found.startswith(OUTCOMES[way][version]), found
    assert said["usage"]["prompt_tokens"] == total
    if found == "sparse":
        assert (claims.scored[0].scored, claims.scored[0].kept) == (610, 192)
        assert (claims.keep, claims.threshold) == (0.3, 128)
        assert set(engine.server_seconds(answer, claims)) == {"score", "sparse prefill"}


ARM = Arm(kind=ArmKind.SPECULATIVE, keep=0.3)
PROOF = LogClaims(armed=True, threshold=1, keep=0.3, scored=(Scored(scored=600, kept=184, total=600),))


def judged(claims: LogClaims = PROOF, arm: Arm = ARM, cached: int | None = None) -> str:
    return outcome(arm, 600, 1, claims, cached)


def changed(**changes: Any) -> LogClaims:
    values = {name: getattr(PROOF, name) for name in PROOF.__dataclass_fields__}
    return LogClaims(**{**values, **changes})


def scored(**changes: Any) -> LogClaims:
    return changed(scored=(Scored(**{"scored": 600, "kept": 184, "total": 600, **changes}),))


def test_the_whole_proof_is_sparse():
    assert judged() == judged(cached=0) == "sparse"


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        (changed(armed=False), "does not say that a draft was loaded"),
        (changed(scored=()), "no line of SpecPrefill for this request"),
        (changed(scored=PROOF.scored * 2), "2 lines of SpecPrefill for one request"),
        (changed(failures=("SpecPrefill failed",)), "SpecPrefill failed"),
        (changed(reasons=("a known fault",)), "a known fault"),
        (changed(keep=0.2), "the keep rate was 0.2, 0.3 was asked for"),
        (changed(threshold=8192), "the threshold was 8192, 1 was asked for"),
        (scored(scored=599), "599 of 600 prompt tokens were scored"),
        (scored(total=599), "599 of 600 prompt tokens were scored"),
        (scored(kept=120), "120 of 600 tokens were kept"),
        (scored(kept=600), "600 of 600 tokens were kept"),
        (scored(keep=0.2), "the keep rate was 0.2"),
        (scored(cached=512), "512 prompt tokens came from a cache"),
        (scored(draft_cached=512), "512 prompt tokens of the draft came from a cache"),
    ],
)
def test_each_part_of_the_proof_that_is_missing_is_named(claims, said):
    found = judged(claims)
    assert found.startswith("fallback: ") and said in found


def test_cached_tokens_of_the_answer_are_no_proof():
    assert judged(cached=512) == "fallback: 512 prompt tokens came from a cache"


@pytest.mark.parametrize("claims", [PROOF, changed(scored=()), changed(armed=False)])
def test_a_dense_arm_in_which_specprefill_was_on_is_not_dense(claims):
    assert judged(claims, Arm(kind=ArmKind.DENSE)) == "fallback: SpecPrefill was on in the dense arm"


def test_a_dense_answer_that_the_server_cut_off_is_not_dense():
    cut = LogClaims(armed=False, failures=("OUTPUT INACTIVITY TIMEOUT after 300.0s",))
    assert outcome(Arm(kind=ArmKind.DENSE), 610, 1, cut, 0) == "fallback: OUTPUT INACTIVITY TIMEOUT after 300.0s"


def test_a_dense_arm_without_a_word_is_dense():
    assert judged(LogClaims(armed=False), Arm(kind=ArmKind.DENSE)) == "dense"


@pytest.mark.parametrize(
    ("total", "keep", "bounds"),
    [
        # As real servers kept them: 183 of 599, 192 of 610, 479 of 1503, 316 of 1500.
        (599, 0.3, (183, 192)),
        (610, 0.3, (162, 192)),
        (1503, 0.3, (479, 480)),
        (1500, 0.2, (316, 320)),
        (31, 0.1, (31, 31)),
        (64, 1.0, (64, 64)),
    ],
)
def test_kept_tokens_are_whole_chunks_but_for_the_last(total, keep, bounds):
    assert kept_bounds(total, keep) == bounds
