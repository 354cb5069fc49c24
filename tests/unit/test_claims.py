"""Claim cards: what is refused, what a study's patterns find, and that schema and cards are in step."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from specprefill_repro.errors import ReproError
from specprefill_repro.files import read_yaml
from specprefill_repro.project import Project
from specprefill_repro.study.schema import Study, Treatment
from specprefill_repro.verdicts.claims import (
    SCHEMA_COMMAND,
    claim_files,
    load_claims,
    load_contradictions,
    schema_text,
    study_claims,
)
from specprefill_repro.verdicts.schema import Claim, ClaimKind, Rule

CARD: dict[str, Any] = {
    "id": "a-claim",
    "kind": "author_claim",
    "statement": "It is twice as fast.",
    "source": "A paper",
    "source_url": "https://example.org/paper",
    "location": "Table 1",
    "access": "primary",
    "metric": "ttft_speedup",
    "value": 2.0,
    "unit": "x",
    "trials": 5,
    "spread": None,
    "rule": "at-least",
    "conditions": {"hardware": "Apple M2 Ultra"},
}


def project_with(folder: Path, **files: list[dict[str, Any]]) -> Project:
    project = Project(folder)
    project.claims.mkdir(parents=True)
    for name, cards in files.items():
        (project.claims / f"{name}.yaml").write_text(yaml.safe_dump({"claims": cards}))
    return project


def study(*claims: str) -> Study:
    from synthetic_records import demo_study

    return demo_study(claims=claims)


@pytest.fixture(scope="module")
def cards(real_project: Project) -> dict[str, Claim]:
    return load_claims(real_project)


def test_every_card_of_this_project_is_valid_and_has_a_source(cards: dict[str, Claim]) -> None:
    assert len(cards) > 150
    for card in cards.values():
        assert card.statement.endswith(".")
        assert card.kind is ClaimKind.EXPECTATION or card.source_url
        assert card.value is not None or card.value_stated or card.kind is ClaimKind.EXPECTATION
        assert card.kind is ClaimKind.EXPECTATION or card.spread


def test_the_published_key_results_are_as_in_the_table(cards: dict[str, Claim]) -> None:
    """Read from the table of the paper's README by hand, so that a slip of the cards would show."""
    table = {
        "green-122b-2b": {"8K": 3.71, "16K": 4.11, "32K": 4.23, "64K": 4.50, "128K": 5.45},
        "green-35b-4b": {"8K": 1.81, "16K": 1.86, "32K": 1.85, "64K": 1.84},
        "green-nemotron-4b": {"8K": 2.10, "16K": 2.17, "32K": 2.19, "64K": 2.19},
        "green-gptoss-20b": {"8K": 1.24, "16K": 1.28},
    }
    for pair, row in table.items():
        for length, value in row.items():
            card = cards[f"{pair}-{length}"]
            assert (card.value, card.rule, card.unit) == (value, Rule.AT_LEAST, "x")
            assert card.conditions.prompt_tokens == 1024 * int(length[:-1])
            assert card.conditions.keep == 0.2 and card.conditions.hardware == "Apple M2 Ultra"
    assert {card.trials for name, card in cards.items() if name.startswith("green-122b-2b")} == {5}


def test_only_speed_ups_are_judged_and_only_where_a_number_is_given(cards: dict[str, Claim]) -> None:
    for card in cards.values():
        if card.kind is not ClaimKind.EXPECTATION and card.rule is not Rule.SHOWN:
            assert card.metric == "ttft_speedup" and card.value is not None and card.value > 1


def test_the_demo_expects_what_its_controls_must_show(cards: dict[str, Claim]) -> None:
    own = {name: card for name, card in cards.items() if name.startswith("demo-")}
    assert {(c.conditions.pair, c.conditions.treatment, c.rule) for c in own.values()} == {
        ("padded", Treatment.SPECULATIVE, Rule.AT_LEAST),
        ("padded", Treatment.SPECULATIVE, Rule.PREDICTED),
        ("self", Treatment.SPECULATIVE, Rule.SLOWER),
        ("padded", Treatment.PLACEBO, Rule.TIED),
        ("padded", Treatment.SPECULATIVE, Rule.ANSWERS_KEPT),
        ("padded", Treatment.RANDOM, Rule.ANSWERS_LOST),
    }
    assert {name for name, card in own.items() if card.ruler} == {"demo-padded-gain", "demo-self-slower"}


