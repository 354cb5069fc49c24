"""The gate: proves on this machine, with this pair, that every arm computes what it says, before anything is timed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from specprefill_repro.errors import ReproError
from specprefill_repro.gate import left_behind, positions, scores, settings, what_ran
from specprefill_repro.gate.oracle import why_not_covered, why_unknown
from specprefill_repro.gate.pair import Finding, Loaded
from specprefill_repro.gate.schema import Check
from specprefill_repro.prefill.architectures import structure


@dataclass(frozen=True)
class Named:
    """A check of the gate, and what a reader of its result has to know."""

    name: str
    guards: tuple[int, ...]
    """Pitfalls (specprefill_repro.gate.pitfalls)."""
    says: str
    """What is checked, in one sentence for a reader who knows neither the paper nor the code."""
    check: Callable[[Loaded], Finding]
    applies: Callable[[Loaded], bool] = lambda pair: True


def _oracle_knows_target(pair: Loaded) -> bool:
    return why_not_covered(pair.target_folder) is None


def _oracle_knows_draft(pair: Loaded) -> bool:
    return why_not_covered(pair.draft_folder) is None


def _oracle_knows_a_part(pair: Loaded) -> bool:
    return why_unknown(pair.target_folder) is None and not _oracle_knows_target(pair)


def _has_windows(pair: Loaded) -> bool:
    return any(layer.window is not None for layer in structure(pair.target).attention)


def _begins_with_attention(pair: Loaded) -> bool:
    return structure(pair.target).attention[0].index == 0


def _unless(condition: Callable[[Loaded], bool]) -> Callable[[Loaded], bool]:
    return lambda pair: not condition(pair)


CHECKS = (
    Named(
        "tokenizers-equal",
        (21,),
        "Draft and target mean the same words by the same numbers.",
        settings.tokenizers_equal,
    ),
    Named(
        "rotary-settings-read",
        (15, 16),
        "The settings that encode positions were read from where the model's config.json has them.",
        settings.rotary_settings_read,
    ),
    Named(
        "settings-in-effect",
        (2,),
        "Keep rate, chunk length, head, tail, look-ahead and step have the effect that each should have.",
        settings.settings_in_effect,
    ),
    Named(
        "vector-offsets",
        (15,),
        "This device encodes each token by its own position when a pass has gaps.",
        positions.vector_offsets,
    ),
    Named(
        "scores-equal-oracle",
        (14,),
        "The draft's scores equal those of a separate NumPy calculation from its weight files.",
        scores.scores_equal_oracle,
        _oracle_knows_draft,
    ),
    Named(
        "scores-equal-kernel",
        (14,),
        "The draft's scores equal those that NumPy gets from what the attention kernel itself was given.",
        scores.scores_equal_kernel,
        _unless(_oracle_knows_draft),
    ),
    Named(
        "selection-follows-scores",
        (12,),
        "The kept chunks are those that score best on the prompt at hand.",
        scores.selection_follows_scores,
    ),
    Named(
        "same-selection-again",
        (13,),
        "Scoring the same prompt again keeps the same tokens.",
        scores.same_selection_again,
    ),
    Named(
        "keep-1-equals-dense",
        (16,),
        "Keeping every token gives what plain prefill gives.",
        positions.keep_1_equals_dense,
    ),
    Named(
        "gapped-selection-equals-oracle",
        (15, 17),
        "With gaps between kept tokens the model computes what NumPy computes from its weight files.",
        positions.gapped_selection_equals_oracle,
        _oracle_knows_target,
    ),
    Named(
        "first-layers-equal-oracle",
        (15, 17),
        "With gaps between kept tokens the first layers compute what NumPy computes from the weight files.",
        positions.first_layers_equal_oracle,
        _oracle_knows_a_part,
    ),
    Named(
        "gapped-equals-one-by-one",
        (15, 17),
        "With gaps between kept tokens the model computes what it computes itself when it reads them one by one.",
        positions.gapped_equals_one_by_one,
        _unless(_oracle_knows_target),
    ),
    Named(
        "windows-count-positions",
        (15, 17),
        "Layers that look back over a limited stretch measure it in the prompt, not in kept tokens.",
        positions.windows_count_positions,
        _has_windows,
    ),
    Named(
        "keys-equal-dense",
        (15,),
        "In the first layer, what is stored of a kept token is what plain prefill stores of it.",
        positions.keys_equal_dense,
        _begins_with_attention,
    ),
    Named(
        "keys-equal-one-by-one",
        (15,),
        "In the first attention layer, what is stored of a kept token is what reading one by one stores of it.",
        positions.keys_equal_one_by_one,
        _unless(_begins_with_attention),
    ),
    Named(
        "arms-run-as-named",
        (1,),
        "Each way of reading the prompt really is what its label says.",
        what_ran.arms_run_as_named,
    ),
    Named(
        "layers-read-kept-tokens",
        (22,),
        "Every layer of the target, of whatever kind, was given each kept token once and no other.",
        what_ran.layers_read_kept_tokens,
    ),
    Named(
        "caches-start-empty",
        (31,),
        "Nothing read earlier is reused, by either model.",
        what_ran.caches_start_empty,
    ),
    Named(
        "last-token-kept",
        (19,),
        "The end of the prompt is always kept.",
        what_ran.last_token_kept,
    ),
    Named(
        "types-unchanged",
        (41,),
        "Dropping tokens does not make the model compute in another numeric type.",
        what_ran.types_unchanged,
    ),
    Named(
        "model-untouched",
        (20,),
        "After all of this, plain prefill gives what it gave before, to the bit.",
        left_behind.model_untouched,
    ),
    Named(
        "model-untouched-after-error",
        (20,),
        "The same after an error in the middle of a prefill.",
        left_behind.model_untouched_after_error,
    ),
)
"""In the order in which they run. Where one does not apply to a pair, another stands in its place."""


def run_checks(pair: Loaded) -> Iterator[Check]:
    """Run every check that applies, in turn; a check that can't be made has failed, with the reason."""
    for named in CHECKS:
        if named.applies(pair):
            found = _find(named, pair)
            yield Check(
                name=named.name,
                passed=found.passed,
                measured=found.measured,
                required=found.required,
                says=named.says,
                guards=named.guards,
            )


def _find(named: Named, pair: Loaded) -> Finding:
    try:
        return named.check(pair)
    except Exception as error:  # Whatever it is, the check was not passed.
        what = error.what if isinstance(error, ReproError) else f"{type(error).__name__}: {error}"
        return Finding(passed=False, measured=f"could not be checked: {what}", required="no error")
