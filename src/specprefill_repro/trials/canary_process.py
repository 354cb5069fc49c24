"""The work of the canary: `python -m specprefill_repro.trials.canary_process`. Prints one line of JSON.

It imports as little as it can, since most of its time is that of starting.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from specprefill_repro.prefill.blas import use_fast_blas

REPEATS = 3
SIDE = 1024
"""Of the square matrices."""
WIDTH, HEADS, INNER, LAYERS = 256, 4, 704, 2
"""Of the tiny model: like Llama's layers, with random weights that are always the same."""
PRODUCTS = {"cpu": 1, "gpu": 64}
"""One after the other; a GPU does one faster than it can be told to."""
TOKENS = {"cpu": 256, "gpu": 4096}


def main() -> None:
    """Entry point."""
    # Whatever a library prints must not mix with the answer.
    answer = os.dup(1)
    os.dup2(2, 1)
    blas = use_fast_blas()
    import mlx.core as mx

    device = str(mx.default_device())
    kind = "gpu" if "gpu" in device else "cpu"
    product = product_seconds(PRODUCTS[kind])
    found = {
        "mlx": mx.__version__,
        "device": device,
        "blas": blas,
        "product_seconds": product,
        "product_gflops": 2 * SIDE**3 * PRODUCTS[kind] / product / 1e9,
        "prefill_seconds": prefill_seconds(TOKENS[kind]),
    }
    os.write(answer, json.dumps(found).encode())


def product_seconds(products: int) -> float:
    """Seconds of so many products of two float32 matrices of SIDE x SIDE, each of the one before and the same other."""
    import mlx.core as mx

    first, other = (_weights(SIDE, SIDE, seed) for seed in (1, 2))

    def run() -> None:
        result = first
        for _ in range(products):
            result = result @ other
        mx.eval(result)

    return _median_seconds(run)


def prefill_seconds(tokens: int) -> float:
    """Seconds of a causal pass of so many tokens, float32, through the tiny model to the last token's state."""
    import mlx.core as mx

    shapes = [(WIDTH, WIDTH)] * 4 + [(WIDTH, INNER)] * 2 + [(INNER, WIDTH)]
    layers = [
        [_weights(*shape, seed=10 * layer + place) for place, shape in enumerate(shapes)] for layer in range(LAYERS)
    ]
    states = _weights(tokens, WIDTH, seed=99)[None]
    mx.eval(layers, states)

    def run() -> None:
        result = states
        for layer in layers:
            result = _layer(result, layer)
        mx.eval(result[:, -1])

    return _median_seconds(run)


def _layer(states: Any, weights: list[Any]) -> Any:
    """One pre-norm decoder layer: states [1, tokens, WIDTH] to the same."""
    import mlx.core as mx

    query, key, value, out, gate, up, down = weights
    normed = mx.fast.rms_norm(states, None, 1e-5)
    heads = [(normed @ weight).reshape(1, -1, HEADS, WIDTH // HEADS).swapaxes(1, 2) for weight in (query, key, value)]
    turned = [
        mx.fast.rope(part, WIDTH // HEADS, traditional=False, base=10_000.0, scale=1.0, offset=0) for part in heads[:2]
    ]
    mixed = mx.fast.scaled_dot_product_attention(*turned, heads[2], scale=(WIDTH // HEADS) ** -0.5, mask="causal")
    states = states + mixed.swapaxes(1, 2).reshape(1, -1, WIDTH) @ out
    normed = mx.fast.rms_norm(states, None, 1e-5)
    opened = normed @ gate
    return states + (opened * mx.sigmoid(opened) * (normed @ up)) @ down


def _weights(rows: int, columns: int, seed: int) -> Any:
    """float32 [rows, columns], of a size that leaves the size of what they are multiplied with about as it is."""
    import mlx.core as mx

    bound = (3 / rows) ** 0.5
    return mx.random.uniform(-bound, bound, (rows, columns), key=mx.random.key(seed))


def _median_seconds(run: Callable[[], None]) -> float:
    """Of a few runs after one that is not timed."""
    run()
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return median(seconds)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    # Nothing of it is worth tearing down in order.
    os._exit(0)
