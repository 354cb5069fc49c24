"""How likely a given continuation is after a sparse prefill: the perplexity of dense prefill's own words."""

from collections.abc import Sequence

from specprefill_repro.prefill.arms import Models, Request
from specprefill_repro.prefill.chunked import log_probabilities
from specprefill_repro.prefill.sparse import prefill_kept


def log_probabilities_after(
    models: Models, request: Request, kept: Sequence[int], tokens: Sequence[int]
) -> list[float]:
    """Prefill the kept positions, then read `tokens` one by one, whatever the model itself would say.

    Returns:
        The natural logarithm of the probability of each token after those before it.
    """
    found = []
    with prefill_kept(models, request, kept, []) as prefilled:
        logits = prefilled.logits
        for number, token in enumerate(tokens):
            found.append(float(log_probabilities(logits)[token]))
            if number < len(tokens) - 1:
                logits = prefilled.decode(token)
    return found
