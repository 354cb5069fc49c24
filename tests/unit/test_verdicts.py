"""Estimates and cards to verdicts, on scripted machines whose truth is known."""

from collections.abc import Sequence
from typing import Any

import pytest

from specprefill_repro.estimates.build import build_estimates
from specprefill_repro.project import Project
from specprefill_repro.study.schema import Comparison, Pair, Study, Treatment
from specprefill_repro.verdicts.build import build_verdicts
from specprefill_repro.verdicts.claims import load_claims, load_contradictions, study_claims
from specprefill_repro.verdicts.matching import EngineFacts, Facts, ModelFacts
from specprefill_repro.verdicts.schema import Claim, ClaimKind, Conditions, Rule, Verdict, Verdicts, Word
from synthetic_records import Fault, World, demo_study, synthetic_study_records

STUDY = demo_study()
GAIN, PREDICTED, SELF = "demo-padded-gain", "demo-padded-predicted", "demo-self-slower"
PLACEBO, KEPT, LOST = "demo-placebo-tied", "demo-padded-answers-kept", "demo-random-answers-lost"

# A study of a natural pair, on the machine and with the models of a published claim.
MAC = demo_study(
    blocks=4,
    pairs={"big": Pair(target="big", draft="small")},
    comparisons=(
        Comparison(pair="big", treatment=Treatment.SPECULATIVE, lengths=(8192,), keep=(0.2,), blocks=4),
        Comparison(pair="big", treatment=Treatment.PLACEBO, lengths=(8192,), blocks=4),
    ),
)
MAC_CELL = "big-8192-speculative-keep0.2"
MAC_FACTS = Facts(
    hardware="Apple M2 Ultra",
    memory_gib=128.0,
    engines={"mlx-lm": EngineFacts("mlx-lm", "0.32.2")},
    models={"big": ModelFacts("Qwen3.5-122B-A10B-5bit", "5-bit"), "small": ModelFacts("Qwen3.5-2B-4bit", "4-bit")},
)


@pytest.fixture(scope="module")
def cards(real_project: Project) -> dict[str, Claim]:
    """The demo's expectations at whatever lengths the synthetic study has."""
    return {
        name: card.model_copy(update={"conditions": card.conditions.model_copy(update={"prompt_tokens": None})})
        if card.kind is ClaimKind.EXPECTATION
        else card
        for name, card in load_claims(real_project).items()
    }


@pytest.fixture(scope="module")
def demo_cards(cards: dict[str, Claim]) -> list[Claim]:
    return [card for name, card in cards.items() if name.startswith("demo-")]


def judge(
    claims: Sequence[Claim], world: World, study: Study = STUDY, facts: Facts | None = None, seed: int = 1
) -> dict[str, Verdict]:
    found = build_verdicts(
        study, build_estimates(study, *synthetic_study_records(study, seed, world)), claims, facts or Facts()
    )
    return {verdict.claim.id: verdict for verdict in found.verdicts}


def words(verdicts: dict[str, Verdict]) -> dict[str, Word]:
    return {name: verdict.word for name, verdict in verdicts.items()}


def speed_claim(name: str, value: float, rule: Rule = Rule.AT_LEAST, **more: Any) -> Claim:
    values: dict[str, Any] = {
        "id": name,
        "kind": ClaimKind.AUTHOR_CLAIM,
        "statement": "It is faster.",
        "source": "A paper",
        "source_url": "https://example.org",
        "location": "Table 1",
        "access": "primary",
        "metric": "ttft_speedup",
        "value": value,
        "unit": "x",
        "trials": 5,
        "spread": "not stated",
        "rule": rule,
        "conditions": Conditions(
            hardware="Apple M2 Ultra",
            memory_gib=128.0,
            target="Qwen3.5-122B-A10B (MoE)",
            draft="Qwen3.5-2B",
            target_quantization="5-bit",
            draft_quantization="4-bit",
            keep=0.2,
            prompt_tokens=8192,
        ),
    }
    return Claim(**(values | more))


def test_a_correct_pipeline_on_a_quiet_machine_meets_every_expectation(demo_cards: list[Claim]) -> None:
    found = judge(demo_cards, World())
    assert set(words(found).values()) == {Word.REPRODUCED}, words(found)
    assert found[GAIN].cells == ("padded-1024-speculative-keep0.2",)
    assert found[KEPT].cells == ("padded-512-speculative-keep0.2", "padded-1024-speculative-keep0.2")
    assert found[PREDICTED].expected == pytest.approx(found[PREDICTED].measured, rel=0.05)
    assert "costs as much as the target" in (found[SELF].attribution or "")
    assert found[GAIN].attribution is None


