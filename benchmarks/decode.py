"""Decoding after a sparse prefill, against decoding after a dense one: ratios of seconds a token, with intervals.

    .venv/bin/python benchmarks/decode.py [MODEL ...]

A MODEL is a folder in MLX format, or `synthetic`: a Llama with random weights, wider than the demo's. By default
the demo's model (results/models/smollm2-135m) and the synthetic one. Three caches of one model are decoded from by
turns, eight tokens at a time in an order that is mirrored each round, so that a change of the machine's speed hits all:

    sparse        a fifth of the prompt's tokens, at their positions; the engine's own decoding
    dense         the whole prompt, as mlx_lm has it
    dense, short  as many tokens as `sparse` holds, without gaps: shows what reading at positions costs by itself

A ratio above 1 means that `sparse` decodes faster. The interval is Student's t over rounds. On a CPU that others use
too, the ratio of processor seconds is the steadier one.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from specprefill_repro.prefill.blas import use_fast_blas

use_fast_blas()

import mlx.core as mx  # noqa: E402
from mlx.utils import tree_flatten, tree_map  # noqa: E402

from specprefill_repro.estimates.statistics import interval, log_ratio, summary  # noqa: E402
from specprefill_repro.prefill import control, dense  # noqa: E402
from specprefill_repro.prefill.arms import Models, Prefilled, Request  # noqa: E402
from specprefill_repro.prefill.loading import _mlx_lm_utils, load_model  # noqa: E402
from specprefill_repro.study.plan import Arm, ArmKind  # noqa: E402
from specprefill_repro.study.schema import Selection  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
PROMPT, ROUNDS, TOKENS = 1024, 8, 8
SYNTHETIC = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-5,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}


def main() -> None:
    names = sys.argv[1:] or [str(ROOT / "results" / "models" / "smollm2-135m"), "synthetic"]
    for name in names:
        model = synthetic() if name == "synthetic" else load_model(Path(name))[0]
        weights = sum(array.size for _, array in tree_flatten(model.parameters()))
        print(f"{Path(name).name}: {weights / 1e6:.0f} million weights, prompt of {PROMPT} tokens", flush=True)
        measure(model)


def synthetic() -> Any:
    """Random weights, in the type in which this machine computes fast."""
    model_class, arguments = _mlx_lm_utils()._get_classes(SYNTHETIC)
    model = model_class(arguments.from_dict(SYNTHETIC))
    dtype = mx.float32 if mx.default_device() == mx.Device(mx.cpu) else mx.bfloat16
    model.update(tree_map(lambda array: array.astype(dtype), model.parameters()))
    mx.eval(model.parameters())
    return model


def measure(model: Any) -> None:
    """Prefill three caches, decode from each by turns, print the ratios."""
    ids = tuple(int(token) for token in mx.random.randint(0, 10_000, (PROMPT,), key=mx.random.key(1)).tolist())
    models = Models(target=model, draft=None)
    sparse = Arm(kind=ArmKind.RANDOM, keep=0.2, selection=Selection())
    with ExitStack() as stack:
        arms: dict[str, Prefilled] = {
            "sparse": stack.enter_context(control.prefill(models, Request(ids, sparse, 512, "decode")))
        }
        short = ids[: len(arms["sparse"].kept)]
        for name, tokens in (("dense", ids), ("dense, short", short)):
            request = Request(tokens, Arm(kind=ArmKind.DENSE), 512, "decode")
            arms[name] = stack.enter_context(dense.prefill(models, request))
        for arm in arms.values():
            arm.decode(ids[0])
        seconds: dict[str, list[float]] = {name: [] for name in arms}
        computed: dict[str, list[float]] = {name: [] for name in arms}
        for order in orders(list(arms)):
            spent = {name: [0.0, 0.0] for name in arms}
            for name in order:
                for clock, value in enumerate(decode(arms[name].decode, ids)):
                    spent[name][clock] += value
            for name, (wall, processor) in spent.items():
                seconds[name].append(wall)
                computed[name].append(processor)
    decoded = 2 * ROUNDS * TOKENS
    for name, values in seconds.items():
        kept = len(arms[name].kept)
        print(f"  {name:13} {kept:5} tokens in the cache, {decoded} decoded: {decoded / sum(values):8.2f} tokens/s")
    clocks = {"seconds": seconds}
    if mx.default_device() == mx.Device(mx.cpu):
        clocks["processor seconds"] = computed
    for clock, measured in clocks.items():
        for name in ("dense", "dense, short"):
            ratios = [log_ratio(theirs, ours) for theirs, ours in zip(measured[name], measured["sparse"], strict=True)]
            bounds = interval(ratios, 0.95)
            assert bounds is not None
            found = f"{summary(ratios).speedup:.3f} ({bounds.low:.3f} to {bounds.high:.3f})"
            print(f"  {name} / sparse, {clock}: {found}", flush=True)


def orders(names: list[str]) -> Iterator[list[str]]:
    """Each round: an order and its mirror image; the first one changes from round to round."""
    for number in range(ROUNDS):
        turned = names[number % len(names) :] + names[: number % len(names)]
        yield [*turned, *turned[::-1]]


def decode(read: Callable[[int], mx.array], ids: tuple[int, ...]) -> tuple[float, float]:
    """For a few tokens, the same ones in every arm: seconds, and those in which a processor worked for us."""
    start, processor = time.perf_counter(), time.process_time()
    for token in ids[:TOKENS]:
        read(token)
    return time.perf_counter() - start, time.process_time() - processor


if __name__ == "__main__":
    main()
