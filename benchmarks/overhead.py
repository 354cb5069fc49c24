"""What the harness itself costs: scoring, selection, patching, Python; and what a clean process costs.

    .venv/bin/python benchmarks/overhead.py [--pairs demo synthetic] [--tokens 1024] [--keep 0.2] [--repeats 8]

The whole, a speculative prefill, is held against its parts, which run without any of the harness: the draft alone
reads the prompt and decodes as many tokens; the target alone reads as many tokens as were kept. With T for seconds,

    bound   = T_target(prompt) / (T_draft + T_target(kept))          = 1 / (draft share + kept share)
    reached = speed-up / bound = (T_draft + T_target(kept)) / T_whole

so the dense prefill cancels out of `reached`, which must be 0.95 at least. Parts and whole run in turn, forwards and
backwards, in one process, so that each repeat gives one ratio of times that lie close together.
"""

import argparse
import importlib
import json
import math
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from specprefill_repro.prefill.blas import use_fast_blas

BLAS = use_fast_blas()

import mlx.core as mx  # noqa: E402
import mlx.nn as nn  # noqa: E402
from measure import ROOT, ratio, table, words, write  # noqa: E402

from specprefill_repro.models.fetch import fetch_model  # noqa: E402
from specprefill_repro.prefill import dense, speculative  # noqa: E402
from specprefill_repro.prefill.arms import Models, Request  # noqa: E402
from specprefill_repro.prefill.chunked import last_token_only, most_likely, new_cache, next_logits, read_prompt  # noqa: E402
from specprefill_repro.prefill.loading import load_model  # noqa: E402
from specprefill_repro.project import Project  # noqa: E402
from specprefill_repro.study.plan import Arm, ArmKind  # noqa: E402
from specprefill_repro.study.schema import Selection  # noqa: E402
from specprefill_repro.trials.job import Job  # noqa: E402
from specprefill_repro.trials.trial import run_worker  # noqa: E402

LIMIT = 0.95
READY_LIMIT_SECONDS = 1.5
DEMO = ("smollm2-135m-x3", "smollm2-135m")
VOCABULARY = 32_000
# A target of 0.4 and a draft of 0.05 billion parameters: wider than the demo's, so that products weigh more.
SYNTHETIC = (
    {"hidden_size": 1536, "intermediate_size": 4096, "num_hidden_layers": 14, "num_attention_heads": 16},
    {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 6, "num_attention_heads": 8},
)


def demo_pair() -> Models:
    """The padded demo target and its draft."""
    project = Project(ROOT)
    for name in DEMO:
        fetch_model(project, name)
    target, draft = (load_model(project.model_folder(name))[0] for name in DEMO)
    return Models(target=target, draft=draft)


def synthetic_pair() -> Models:
    """Random weights of a larger Llama and of a smaller one."""
    llama = importlib.import_module("mlx_lm.models.llama")

    def model(sizes: dict[str, int]) -> nn.Module:
        mx.random.seed(0)
        settings = {"model_type": "llama", "num_key_value_heads": 4, "rms_norm_eps": 1e-5, "vocab_size": VOCABULARY}
        made = llama.Model(llama.ModelArgs.from_dict({**settings, **sizes}))
        mx.eval(made.parameters())
        return made

    target, draft = (model(sizes) for sizes in SYNTHETIC)
    return Models(target=target, draft=draft)


PAIRS: dict[str, Callable[[], Models]] = {"demo": demo_pair, "synthetic": synthetic_pair}