@pytest.mark.parametrize("seed", range(5))
def test_expectations_hold_on_an_ordinary_machine(demo_cards: list[Claim], seed: int) -> None:
    found = words(judge(demo_cards, World(noise=0.02, drift=0.0002), seed=seed))
    assert found[GAIN] is found[SELF] is found[PREDICTED] is found[LOST] is Word.REPRODUCED
    assert found[PLACEBO] in (Word.REPRODUCED, Word.INCONCLUSIVE)


def test_a_gain_that_is_not_there_is_seen(demo_cards: list[Claim]) -> None:
    found = judge(demo_cards, World(true_ratio={"padded-*-speculative-*": 1.0}))
    assert words(found)[GAIN] is words(found)[PREDICTED] is Word.TIED
    assert found[GAIN].attribution is not None


def test_a_draft_that_is_faster_than_itself_is_seen(demo_cards: list[Claim]) -> None:
    assert words(judge(demo_cards, World(true_ratio={"self-*": 1.3})))[SELF] is Word.NOT_REPRODUCED


def test_a_biased_placebo_is_seen(demo_cards: list[Claim]) -> None:
    assert words(judge(demo_cards, World(true_ratio={"*-placebo": 1.2})))[PLACEBO] is Word.NOT_REPRODUCED


def test_lost_and_kept_answers_are_seen(demo_cards: list[Claim]) -> None:
    world = World(answers_lost={"padded-*-speculative-keep0.2": 1.0, "padded-*-random-*": 0.0})
    found = judge(demo_cards, world)
    assert words(found)[KEPT] is Word.NOT_REPRODUCED
    assert words(found)[LOST] is Word.INCONCLUSIVE  # 0 of 12: up to 26 % may be lost.
    assert (found[KEPT].measured, found[LOST].measured) == (1.0, 0.0)


@pytest.mark.parametrize("kind", ["fallback", "cache", "suspend", "swap", "positions", "float32", "phases", "crash"])
def test_a_fault_in_every_trial_makes_the_verdict_invalid_and_is_named(demo_cards: list[Claim], kind: str) -> None:
    found = judge(demo_cards, World(faults=(Fault(kind, "padded-1024-speculative-keep0.2"),)))
    assert found[GAIN].word is Word.INVALID and found[GAIN].sentence.startswith("No verdict: block 0")
    assert found[GAIN].measured is None
    assert found[SELF].word is Word.REPRODUCED


def test_a_fault_in_one_block_of_three_leaves_too_few_pairs_and_says_how_many_did_not_count(
    demo_cards: list[Claim],
) -> None:
    found = judge(demo_cards, World(faults=(Fault("cache", "padded-1024-speculative-keep0.2", block=0),)))[GAIN]
    assert found.word is Word.INCONCLUSIVE and found.pairs == 4
    assert "4 of at least 5 pairs" in found.sentence and "2 more did not count" in found.sentence


def test_a_failed_gate_makes_verdicts_about_its_pair_invalid(demo_cards: list[Claim]) -> None:
    found = judge(demo_cards, World(gate_fails=("padded",)))
    assert words(found)[GAIN] is words(found)[PLACEBO] is words(found)[KEPT] is Word.INVALID
    assert "kept keys at true positions" in found[GAIN].sentence
    assert words(found)[SELF] is Word.REPRODUCED


def test_a_bad_baseline_is_no_win(demo_cards: list[Claim]) -> None:
    """As in a published run: the dense arm is at half its usual speed, and the treated one gains nothing."""
    cell = "padded-1024-speculative-keep0.2"
    found = judge(demo_cards, World(dense_factor={cell: 1.9}, true_ratio={cell: 1.0}))[GAIN]
    assert found.word is Word.INVALID and "weak baseline" in found.sentence


def test_a_study_that_was_not_run_says_so(demo_cards: list[Claim]) -> None:
    made = synthetic_study_records(STUDY, 1)
    empty = build_estimates(STUDY, [], [], made.gates, made.log_probabilities)
    found = build_verdicts(STUDY, empty, demo_cards, Facts())
    assert {verdict.word for verdict in found.verdicts} == {Word.NOT_RUN}
    assert all("No block of" in verdict.sentence for verdict in found.verdicts)


