"""Decode rates, dense against treated: only from pairs that decoded enough, and each pair against itself."""

import math
from dataclasses import replace

import pytest

from specprefill_repro.estimates.build import build_estimates
from specprefill_repro.estimates.decoding import ENOUGH_TOKENS, decoding
from specprefill_repro.estimates.pairing import Twins
from specprefill_repro.report.groups import Group
from specprefill_repro.report.numbers import NONE
from specprefill_repro.report.rows import decoding_rows
from specprefill_repro.study.schema import NeedleKind, Prompts
from specprefill_repro.trials.schema import TrialRecord
from synthetic_records import World, demo_study, synthetic_study_records

STUDY = demo_study(blocks=2, prompts=Prompts(kinds=(NeedleKind.NUMBER,), answer_tokens=ENOUGH_TOKENS + 1))


def twins(count: int = 4) -> list[Twins]:
    records = synthetic_study_records(STUDY, 1, World(noise=0)).records
    dense = next(record for record in records if not record.treated)
    treated = next(record for record in records if record.treated and record.outcome == "sparse")
    return [Twins(dense, treated, "", "") for _ in range(count)]


def with_rate(record: TrialRecord, tokens: int, rate: float) -> TrialRecord:
    return record.model_copy(update={"decode_tokens": tokens, "decode_seconds": tokens / rate})


def test_the_ratio_is_that_of_seconds_a_token_pair_by_pair() -> None:
    some = [
        replace(pair, dense=with_rate(pair.dense, 40, dense), treated=with_rate(pair.treated, 50, treated))
        for pair, (dense, treated) in zip(twins(), [(10, 11), (20, 22), (5, 6), (30, 30)], strict=True)
    ]
    found = decoding(some)
    assert found is not None and found.speedup is not None and found.interval95 is not None
    assert (found.fewest_tokens, found.most_tokens, found.pairs) == (40, 50, 4)
    assert found.speedup == pytest.approx(math.prod([1.1, 1.1, 1.2, 1.0]) ** 0.25)
    assert (found.dense_rate, found.treated_rate) == (pytest.approx(15), pytest.approx(16.5))
    assert found.interval95.low < found.speedup < found.interval95.high


def test_pairs_that_decoded_too_few_tokens_say_nothing() -> None:
    short, long = twins(2)
    short = replace(short, treated=with_rate(short.treated, ENOUGH_TOKENS - 1, 1e6))
    found = decoding([short, long])
    assert found is not None and found.pairs == 1 and found.speedup == pytest.approx(1)
    alone = decoding([short])
    assert alone is not None and (alone.pairs, alone.speedup, alone.interval95, alone.dense_rate) == (
        0,
        None,
        None,
        None,
    )
    assert decoding([]) is None


def test_an_engine_that_noted_no_decode_time_is_not_divided_by_zero() -> None:
    pair = twins(1)[0]
    untimed = replace(pair, dense=pair.dense.model_copy(update={"decode_seconds": 0.0}))
    found = decoding([untimed])
    assert found is not None and (found.fewest_tokens, found.pairs) == (0, 0)


@pytest.mark.parametrize(("tokens", "words"), [(ENOUGH_TOKENS + 1, "1.00\u00d7"), (12, "too few tokens")])
def test_the_report_shows_a_ratio_or_says_that_too_few_tokens_were_decoded(tokens: int, words: str) -> None:
    study = demo_study(blocks=2, prompts=Prompts(kinds=(NeedleKind.NUMBER,), answer_tokens=tokens))
    made = synthetic_study_records(study, 1, World(noise=0))
    found = build_estimates(study, made.records, made.receipts, made.gates, made.log_probabilities)
    rows = decoding_rows([Group((cell,)) for cell in found.cells])
    assert len(rows) == len(found.cells)
    assert {row.ratio.replace("1.000", "1.00") for row in rows} == {words}
    assert (words == "too few tokens") <= all(row.interval == NONE for row in rows)


def with_times(pair: Twins, saved: float, longer: float) -> Twins:
    """A pair whose first token came `saved` seconds sooner, and each token after it `longer` seconds later."""
    dense = with_rate(pair.dense.model_copy(update={"seconds": 10.0}), 40, 1 / 0.1)
    treated = with_rate(pair.treated.model_copy(update={"seconds": 10.0 - saved}), 40, 1 / (0.1 + longer))
    return replace(pair, dense=dense, treated=treated)


def test_slower_decoding_uses_up_the_gain_after_as_many_tokens_as_the_seconds_say() -> None:
    some = [with_times(pair, saved, 0.02) for pair, saved in zip(twins(), [3.9, 4.0, 4.1, 4.0], strict=True)]
    found = decoding(some)
    assert found is not None and found.even_tokens is not None
    # The whole answer, token by token, by both arms' clocks.
    totals = [(10 + n * 0.1, 6 + n * 0.12) for n in (found.even_tokens - 2, found.even_tokens + 2)]
    assert totals[0][0] > totals[0][1] and totals[1][0] < totals[1][1]


@pytest.mark.parametrize(("saved", "longer"), [(4.0, -0.02), (-4.0, 0.02), (4.0, 0.0)])
def test_without_a_gain_or_slower_decoding_nothing_is_used_up(saved: float, longer: float) -> None:
    found = decoding([with_times(pair, saved, longer) for pair in twins()])
    assert found is not None and found.speedup is not None and found.even_tokens is None


def test_a_difference_in_decoding_that_may_be_noise_uses_nothing_up() -> None:
    found = decoding([with_times(pair, 4.0, longer) for pair, longer in zip(twins(), [0.03, -0.02] * 2, strict=True)])
    assert found is not None and found.interval95 is not None and found.interval95.high > 1
    assert found.even_tokens is None