def timed(work: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    """Seconds on the clock, of the process on a CPU, and of this thread on a CPU: Python, and no arithmetic."""
    mx.clear_cache()
    clocks = {"seconds": time.perf_counter, "cpu": time.process_time, "thread": time.thread_time}
    start = {name: clock() for name, clock in clocks.items()}
    result = work()
    return {name: clock() - start[name] for name, clock in clocks.items()}, result


def whole(models: Models, request: Request) -> dict[str, Any]:
    """A speculative prefill: its phases, and what it kept and decoded."""
    start = time.perf_counter()
    with speculative.prefill(models, request) as prefilled:
        ends = [start, *(clock for _, clock in prefilled.marks)]
        phases = {name: clock - ends[index] for index, (name, clock) in enumerate(prefilled.marks)}
        return {"phases": phases, "kept": prefilled.kept, "decoded": prefilled.look_ahead_tokens}


def draft_alone(model: nn.Module, request: Request, decoded: list[int]) -> None:
    """The draft reads the prompt and the decoded tokens."""
    cache = new_cache(model)
    with last_token_only(model):
        most_likely(read_prompt(model, request.ids, cache, request.step))
    for token in decoded:
        most_likely(next_logits(model, token, cache))


def target_alone(model: nn.Module, ids: tuple[int, ...], step: int) -> None:
    """The target reads so many tokens as if they were the whole prompt."""
    request = Request(ids=ids, arm=Arm(kind=ArmKind.DENSE), step=step, seed="")
    with dense.prefill(Models(model, None), request):
        pass


def measure_pair(name: str, tokens: int, keep: float, repeats: int, step: int, selection: Selection) -> dict[str, Any]:
    """Repeats of whole and parts; the dense prefill runs once in two."""
    models, rng = PAIRS[name](), random.Random("overhead")
    assert models.draft is not None
    draft, rows = models.draft, []
    for repeat in range(-1, repeats):
        # The first, shorter one warms up.
        length = tokens if repeat >= 0 else min(tokens, 256)
        ids = tuple(rng.randrange(100, VOCABULARY) for _ in range(length))
        request = Request(ids, Arm(kind=ArmKind.SPECULATIVE, keep=keep, selection=selection), step, "")
        row: dict[str, Any] = {}
        # Forwards and backwards. The whole comes first: its parts read what it kept and decoded.
        for part in ("whole", "draft", "kept", "kept", "draft", "whole"):
            if part == "whole":
                clocks, seen = timed(partial(whole, models, request))
            elif part == "draft":
                clocks, _ = timed(partial(draft_alone, draft, request, seen["decoded"]))
            else:
                kept_ids = tuple(ids[position] for position in seen["kept"])
                clocks, _ = timed(partial(target_alone, models.target, kept_ids, step))
            row[part] = {name: row.get(part, {}).get(name, 0.0) + value / 2 for name, value in clocks.items()}
        row |= {"phases": seen["phases"], "kept_tokens": len(kept_ids)}
        if repeat % 2 == 0:
            row["dense"], _ = timed(partial(target_alone, models.target, ids, step))
        if repeat >= 0:
            rows.append(row)
            seconds = ", ".join(f"{part} {row[part]['seconds']:.2f} s" for part in ("whole", "draft", "kept"))
            print(f"  {name} {repeat + 1}/{repeats}: {seconds}", flush=True)
    return {"pair": name, "tokens": tokens, "keep": keep, "step": step, "rows": rows, **summarise(rows)}


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Ratios over the repeats."""
    with_dense = [row for row in rows if "dense" in row]
    share = [(row["phases"]["scoring"] + row["phases"]["selection"]) / sum(row["phases"].values()) for row in rows]
    python = [
        (row["whole"]["thread"] - row["draft"]["thread"] - row["kept"]["thread"]) / row["whole"]["cpu"] for row in rows
    ]

    def parts(row: dict[str, Any], clock: str) -> float:
        return float(row["draft"][clock] + row["kept"][clock])

    return {
        "reached": ratio([math.log(parts(row, "seconds") / row["whole"]["seconds"]) for row in rows]),
        "reached_cpu": ratio([math.log(parts(row, "cpu") / row["whole"]["cpu"]) for row in rows]),
        "speedup": ratio([math.log(row["dense"]["seconds"] / row["whole"]["seconds"]) for row in with_dense]),
        "bound": ratio([math.log(row["dense"]["seconds"] / parts(row, "seconds")) for row in with_dense]),
        "scoring_and_selection_share": sum(share) / len(share),
        "python_share_beyond_parts": sum(python) / len(python),
    }


def ready(repeats: int) -> dict[str, Any]:
    """Seconds from the start of a worker process until it could have begun to read weights."""
    folder = Project(ROOT).model_folder(DEMO[1])
    fetch_model(Project(ROOT), DEMO[1])
    logits = ROOT / "results" / "benchmarks" / "logits.f32"
    logits.parent.mkdir(parents=True, exist_ok=True)
    job = Job(
        target_folder=str(folder),
        draft_folder=str(folder),
        arm=Arm(kind=ArmKind.SPECULATIVE, keep=0.2, selection=Selection(look_ahead=2)),
        ids=tuple(range(100, 228)),
        needle_tokens=((0, 1),),
        warmup_ids=tuple(range(300, 316)),
        step=128,
        answer_tokens=1,
        seed="ready",
        logits_file=str(logits),
    )
    seconds = sorted(run_worker(job).ready_seconds for _ in range(repeats))
    logits.unlink()
    return {"seconds": seconds, "median": seconds[len(seconds) // 2], "limit": READY_LIMIT_SECONDS}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", nargs="+", choices=[*PAIRS], default=[*PAIRS])
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--keep", type=float, default=0.2)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--step", type=int, default=128)
    parser.add_argument("--selection", type=json.loads, default={}, help="as in a study, in JSON")
    options = parser.parse_args()
    selection = Selection.model_validate(options.selection)
    started = ready(7)
    found = [
        measure_pair(name, options.tokens, options.keep, options.repeats, options.step, selection)
        for name in options.pairs
    ]
    table(
        f"{options.tokens:,} tokens, keep {options.keep:g}, {options.repeats} repeats; 95 % intervals",
        (
            "pair",
            "kept",
            "speed-up",
            "bound",
            "reached",
            "reached, by CPU",
            "scoring, selection",
            "Python beyond parts",
        ),
        [
            (
                each["pair"],
                str(each["rows"][0]["kept_tokens"]),
                words(each["speedup"]),
                f"{each['bound']['ratio']:.3f}",
                words(each["reached"]),
                words(each["reached_cpu"]),
                f"{each['scoring_and_selection_share']:.2%}",
                f"{each['python_share_beyond_parts']:.2%}",
            )
            for each in found
        ],
    )
    print(f"Reached must be {LIMIT} at least. Of that, look-ahead is a part of the draft's share.")
    print(f"A clean process is ready after {started['median']:.2f} s (limit {READY_LIMIT_SECONDS} s).")
    write("overhead", {"blas": BLAS, "selection": selection.model_dump(), "pairs": found, "ready": started})


if __name__ == "__main__":
    main()