def test_schema_file_and_model_are_in_step(real_project: Project) -> None:
    stored = (real_project.claims / "claim.schema.json").read_text()
    assert stored == schema_text(), f"The model of a card changed; rewrite the schema with: {SCHEMA_COMMAND}"


def test_the_schema_describes_every_key_that_a_card_uses(real_project: Project) -> None:
    import json

    definitions = json.loads(schema_text())["$defs"]
    for path in claim_files(real_project):
        for card in read_yaml(path)["claims"]:
            assert set(card) <= set(definitions["Claim"]["properties"])
            assert set(card["conditions"]) <= set(definitions["Conditions"]["properties"])


def test_contradictions_name_claims_that_exist(real_project: Project, cards: dict[str, Claim]) -> None:
    found = load_contradictions(real_project, cards)
    assert len(found) == 15 and all(item.sentence.endswith(".") for item in found)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"source": ""}, "source"),
        ({"source_url": None}, "address of its source"),
        ({"source_url": "javascript:alert(1)"}, "source_url"),
        ({"value": None}, "needs a value"),
        ({"value": -1.0}, "above 0"),
        ({"rule": "faster"}, "rule"),
        ({"tolerance": 0}, "tolerance"),
        ({"tolerance": 1.5}, "tolerance"),
        ({"id": "../x"}, "id"),
        ({"kind": "expectation"}, "names its pair"),
        ({"ruler": True}, "never a ruler"),
        ({"primary": True, "rule": "shown"}, "corrected together"),
        ({"rule": "answers-kept", "value": 2.0}, "between 0 and 1"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_bad_card_is_refused_and_the_message_names_the_key(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(ReproError, match=words) as error:
        load_claims(project_with(tmp_path, one=[CARD | change]))
    assert "one.yaml" in str(error.value)


def test_a_card_without_a_source_is_refused(tmp_path: Path) -> None:
    card = {key: value for key, value in CARD.items() if key != "source"}
    with pytest.raises(ReproError, match="source"):
        load_claims(project_with(tmp_path, one=[card]))


def test_two_cards_with_one_id_are_refused_even_in_two_files(tmp_path: Path) -> None:
    with pytest.raises(ReproError, match=r"in one.yaml and in two.yaml"):
        load_claims(project_with(tmp_path, one=[CARD], two=[CARD]))


def test_patterns_find_each_card_once_in_the_order_of_the_study() -> None:
    claims = {name: Claim.model_validate_json(_json(CARD | {"id": name})) for name in ("a-1", "a-2", "b-1")}
    assert [card.id for card in study_claims(study("b-*", "a-2", "a-*"), claims)] == ["b-1", "a-2", "a-1"]
    assert study_claims(study(), claims) == []


@pytest.mark.parametrize("pattern", ["a-3", "c-*", "A-*"])
def test_a_pattern_without_a_card_is_an_error_that_shows_near_names(pattern: str) -> None:
    claims = {"a-1": Claim.model_validate_json(_json(CARD | {"id": "a-1"}))}
    with pytest.raises(ReproError, match="no card fits it") as error:
        study_claims(study(pattern), claims)
    assert pattern != "a-3" or "a-1" in error.value.why


def test_a_contradiction_about_an_unknown_claim_is_refused(tmp_path: Path) -> None:
    project = project_with(tmp_path, one=[CARD])
    entry = {"id": "x", "sentence": "They differ.", "claims": ["gone"], "source": "both"}
    (project.claims / "contradictions.yaml").write_text(yaml.safe_dump({"contradictions": [entry]}))
    claims = load_claims(project)
    with pytest.raises(ReproError, match="gone"):
        load_contradictions(project, claims)
    (project.claims / "contradictions.yaml").unlink()
    assert load_contradictions(project, claims) == []


def _json(card: dict[str, Any]) -> str:
    import json

    return json.dumps(card)