def test_an_expectation_about_a_cell_that_the_study_lacks_is_not_run(demo_cards: list[Claim]) -> None:
    study = demo_study(comparisons=tuple(c for c in STUDY.comparisons if c.pair != "self"))
    found = judge(demo_cards, World(), study)
    assert words(found)[SELF] is words(found)[PREDICTED] is Word.NOT_RUN
    assert "does not measure the draft" in found[PREDICTED].sentence


def test_published_claims_about_other_machines_are_shown_beside_the_measurement(
    cards: dict[str, Claim], demo_cards: list[Claim], real_project: Project
) -> None:
    study = demo_study(claims=("demo-*", "green-122b-2b-*", "shivam-*", "omlx-issue-*"))
    made = synthetic_study_records(study, 1)
    found: Verdicts = build_verdicts(
        study,
        build_estimates(study, *made),
        study_claims(study, cards),
        Facts(hardware="Synthetic"),
        load_contradictions(real_project, cards),
    )
    published = [verdict for verdict in found.verdicts if verdict.claim.kind is not ClaimKind.EXPECTATION]
    assert len(published) > 50 and {verdict.word for verdict in published} == {Word.NOT_COMPARABLE}
    for verdict in published:
        assert verdict.conditions and verdict.cells
        assert any(row.matches is False for row in verdict.conditions)
    green = next(verdict for verdict in published if verdict.claim.id == "green-122b-2b-8K")
    assert (green.expected, green.cells) == (3.71, ("padded-1024-speculative-keep0.2",))
    assert green.measured == pytest.approx(2.5, rel=0.05)
    assert "rounding-128k" in {item.id for item in found.contradictions}
    assert "look-ahead-of-the-original" not in {item.id for item in found.contradictions}


@pytest.mark.parametrize(
    "world, control",
    [
        (World(true_ratio={"padded-*-speculative-*": 1.0}), GAIN),
        (World(true_ratio={"self-*": 1.0}), SELF),
        (World(faults=(Fault("fallback", "self-*"),)), SELF),
    ],
)
def test_when_the_ruler_misses_no_published_claim_gets_a_verdict(
    demo_cards: list[Claim], world: World, control: str
) -> None:
    found = judge([*demo_cards, speed_claim("published", 2.0)], world)["published"]
    assert found.word is Word.INVALID and control in found.sentence and found.measured is None


def test_a_ruler_that_is_exceeded_is_met(demo_cards: list[Claim]) -> None:
    cards = [card.model_copy(update={"ruler": card.ruler or card.id == PREDICTED}) for card in demo_cards]
    found = judge([*cards, speed_claim("published", 2.0)], World(true_ratio={"padded-*-speculative-*": 9.0}))
    assert found[PREDICTED].word is Word.EXCEEDED and "control" not in found["published"].sentence


@pytest.mark.parametrize(
    "truth, expected",
    [(4.0, Word.REPRODUCED), (2.0, Word.SMALLER), (1.0, Word.TIED), (0.7, Word.SLOWER)],
)
def test_a_claim_whose_conditions_all_match_gets_a_verdict(truth: float, expected: Word) -> None:
    found = judge([speed_claim("c", 3.71)], World(true_ratio={MAC_CELL: truth}), MAC, MAC_FACTS)["c"]
    assert found.word is expected, found.sentence
    assert found.pairs == 8 and found.interval95 is not None and len(found.conditions) == 11
    assert (found.attribution is None) == (expected is Word.REPRODUCED)


def test_a_value_that_is_clearly_surpassed_is_exceeded() -> None:
    world = World(true_ratio={MAC_CELL: 4.0})
    assert judge([speed_claim("c", 2.0, Rule.EQUAL)], world, MAC, MAC_FACTS)["c"].word is Word.EXCEEDED


def test_an_inconclusive_verdict_says_about_how_many_more_pairs_it_needs() -> None:
    found = judge([speed_claim("c", 1.9)], World(true_ratio={MAC_CELL: 1.8}, noise=0.15), MAC, MAC_FACTS)["c"]
    assert found.word is Word.INCONCLUSIVE and found.more_pairs
    assert f"About {found.more_pairs} more pairs" in found.sentence


