"""Peak memory of a trial, and prompts of any length.

    .venv/bin/python benchmarks/memory.py [--tokens 1024] [--long 70000]

Trials: dense and speculative, each in a clean process as in a study. A speculative trial may take what the dense trial
takes, the draft's weights, and 10 % more. Scoring: what it takes besides the draft's keys, for more and more queries.
Long: a small synthetic pair reads a prompt beyond 65,536 tokens, at which public ports stop.
"""

import argparse
import importlib
import random
import time
from typing import Any

from specprefill_repro.prefill.blas import use_fast_blas

use_fast_blas()

import mlx.core as mx  # noqa: E402
from measure import RESULTS, ROOT, table, write  # noqa: E402

from specprefill_repro.files import read_model  # noqa: E402
from specprefill_repro.models.fetch import fetch_model  # noqa: E402
from specprefill_repro.models.schema import Manifest  # noqa: E402
from specprefill_repro.prefill import speculative  # noqa: E402
from specprefill_repro.prefill.arms import Models, Request  # noqa: E402
from specprefill_repro.prefill.look_ahead import Attention  # noqa: E402
from specprefill_repro.prefill.scoring import token_scores  # noqa: E402
from specprefill_repro.project import Project  # noqa: E402
from specprefill_repro.study.plan import Arm, ArmKind  # noqa: E402
from specprefill_repro.study.schema import Selection  # noqa: E402
from specprefill_repro.trials.job import Job  # noqa: E402
from specprefill_repro.trials.trial import run_worker  # noqa: E402

TARGET, DRAFT = "smollm2-135m-x3", "smollm2-135m"
MARGIN = 1.1


def trials(tokens: int, step: int) -> dict[str, Any]:
    """Peaks of a dense and of a speculative trial of the padded demo pair, in bytes."""
    project, rng = Project(ROOT), random.Random("memory")
    for name in (TARGET, DRAFT):
        fetch_model(project, name)
    RESULTS.mkdir(parents=True, exist_ok=True)
    logits = RESULTS / "logits.f32"
    peaks = {}
    for kind in (ArmKind.DENSE, ArmKind.SPECULATIVE):
        sparse = kind is ArmKind.SPECULATIVE
        job = Job(
            target_folder=str(project.model_folder(TARGET)),
            draft_folder=str(project.model_folder(DRAFT)) if sparse else None,
            arm=Arm(kind=kind, keep=0.2, selection=Selection()) if sparse else Arm(kind=kind),
            ids=tuple(rng.randrange(100, 40_000) for _ in range(tokens)),
            needle_tokens=((0, 1),),
            warmup_ids=tuple(range(300, 364)),
            step=step,
            answer_tokens=1,
            seed="memory",
            logits_file=str(logits),
        )
        found = run_worker(job)
        assert found.peak_mlx_bytes is not None
        peaks[str(kind)] = {"mlx": found.peak_mlx_bytes, "process": found.peak_memory_bytes}
    logits.unlink()
    # On a CPU, weights are float32 in memory.
    draft = read_model(project.model_manifest(DRAFT), Manifest).parameters * 4
    limits = {of: MARGIN * (peaks["dense"][of] + draft) for of in ("mlx", "process")}
    return {"tokens": tokens, "peaks": peaks, "draft_weights": draft, "limits": limits}


def scoring(tokens: int) -> list[dict[str, Any]]:
    """What scoring takes besides queries and keys, for a draft of 32 heads and 2 layers."""
    rows = []
    for queries in (1, 8, 32):
        layers = [
            Attention(mx.random.normal((1, 32, queries, 64)), mx.random.normal((1, 8, tokens, 64)), 0.125)
            for _ in range(2)
        ]
        mx.eval([[layer.queries, layer.keys] for layer in layers])
        mx.clear_cache()
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        token_scores(layers, 13)
        at_once = 2 * 32 * queries * tokens * 4
        rows.append({"queries": queries, "bytes": mx.get_peak_memory() - before, "weights_at_once": at_once})
    return rows


def long_prompt(tokens: int, step: int) -> dict[str, Any]:
    """A speculative prefill of a prompt of so many tokens, with models of one layer and one head."""
    llama = importlib.import_module("mlx_lm.models.llama")
    settings = {
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "rms_norm_eps": 1e-5,
        "vocab_size": 1000,
    }
    target, draft = (llama.Model(llama.ModelArgs.from_dict(settings)) for _ in range(2))
    mx.eval(target.parameters(), draft.parameters())
    rng = random.Random("long")
    ids = tuple(rng.randrange(1000) for _ in range(tokens))
    request = Request(ids, Arm(kind=ArmKind.SPECULATIVE, keep=0.1, selection=Selection()), step, "")
    mx.clear_cache()
    mx.reset_peak_memory()
    start = time.perf_counter()
    with speculative.prefill(Models(target, draft), request) as prefilled:
        return {
            "tokens": tokens,
            "step": step,
            "scored": prefilled.tokens_scored,
            "kept": len(prefilled.kept),
            "last_kept": prefilled.kept[-1],
            "peak_bytes": mx.get_peak_memory(),
            "square_bytes": tokens * tokens * 4,
            "seconds": time.perf_counter() - start,
        }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--long", type=int, default=70_000)
    parser.add_argument("--step", type=int, default=128)
    options = parser.parse_args()
    of_trials = trials(options.tokens, options.step)
    of_scoring = scoring(options.long)
    of_long = long_prompt(options.long, 1024)
    table(
        f"Peak of a trial, {options.tokens:,} tokens, MB",
        ("memory", "dense", "draft's weights", "speculative", "limit", ""),
        [
            (
                of,
                f"{of_trials['peaks']['dense'][of] / 1e6:.0f}",
                f"{of_trials['draft_weights'] / 1e6:.0f}",
                f"{of_trials['peaks']['speculative'][of] / 1e6:.0f}",
                f"{limit / 1e6:.0f}",
                "within" if of_trials["peaks"]["speculative"][of] <= limit else "beyond",
            )
            for of, limit in of_trials["limits"].items()
        ],
    )
    table(
        f"Scoring {options.long:,} tokens, 32 heads, 2 layers, MB",
        ("queries", "scoring takes", "all weights at once"),
        [(str(r["queries"]), f"{r['bytes'] / 1e6:.0f}", f"{r['weights_at_once'] / 1e6:.0f}") for r in of_scoring],
    )
    print(
        f"A prompt of {of_long['tokens']:,} tokens: {of_long['scored']:,} scored, {of_long['kept']:,} kept, the "
        f"last is number {of_long['last_kept']:,}; peak {of_long['peak_bytes'] / 1e6:.0f} MB (a square of the prompt: "
        f"{of_long['square_bytes'] / 1e6:,.0f} MB), {of_long['seconds']:.0f} s."
    )
    write("memory", {"trials": of_trials, "scoring": of_scoring, "long": of_long})


if __name__ == "__main__":
    main()
