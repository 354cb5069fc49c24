"""Checks that nothing of a run is left in the models."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import mlx.nn as nn
import numpy as np

from specprefill_repro.gate.pair import Finding, Loaded, is_as_loaded, prefill, request, run
from specprefill_repro.prefill import speculative
from specprefill_repro.prefill.architectures import structure
from specprefill_repro.study.plan import ArmKind


def model_untouched(pair: Loaded) -> Finding:
    """After all the speculative prefills of the gate the models must be what they were, to the bit."""
    run(pair, "speculative")
    return _untouched(pair)


def model_untouched_after_error(pair: Loaded) -> Finding:
    """An error in the last layer of either model ends a speculative prefill half-way."""
    for model in (pair.draft, pair.target):
        with (
            suppress(Interruption),
            _interrupted(model),
            speculative.prefill(pair.models, request(pair, ArmKind.SPECULATIVE)),
        ):
            raise RuntimeError("the prefill was not interrupted")
    return _untouched(pair)


class Interruption(Exception):
    """What goes wrong on purpose."""


@contextmanager
def _interrupted(model: nn.Module) -> Iterator[None]:
    """Within this, the last layer of a model can't be computed."""
    last = structure(model).text.layers[-1]
    kind, original = type(last), type(last).__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self is last:
            raise Interruption
        return original(self, *args, **kwargs)

    kind.__call__ = call
    try:
        yield
    finally:
        kind.__call__ = original


def _untouched(pair: Loaded) -> Finding:
    same_parts = is_as_loaded(pair)
    same_logits = np.array_equal(prefill(pair, request(pair, ArmKind.DENSE)).logits, run(pair, "dense").logits)
    return Finding(
        passed=bool(same_parts and same_logits),
        measured=f"parts {'the same' if same_parts else 'changed'}, "
        f"dense logits {'bit-identical' if same_logits else 'changed'}",
        required="the same weights and rotary modules, bit-identical dense logits",
    )
