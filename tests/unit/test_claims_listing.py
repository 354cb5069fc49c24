"""Claim cards on the command line: a table for people, lines with tabs for programs."""

import io

import pytest
from rich.console import Console

from specprefill_repro.errors import ReproError
from specprefill_repro.project import Project
from specprefill_repro.verdicts.claims import choose_claims, find_claim, load_claims, load_contradictions
from specprefill_repro.verdicts.listing import print_claim, print_claims, print_verdicts
from specprefill_repro.verdicts.schema import Claim, ClaimKind, Verdict, Word


@pytest.fixture(scope="module")
def cards(real_project: Project) -> dict[str, Claim]:
    return load_claims(real_project)


def test_piped_each_card_is_one_whole_line_however_narrow_the_screen(cards: dict[str, Claim]) -> None:
    text = io.StringIO()
    print_claims(cards.values(), Console(file=text, width=40))
    lines = text.getvalue().splitlines()
    assert [line.split("\t")[0] for line in lines] == ["id", *cards]
    assert {line.count("\t") for line in lines} == {5}


def test_on_a_terminal_it_is_a_table(cards: dict[str, Claim]) -> None:
    text = io.StringIO()
    print_claims(cards.values(), Console(file=text, width=160, force_terminal=True))
    assert f"{len(cards)} claim cards" in text.getvalue() and "━" in text.getvalue()


def test_ids_can_be_copied_from_a_terminal_of_80_columns(cards: dict[str, Claim]) -> None:
    text = io.StringIO()
    print_claims(cards.values(), Console(file=text, width=80, force_terminal=True, no_color=True))
    words = set(text.getvalue().split())
    assert cards.keys() <= words
    assert "--kind" in text.getvalue() and "\t" not in text.getvalue()


def test_the_kinds_of_cards_are_listed_apart_and_make_up_all(cards: dict[str, Claim]) -> None:
    by_kind = [choose_claims(cards, kind=kind) for kind in ClaimKind]
    assert all(by_kind) and [{card.kind for card in some} for some in by_kind] == [{kind} for kind in ClaimKind]
    assert sorted(card.id for some in by_kind for card in some) == sorted(cards)
    assert [card.id for card in choose_claims(cards, "demo-*", "expectation")] == [
        name for name, card in cards.items() if name.startswith("demo-") and card.kind is ClaimKind.EXPECTATION
    ]


def test_an_unknown_kind_of_card_names_the_known_ones(cards: dict[str, Claim]) -> None:
    assert choose_claims(cards, kind="failed-reproduction") == choose_claims(cards, kind="failed_reproduction")
    with pytest.raises(ReproError, match="author_claim, independent_measurement, failed_reproduction, expectation"):
        choose_claims(cards, kind="rumour")


@pytest.mark.parametrize("terminal", [False, True])
def test_every_card_can_be_shown_with_its_source(
    cards: dict[str, Claim], real_project: Project, terminal: bool
) -> None:
    found = load_contradictions(real_project, cards)
    for card in cards.values():
        text = io.StringIO()
        print_claim(card, found, Console(file=text, width=10_000, force_terminal=terminal, no_color=True))
        assert card.source in text.getvalue() and card.location in text.getvalue()
        assert all(item.sentence in text.getvalue() for item in found if card.id in item.claims)


def test_markup_in_a_card_is_text(cards: dict[str, Claim]) -> None:
    card = next(iter(cards.values())).model_copy(update={"statement": "[bold]faster[/bold]"})
    text = io.StringIO()
    print_claim(card, [], Console(file=text, width=200, force_terminal=True))
    assert "[bold]faster[/bold]" in text.getvalue()


def test_a_misspelt_id_names_its_neighbours(cards: dict[str, Claim]) -> None:
    with pytest.raises(ReproError, match="near it: demo-padded-gain"):
        find_claim("demo-paded-gain", cards)


def test_verdicts_are_told_in_a_line_each_and_the_unjudged_counted(cards: dict[str, Claim]) -> None:
    own = next(card for card in cards.values() if card.kind is ClaimKind.EXPECTATION)
    published = [card for card in cards.values() if card.kind is not ClaimKind.EXPECTATION][:3]
    words = (Word.REPRODUCED, Word.REPRODUCED, Word.NOT_COMPARABLE, Word.NOT_COMPARABLE, Word.NOT_RUN, Word.NOT_RUN)
    rest = {"sentence": "Why [bold].", "cells": (), "measured": None, "interval95": None, "expected": None, "pairs": 0}
    verdicts = [
        Verdict(claim=card, word=word, **rest)
        for card, word in zip((own, *published, own, published[0]), words, strict=True)
    ]
    out = io.StringIO()
    print_verdicts(verdicts, Console(file=out, width=40))
    assert out.getvalue().splitlines() == [
        f"as expected: {own.id}. Why [bold].",
        f"reproduced: {published[0].id}. Why [bold].",
        "not comparable: 2 published figures",
        "not run: 1 expectation of this study",
        "not run: 1 published figure",
    ]
