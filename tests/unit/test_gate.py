"""The gate passes on a right engine, and names each fault that is planted into it."""

import dataclasses
import json
import random
import re
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from specprefill_repro.gate import kernel, oracle, scores
from specprefill_repro.gate.checks import CHECKS, run_checks
from specprefill_repro.gate.pair import identity, load_pair
from specprefill_repro.gate.pitfalls import PITFALLS
from specprefill_repro.gate.schema import GateResult
from specprefill_repro.models.schema import LocalSource, Manifest
from specprefill_repro.prefill import chunked, dense, look_ahead, positions, sampling, selection, sparse, speculative
from specprefill_repro.study.schema import Selection
from tiny_model import write_tiny_model

# The list: every one of them must be guarded against, and be caught.
LISTED = {1, 2, 12, 13, 14, 15, 16, 17, 19, 20, 21, 22, 31, 41}


def manifest(folder, tokenizer="a"):
    config = json.loads((folder / "config.json").read_text())
    return Manifest(
        name=folder.name,
        source=LocalSource(kind="local", path=str(folder)),
        locked=False,
        model_type="llama",
        layers=config["num_hidden_layers"],
        vocabulary=config["vocab_size"],
        context=8192,
        parameters=1,
        weight_bytes=1,
        dtype="float16",
        quantization=None,
        tokenizer_sha256=tokenizer * 64,
        weights_sha256="b" * 64,
        fingerprint="f" * 64,
        files=(),
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gate")
    return write_tiny_model(folder / "target", seed=1, layers=3), write_tiny_model(folder / "draft", seed=2, layers=2)


@pytest.fixture
def pair(folders):
    target, draft = folders
    return load_pair(manifest(target), manifest(draft), target, draft, Selection())


@pytest.fixture(autouse=True, scope="module")
def no_compilation():
    """Compiling small functions for the CPU takes most of the time otherwise; it changes no result."""
    mx.disable_compile()
    yield
    mx.enable_compile()


def failures(pair):
    return {check.name for check in run_checks(pair) if not check.passed}


def test_a_right_engine_passes_every_check(pair):
    results = list(run_checks(pair))
    assert [check.name for check in results if not check.passed] == []
    assert len({check.name for check in results}) == len(results) == 17
    assert all(check.says.endswith(".") and check.guards for check in results)


# Faults. Each plants itself into the engine, and says which checks must name it: those and no others.


@dataclass(frozen=True)
class Fault:
    plant: Callable[[Any, pytest.MonkeyPatch], Any]
    pitfalls: tuple[int, ...]
    named_by: set[str]
    alone: bool
    """No other check fails."""


FAULTS: dict[str, Fault] = {}


def fault(*pitfalls: int, named_by: set[str], alone: bool = True) -> Callable[[Any], Any]:
    def register(plant: Any) -> Any:
        FAULTS[plant.__name__] = Fault(plant, pitfalls, named_by, alone)
        return plant

    return register


@fault(21, named_by={"tokenizers-equal"})
def other_vocabulary(pair, monkeypatch):
    other = pair.draft_manifest.model_copy(update={"tokenizer_sha256": "c" * 64})
    return dataclasses.replace(pair, draft_manifest=other)


@fault(15, 17, named_by={"gapped-selection-equals-oracle", "keys-equal-dense"})
def compacted_positions(pair, monkeypatch):
    """Keeping everything hides this one."""

    def compacted(self, x, offset=0):
        self.seen.append(self.positions.current)
        return self.rotary(x, offset=offset)

    monkeypatch.setattr(positions.PositionedRotary, "__call__", compacted)


@fault(16, named_by={"keep-1-equals-dense", "gapped-selection-equals-oracle", "keys-equal-dense"})
def other_rotary_layout(pair, monkeypatch):
    original = positions.PositionedRotary.__call__

    def traditional(self, x, offset=0):
        self.rotary.traditional = True
        try:
            return original(self, x, offset)
        finally:
            self.rotary.traditional = False

    monkeypatch.setattr(positions.PositionedRotary, "__call__", traditional)


@fault(41, named_by={"types-unchanged"})
def float32_rotation(pair, monkeypatch):
    pair.target.set_dtype(mx.bfloat16)
    pair.parts.update(identity(pair))
    original = positions.PositionedRotary.__call__
    monkeypatch.setattr(
        positions.PositionedRotary, "__call__", lambda self, x, offset=0: original(self, x, offset).astype(mx.float32)
    )


@fault(14, named_by={"scores-equal-oracle", "selection-follows-scores"})
def wrong_extractor(pair, monkeypatch):
    original = look_ahead.look_ahead

    def other_heads(*args, **more):
        layers, decoded = original(*args, **more)
        wrong = [dataclasses.replace(layer, queries=layer.queries[:, ::-1]) for layer in layers]
        return wrong, decoded

    monkeypatch.setattr(scores, "look_ahead", other_heads)
    monkeypatch.setattr(speculative, "look_ahead", other_heads)


@fault(12, named_by={"selection-follows-scores"})
def selection_without_scores(pair, monkeypatch):
    original = selection.best_chunks
    monkeypatch.setattr(speculative, "best_chunks", lambda scores, *args: original(range(len(scores)), *args))


@fault(12, 31, named_by={"selection-follows-scores"})
def remembered_selection(pair, monkeypatch):
    original, memory = selection.best_chunks, {}

    def remembered(scores, keep, rule):
        key = (len(scores), keep, rule)
        return memory.setdefault(key, original(scores, keep, rule))

    monkeypatch.setattr(speculative, "best_chunks", remembered)


@fault(13, named_by={"same-selection-again"})
def unseeded_sampling(pair, monkeypatch):
    coin = random.Random()

    def sampled(logits):
        return coin.choice(mx.argsort(logits)[-200:].tolist())

    monkeypatch.setattr(sampling, "most_likely", sampled)


@fault(19, named_by={"last-token-kept", "settings-in-effect", "keep-1-equals-dense"})
def dropped_last_token(pair, monkeypatch):
    original = selection._with_head_and_tail
    monkeypatch.setattr(selection, "_with_head_and_tail", lambda *args: original(*args)[:-1])


SILENTLY_DENSE = {"arms-run-as-named", "settings-in-effect", "selection-follows-scores"}


@fault(1, named_by=SILENTLY_DENSE | {"model-untouched-after-error"})  # No draft runs that could be interrupted.
def silently_dense(pair, monkeypatch):
    monkeypatch.setattr(speculative, "prefill", dense.prefill)


@fault(1, named_by=SILENTLY_DENSE)
def dense_after_an_error(pair, monkeypatch):
    """Scoring has been paid for, fails, and the engine goes on without a word."""
    original = speculative.prefill

    def broken(*_):
        raise AttributeError("'NoneType' object has no attribute 'rope'")

    @contextmanager
    def falls_back(models, request):
        try:
            with original(models, request) as prefilled:
                yield prefilled
        except AttributeError:
            with dense.prefill(models, request) as prefilled:
                yield prefilled

    monkeypatch.setattr(speculative, "token_scores", broken)
    monkeypatch.setattr(speculative, "prefill", falls_back)


@fault(2, named_by={"settings-in-effect", "keep-1-equals-dense"})
def keep_rate_of_another_place(pair, monkeypatch):
    original = selection.best_chunks
    monkeypatch.setattr(speculative, "best_chunks", lambda scores, keep, rule: original(scores, min(keep, 0.3), rule))


@fault(2, named_by={"settings-in-effect"})
def look_ahead_of_another_place(pair, monkeypatch):
    original = look_ahead.look_ahead

    def four(draft, ids, cache, step, _, *rest, **more):
        return original(draft, ids, cache, step, 4, *rest, **more)

    monkeypatch.setattr(speculative, "look_ahead", four)


@fault(2, named_by={"settings-in-effect"})
def step_of_another_place(pair, monkeypatch):
    original = chunked.read_prompt
    monkeypatch.setattr(
        sparse, "read_prompt", lambda model, ids, cache, step, *args: original(model, ids, cache, 2048, *args)
    )


@fault(31, 22, named_by={"layers-read-kept-tokens", "caches-start-empty", "arms-run-as-named"}, alone=False)
def token_read_twice(pair, monkeypatch):
    """The last kept token is read with the others, and then again for its logits."""

    def last_twice(model, ids, cache, *args):
        chunked.read_prompt(model, ids, cache, *args)
        model.positions.set(model.positions.values[-1:])
        return chunked.next_logits(model, ids[-1], cache)

    monkeypatch.setattr(sparse, "read_prompt", last_twice)


@fault(31, named_by={"caches-start-empty"}, alone=False)
def reused_cache(pair, monkeypatch):
    kept = {}
    monkeypatch.setattr(sparse, "new_cache", lambda model: kept.setdefault(id(model.model), chunked.new_cache(model)))


@fault(31, named_by={"caches-start-empty"}, alone=False)
def reused_cache_of_the_draft(pair, monkeypatch):
    kept = []

    def reused(model):
        if not kept:
            kept.append(chunked.new_cache(model))
        return kept[0]

    monkeypatch.setattr(speculative, "new_cache", reused)


@fault(1, 31, named_by={"layers-read-kept-tokens", "arms-run-as-named", "keep-1-equals-dense"})
def dense_in_name_only(pair, monkeypatch):
    """The arm that all is compared with leaves out the beginning, and says that it read everything."""
    original = chunked.read_prompt
    monkeypatch.setattr(dense, "read_prompt", lambda model, ids, *rest: original(model, ids[40:], *rest))


@fault(20, named_by={"model-untouched", "model-untouched-after-error"}, alone=False)
def wrapper_left_behind(pair, monkeypatch):
    installed = positions.PositionedModel._installed
    alive = []  # A context that is garbage collected would put the original back after all.

    class NotPutBack:
        def __init__(self, model):
            self.context = installed(model)
            alive.append(self.context)

        def __enter__(self):
            return self.context.__enter__()

        def __exit__(self, *error):
            return False

    monkeypatch.setattr(positions.PositionedModel, "_installed", NotPutBack)


@fault(20, named_by={"model-untouched-after-error"})
def final_norm_left_behind_by_an_error(pair, monkeypatch):
    """The stand-in that passes on the last token alone is put back only when all goes well."""

    @contextmanager
    def careless(model):
        norm = model.model.norm
        model.model.norm = lambda hidden: norm(hidden[:, -1:])
        yield
        model.model.norm = norm

    monkeypatch.setattr(sparse, "last_token_only", careless)


@fault(20, named_by={"model-untouched", "model-untouched-after-error"}, alone=False)
def changed_weight(pair, monkeypatch):
    original = speculative.prefill_kept

    def scribble(models, *args):
        layer = models.target.layers[0].mlp.down_proj
        layer.weight = layer.weight * 1.5
        return original(models, *args)

    monkeypatch.setattr(speculative, "prefill_kept", scribble)


@pytest.mark.parametrize("name", FAULTS)
def test_the_gate_names_the_fault(name, pair, monkeypatch):
    fault = FAULTS[name]
    failed = failures(fault.plant(pair, monkeypatch) or pair)
    assert failed == fault.named_by if fault.alone else failed >= fault.named_by


def test_attention_that_is_no_number_is_not_within_rounding():
    def call(output):
        return kernel.KernelCall(
            queries=np.ones((1, 1, 2)), keys=np.ones((1, 3, 2)), values=np.ones((1, 3, 2)), output=output, scale=1.0,
            sinks=None,
        )  # fmt: skip

    right, wrong = call(np.ones((1, 1, 2))), call(np.full((1, 1, 2), np.nan))
    assert kernel.kernel_scores([[right, right]], 3, 1)[1] < 1e-12
    assert not kernel.kernel_scores([[wrong, right]], 3, 1)[1] < 1e-12


WRONG_SCORES = {
    "half of the layers": lambda layers: layers[: len(layers) // 2],
    "another scale": lambda layers: [dataclasses.replace(layer, scale=1.5 * layer.scale) for layer in layers],
    "queries of other heads": lambda layers: [
        dataclasses.replace(layer, queries=layer.queries[:, ::-1]) for layer in layers
    ],
}


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize("judge", [scores.scores_equal_oracle, scores.scores_equal_kernel])
def test_wrong_scores_are_named_in_half_precision_too(judge, dtype, pair, monkeypatch):
    """What rounding is allowed must not hide a fault."""
    pair.draft.set_dtype(dtype)
    assert judge(pair).passed
    original = look_ahead.look_ahead
    for planted in WRONG_SCORES.values():

        def wrong(*args, planted=planted, **more):
            layers, decoded = original(*args, **more)
            return planted(layers), decoded

        monkeypatch.setattr(scores, "look_ahead", wrong)
        assert not judge(pair).passed


def test_a_gate_without_checks_has_proved_nothing():
    empty = GateResult(
        pair="p",
        target="t",
        draft="d",
        target_weights_sha256="",
        draft_weights_sha256="",
        fingerprint="",
        checks=(),
    )
    assert not empty.passed and empty.failures == "nothing was checked"


def test_every_listed_pitfall_has_a_check_and_a_fault_that_it_names():
    assert set(PITFALLS) == LISTED
    guards = {check.name: set(check.guards) for check in CHECKS}
    assert set().union(*guards.values()) == LISTED
    caught = {
        pitfall
        for fault in FAULTS.values()
        for pitfall in fault.pitfalls
        if any(pitfall in guards[name] for name in fault.named_by)
    }
    assert caught == LISTED


def test_a_check_that_cannot_be_made_has_failed(pair, monkeypatch):
    def broken(*_):
        raise RuntimeError("kernel not found")

    monkeypatch.setattr(dense, "prefill", broken)
    results = {check.name: check for check in run_checks(pair)}
    assert not results["keep-1-equals-dense"].passed
    assert "kernel not found" in results["keep-1-equals-dense"].measured
    assert results["keep-1-equals-dense"].guards == (16,)


def test_a_rule_that_samples_must_have_a_seed(folders, monkeypatch):
    target, draft = folders
    rules = (Selection(preset="green2026"),)
    pair = load_pair(manifest(target), manifest(draft), target, draft, Selection(), rules)
    found = scores.same_selection_again(pair)
    assert found.passed and "(rule green2026)" in found.measured
    coin = random.Random()
    chooser = speculative.chooser
    monkeypatch.setattr(speculative, "chooser", lambda warmth, top, seed: chooser(warmth, top, f"{coin.random()}"))
    assert not scores.same_selection_again(pair).passed


@pytest.fixture
def large_pair(pair, monkeypatch):
    """The same, but larger than what NumPy may be asked for."""
    monkeypatch.setattr(oracle, "LIMIT", 1000)
    return pair


def test_of_a_model_too_large_for_numpy_the_first_layers_are_computed_and_the_model_vouches_for_the_rest(large_pair):
    found = {check.name: check for check in run_checks(large_pair)}
    assert {name for name, check in found.items() if not check.passed} == set()
    assert "gapped-selection-equals-oracle" not in found
    assert "queries and keys of 2 layers of 3" in found["first-layers-equal-oracle"].measured
    assert "billion weights would take it too long" in found["gapped-equals-one-by-one"].measured
    assert "scores-equal-oracle" in found, "two layers are always computed"


@pytest.mark.parametrize(
    ("fault", "names"), [(compacted_positions, {"first", "gapped", "keys"}), (other_rotary_layout, {"keep"})]
)
def test_wrong_positions_in_a_model_too_large_for_numpy_are_named(fault, names, large_pair, monkeypatch):
    fault(large_pair, monkeypatch)
    assert names <= {name.partition("-")[0] for name in failures(large_pair)}


def test_layers_within_reach_are_as_many_as_the_limit_allows(folders, monkeypatch):
    for limit, reached in ((10**9, 3), (1, 2)):
        monkeypatch.setattr(oracle, "LIMIT", limit)
        assert oracle.layers_within_reach(folders[0]) == reached


def test_the_page_about_the_gate_names_every_check_and_every_pitfall():
    page = (Path(__file__).parents[2] / "docs" / "gate.md").read_text()
    assert [check.name for check in CHECKS if f"`{check.name}`" not in page] == []
    assert {int(number) for number in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)} == LISTED