def test_a_noisy_placebo_widens_the_tie_margin() -> None:
    """A gain of 1.05 on a machine whose placebo shows 10 % of noise is no gain."""
    quiet = World(true_ratio={MAC_CELL: 1.06}, noise=0.002)
    claim = speed_claim("c", 3.71)
    assert judge([claim], quiet, MAC, MAC_FACTS)["c"].word is Word.SMALLER
    study = build_estimates(MAC, *synthetic_study_records(MAC, 1, quiet)).model_copy(update={"placebo_margin": 0.1})
    verdict = build_verdicts(MAC, study, [claim], MAC_FACTS).verdicts[0]
    assert verdict.word is Word.TIED


def test_primary_claims_are_corrected_together() -> None:
    """A gain whose 95 % interval only just clears the margin does not survive beside many undecided primary claims."""
    clear = speed_claim("clear", 1.7, Rule.AT_LEAST, primary=True)
    world = World(true_ratio={MAC_CELL: 1.8}, noise=0.15)
    alone = judge([clear], world, MAC, MAC_FACTS)["clear"]
    assert alone.word is Word.REPRODUCED and alone.interval95 is not None
    others = [speed_claim(f"other-{i}", 2.2, Rule.AT_LEAST, primary=True) for i in range(60)]
    together = judge([clear, *others], world, MAC, MAC_FACTS)
    assert together["other-0"].word is Word.INCONCLUSIVE
    said = together["clear"].sentence
    assert together["clear"].word is Word.INCONCLUSIVE and "(Holm)" in said
    # 61 primary claims: 5 % / 61, so that the 99.92 % interval has to say the same.
    assert "Taken alone this would be 'reproduced'" in said and "the 61 primary claims" in said
    assert "at 0.082%, not at 5%" in said and "Its 99.92% interval, " in said
    assert float(said.split("99.92% interval, ")[1].split(" to ")[0]) < 1.7 * 0.85 < alone.interval95.low
    secondary = [claim.model_copy(update={"primary": False}) for claim in others]
    assert judge([clear, *secondary], world, MAC, MAC_FACTS)["clear"].word is Word.REPRODUCED


def test_a_control_that_the_correction_takes_back_is_named_by_the_word_of_the_table() -> None:
    """Wholly below the border, and yet inconclusive: the sentence has to say why, in the words of the page."""
    gain, slower = speed_claim("gain", 9.0, primary=True), speed_claim("slower", 1.0, Rule.SLOWER, primary=True)
    card = slower.model_copy(
        update={
            "kind": ClaimKind.EXPECTATION,
            "conditions": Conditions(pair="big", treatment=Treatment.SPECULATIVE),
        }
    )
    undecided = [gain.model_copy(update={"id": f"open-{i}", "value": 0.72}) for i in range(9)]
    world = World(true_ratio={MAC_CELL: 0.75}, noise=0.13)
    estimates = build_estimates(MAC, *synthetic_study_records(MAC, 1, world)).model_copy(update={"placebo_margin": 0.2})
    found = {v.claim.id: v for v in build_verdicts(MAC, estimates, [card, *undecided], MAC_FACTS).verdicts}
    sentence = found["slower"].sentence
    assert found["slower"].word is Word.INCONCLUSIVE and "slower than dense" in sentence
    assert (
        "Taken alone this would be 'as expected'" in sentence
        and "the 10 primary claims" in sentence
        and "'reproduced'" not in sentence
    )


def test_verdicts_come_in_the_order_of_the_claims_and_survive_a_round_trip(demo_cards: list[Claim]) -> None:
    found = build_verdicts(STUDY, build_estimates(STUDY, *synthetic_study_records(STUDY, 1)), demo_cards[::-1], Facts())
    assert [verdict.claim for verdict in found.verdicts] == demo_cards[::-1]
    assert Verdicts.model_validate_json(found.model_dump_json()) == found


def test_a_prediction_from_a_weak_baseline_is_no_prediction(demo_cards: list[Claim]) -> None:
    weak = World(dense_factor={"self-1024-*": 6.0}, true_ratio={"self-1024-*": 1.0})
    found = judge(demo_cards, weak)
    assert found[PREDICTED].word is Word.INVALID
    assert "a measured part is weak: the dense arm took" in found[PREDICTED].sentence
    assert found[GAIN].word is Word.REPRODUCED  # the measurement itself is sound
