"""Checks that nothing of a run is left in the models."""

import contextlib
from typing import Any

import mlx.core as mx
import numpy as np

from specprefill_repro.gate.pair import Finding, Loaded, is_as_loaded, prefill, request, run
from specprefill_repro.prefill.architectures import structure
from specprefill_repro.prefill.chunked import new_cache
from specprefill_repro.prefill.positions import PositionedModel
from specprefill_repro.study.plan import ArmKind


def model_untouched(pair: Loaded) -> Finding:
    """After all the speculative prefills of the gate the models must be what they were, to the bit."""
    run(pair, "speculative")
    return _untouched(pair)


def model_untouched_after_error(pair: Loaded) -> Finding:
    class Interruption(Exception):
        pass

    class Interrupting:
        """A cache whose layer can't be computed."""

        offset = 0

        def make_mask(self, *_: Any, **__: Any) -> None:
            return None

        def update_and_fetch(self, *_: Any) -> None:
            raise Interruption

    model = PositionedModel(pair.target, len(pair.ids))
    model.positions.set([5])
    cache = new_cache(model)
    last = max(layer.cache for layer in structure(pair.target).attention if layer.cache is not None)
    cache[last] = Interrupting()
    with contextlib.suppress(Interruption):
        model(mx.array([[1]]), cache=cache)
    return _untouched(pair)


def _untouched(pair: Loaded) -> Finding:
    same_parts = is_as_loaded(pair)
    same_logits = np.array_equal(prefill(pair, request(pair, ArmKind.DENSE)).logits, run(pair, "dense").logits)
    return Finding(
        passed=bool(same_parts and same_logits),
        measured=f"parts {'the same' if same_parts else 'changed'}, "
        f"dense logits {'bit-identical' if same_logits else 'changed'}",
        required="the same weights and rotary modules, bit-identical dense logits",
    )
