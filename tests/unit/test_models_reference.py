"""The converted SmolLM2 against PyTorch and transformers reading the same GGUF file (see tests/reference)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

REFERENCE = Path(__file__).resolve().parent.parent / "reference"
DATA: dict[str, Any] = json.loads((REFERENCE / "smollm2.json").read_text())
LOGITS = np.load(REFERENCE / "smollm2-logits.npz", allow_pickle=False)


@pytest.fixture(scope="module")
def loaded(smollm2_folder: Path) -> tuple[Any, Any]:
    from mlx_lm import load

    return load(str(smollm2_folder))


@pytest.mark.parametrize("case", DATA["texts"], ids=lambda case: repr(case["text"][:20]))
def test_text_gets_the_token_ids_of_the_reference(case: dict[str, Any], smollm2_folder: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(smollm2_folder / "tokenizer.json"))
    assert tokenizer.encode(case["text"]).ids == case["ids"]
    assert tokenizer.decode(case["ids"], skip_special_tokens=False) == case["text"]


@pytest.mark.parametrize("case", DATA["chats"], ids=["one-turn", "system-and-turns", "needle"])
def test_chat_template_renders_as_the_reference(case: dict[str, Any], loaded: tuple[Any, Any]) -> None:
    _, tokenizer = loaded
    text = tokenizer.apply_chat_template(case["messages"], add_generation_prompt=True, tokenize=False)
    assert text == case["text"]
    assert list(tokenizer.apply_chat_template(case["messages"], add_generation_prompt=True)) == case["ids"]


@pytest.mark.parametrize("number", range(len(DATA["continuations"])))
def test_logits_and_greedy_continuation_equal_the_reference(number: int, loaded: tuple[Any, Any]) -> None:
    """One pass over prompt and continuation: each continuation token must be the best after the tokens before it."""
    import mlx.core as mx

    model, _ = loaded
    case = DATA["continuations"][number]
    prompt, new = case["prompt"], case["new"]
    logits = model(mx.array([[*prompt, *new[:-1]]]))[0, len(prompt) - 1 :]
    assert logits.dtype == mx.float32
    first = np.array(logits[0], np.float64)
    # The largest logits are near 25; float32 summed in another order over 30 layers differs in the fifth digit.
    tolerance = 1e-3
    np.testing.assert_allclose(first[LOGITS[f"top{number}"]], LOGITS[f"top_logits{number}"], rtol=0, atol=tolerance)
    np.testing.assert_allclose(first[LOGITS["spread"]], LOGITS[f"spread_logits{number}"], rtol=0, atol=tolerance)
    log_sum_exp = first.max() + np.log(np.exp(first - first.max()).sum())
    assert abs(log_sum_exp - float(LOGITS[f"log_sum_exp{number}"])) < tolerance
    assert np.array(mx.argmax(logits, axis=-1)).tolist() == new


def test_a_gapped_selection_of_the_real_model_equals_numpy_and_keeping_all_equals_dense(
    smollm2_folder: Path, loaded: tuple[Any, Any]
) -> None:
    """With the demo's weights, as an engine runs them: positions with gaps, and tokens decoded after them."""
    from specprefill_repro.gate.oracle import LlamaOracle
    from specprefill_repro.prefill import dense, sparse
    from specprefill_repro.prefill.arms import Models, Request
    from specprefill_repro.study.plan import Arm, ArmKind

    models = Models(target=loaded[0], draft=None)
    ids, new = DATA["continuations"][0]["prompt"], DATA["continuations"][0]["new"][:4]
    prompt = [*ids, *ids, *ids]
    asked = Request(tuple(prompt), Arm(kind=ArmKind.DENSE), 16, "")
    kept = [*range(4), *range(len(ids), len(ids) + 6), *range(len(prompt) - 6, len(prompt))]
    with sparse.prefill_kept(models, asked, kept, []) as prefilled:
        rows = np.stack([np.array(row) for row in (prefilled.logits, *map(prefilled.decode, new))])
    read = [*(prompt[position] for position in kept), *new]
    places = [*kept, *range(len(prompt), len(prompt) + len(new))]
    expected = LlamaOracle(smollm2_folder).forward(read, places, last_only=False).logits[-1 - len(new) :]
    assert np.abs(rows - expected).max() < 1e-4 * np.ptp(expected)
    with dense.prefill(models, asked) as whole, sparse.prefill_kept(models, asked, range(len(prompt)), []) as all_kept:
        found, reference = np.array(all_kept.logits), np.array(whole.logits)
    assert np.abs(found - reference).max() < 1e-5 * np.ptp(reference)
