"""The page: self-contained, the same bytes for the same data, safe against what a study or a model may say."""

import hashlib
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from report_inputs import WORLDS, expectation, published, report_data, verdict
from specprefill_repro.errors import ReproError
from specprefill_repro.report.build import render_report, visible
from specprefill_repro.report.data import LISTED_TRIALS, read_embedded
from specprefill_repro.report.rows import COLUMNS, evidence_rows, request_rows, selection_words, verdict_row
from specprefill_repro.study.schema import Comparison, Selection, Treatment
from specprefill_repro.trials.schema import TrialRecord
from specprefill_repro.trials.table import Trials
from specprefill_repro.verdicts.build import build_verdicts
from specprefill_repro.verdicts.matching import Facts
from specprefill_repro.verdicts.schema import ClaimKind, Rule, Word
from synthetic_records import Fault, World


class Page(HTMLParser):
    """What the tests ask about a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.headings: list[int] = []
        self.tags: list[str] = []
        self.tables: list[set[str]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        values = dict(attrs)
        assert not [name for name in values if name.startswith("on")], "an event handler"
        if "id" in values:
            self.ids.append(values["id"] or "")
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag == "a":
            self.links.append(values["href"] or "")
        elif tag == "link":
            self.loads.append(values["href"] or "")
        if "src" in values or "xlink:href" in values:
            self.loads.append(values.get("src") or values.get("xlink:href") or "")
        if tag == "table":
            self.tables.append(set())
        if self.tables and tag == "caption":
            self.tables[-1].add(tag)
        if self.tables and tag == "th":
            assert values.get("scope") in ("row", "col", "rowgroup"), "a heading cell without scope"
            self.tables[-1].add("scope")

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {situation: render_report(report_data(situation)) for situation in WORLDS}


@pytest.mark.parametrize("situation", WORLDS)
def test_every_situation_renders_in_order_and_loads_nothing(pages: dict[str, str], situation: str) -> None:
    page = Page(pages[situation])
    assert page.loads == ["data:,"]
    assert "url(" not in pages[situation] and "@import" not in pages[situation]
    assert page.tags.count("script") == 1
    assert page.headings[0] == 1 and page.headings.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(page.headings, page.headings[1:], strict=False))
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert all(link.startswith(("#", "https://")) for link in page.links)
    assert all(parts == {"caption", "scope"} for parts in page.tables)
    assert '<html lang="en">' in pages[situation]


def test_same_data_give_the_same_bytes_in_another_process(pages: dict[str, str], tmp_path: Path) -> None:
    code = (
        "import sys, hashlib; sys.path[:0] = sys.argv[1:]\n"
        "from report_inputs import report_data\n"
        "from specprefill_repro.report.build import render_report\n"
        "print(hashlib.sha256(render_report(report_data('gain')).encode()).hexdigest())"
    )
    tests = str(Path(__file__).parent.parent)
    done = subprocess.run([sys.executable, "-c", code, tests], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == hashlib.sha256(pages["gain"].encode()).hexdigest()


def test_the_report_imports_neither_mlx_nor_mlx_lm() -> None:
    code = "import sys, specprefill_repro.report.build; print([m for m in ('mlx', 'mlx_lm') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_four_hundred_trials_and_forty_claims_fit_into_500_kb() -> None:
    data = report_data("gain", blocks=9, world=World(noise=0.02))
    assert len(data.records) == 396
    cell = data.estimates.cells[0]
    conditions = data.verdicts.verdicts[-1].conditions * 2
    claims = tuple(
        verdict(
            published(1 + i / 10, f"{i}K (nominal)"),
            cell,
            Word.NOT_COMPARABLE,
            "Hardware differs.",
            conditions=conditions,
        )
        for i in range(40)
    )
    verdicts = data.verdicts.model_copy(update={"verdicts": data.verdicts.verdicts + claims})
    page = render_report(data.model_copy(update={"verdicts": verdicts}))
    assert len(page.encode()) < 500_000


def test_many_trials_are_shown_cell_by_cell() -> None:
    data = report_data("gain", blocks=26)
    assert len(data.records) > LISTED_TRIALS
    beside = {"trials.parquet": "0" * 64}
    large = data.model_copy(update={"records": (), "receipts": (), "beside": beside})
    page = render_report(large, Trials.of_records(data.records))
    assert len(page.encode()) < 200_000
    text = Page(page).text
    assert "1,144 trials" in text and f"trials.parquet, SHA-256 {'0' * 64}" in text
    carried = read_embedded(page)
    assert carried.beside == beside and carried.estimates.cells[0].speedup == data.estimates.cells[0].speedup
    # What is summed up says the same as on the page that lists them all.
    rows = [
        re.findall(r"<tr>.*?</tr>", one[one.index("What ran, arm by arm") :]) for one in (page, render_report(data))
    ]
    assert len(rows[0]) > 10 and rows[0][:13] == rows[1][:13]


def test_the_page_carries_its_data(pages: dict[str, str]) -> None:
    data = report_data("gain")
    assert read_embedded(pages["gain"]) == data
    assert render_report(read_embedded(pages["gain"])) == pages["gain"]


@pytest.mark.parametrize("place", range(10))
def test_an_edit_of_the_data_block_is_found(pages: dict[str, str], place: int) -> None:
    page = pages["gain"]
    start = page.index('id="records">') + len('id="records">')
    at = start + 20 + place * ((page.index("</script>", start) - start - 40) // 10)
    other = "A" if page[at] != "A" else "B"
    with pytest.raises(ReproError):
        read_embedded(page[:at] + other + page[at + 1 :])


def test_every_number_of_a_pair_leads_to_its_record(pages: dict[str, str]) -> None:
    data, page = report_data("gain"), Page(pages["gain"])
    for cell in data.estimates.cells:
        for pair in cell.pairs:
            for record in (pair.dense_record, pair.treated_record):
                assert f"r-{record[:12]}" in page.ids
                assert f"#r-{record[:12]}" in page.links


def test_every_verdict_has_its_word_and_a_shape() -> None:
    cell = report_data("gain").estimates.cells[0]
    card = published(3.71, "8K (nominal)")
    page = render_report(report_data("gain", verdicts=tuple(verdict(card, cell, word, "A reason.") for word in Word)))
    shapes = set()
    for word in Word:
        found = re.search(rf'<i aria-hidden="true">(\S)</i> {re.escape(word.value)}</span>', page)
        assert found, word
        shapes.add(found[1])
    assert len(shapes) == len(Word)


def test_many_published_claims_of_a_broken_ruler_are_counted_not_listed() -> None:
    cell = report_data("gain").estimates.cells[0]
    claims = tuple(verdict(published(2.0, f"{i}K"), cell, Word.INVALID, "A control failed.") for i in range(9))
    page = render_report(report_data("gain", verdicts=claims))
    first = page[page.index('id="verdicts"') : page.index('<nav class="contents"')]
    assert "invalid</span>: 9 published figures" in first
    assert "A published speed-up." not in first


def test_every_rule_says_what_must_be() -> None:
    cell = report_data("gain").estimates.cells[0]
    cards = [
        expectation(
            f"card-{rule}", rule, f"Statement {rule}.", "padded", Treatment.SPECULATIVE, value=0.5, primary=False
        )
        for rule in Rule
    ]
    page = render_report(report_data("gain", verdicts=tuple(verdict(c, cell, Word.REPRODUCED, "So.") for c in cards)))
    assert all(f"Statement {rule}." in page for rule in Rule)


HOSTILE = (
    "<script>alert(1)</script></script><img src=x onerror=alert(1)><!-- <script>\"'><svg onload=alert(1)>"
    "{{ 7 * 7 }}{% raw %}]]>&amp;&lt;\u202egnihton\u202c and \u2066more nul\x00 and bell\x07",
    "w" * 190,
)


@pytest.mark.parametrize("text", HOSTILE, ids=["markup", "long word"])
def test_hostile_text_stays_text(pages: dict[str, str], text: str) -> None:
    data = report_data("gain", title=text, question=text, answer_text=text)
    card = published(
        3.71, "8K", statement=text, source=text, spread=text, source_url=f"https://x/{text.split()[0]}", note=text
    )
    cell = data.estimates.cells[0].model_copy(update={"problems": (text,)})
    estimates = data.estimates.model_copy(update={"cells": (cell, *data.estimates.cells[1:]), "voids": (text,)})
    verdicts = data.verdicts.model_copy(update={"verdicts": (verdict(card, cell, Word.TIED, text, attribution=text),)})
    changes = {"estimates": estimates, "verdicts": verdicts, "facts": {text: text}}
    html = render_report(data.model_copy(update=changes))
    page = Page(html)
    assert page.tags.count("script") == 1 and "img" not in page.tags
    assert page.tags.count("svg") == Page(pages["gain"]).tags.count("svg")
    assert not [link for link in page.links if link.startswith("javascript")]
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00\x07]", html)
    assert visible(text) in page.text
    assert read_embedded(html).study.title == text


def test_hidden_characters_are_shown_by_code() -> None:
    assert visible("a\u202eb") == "a⟨U+202E⟩b"
    assert visible("Grüße, 漢字, naïve\n") == "Grüße, 漢字, naïve\n"


def test_synthetic_weights_are_named_on_the_first_screen() -> None:
    page = render_report(report_data("gain", synthetic=True))
    assert page.index("Synthetic weights.") < page.index('id="answer"')


def test_a_fallback_shows_in_the_evidence() -> None:
    world = World(faults=(Fault("fallback", "padded-1024-speculative-keep0.2"),))
    text = Page(render_report(report_data("gain", world=world))).text
    assert "asked for sparse, ran fallback: scoring raised AttributeError" in text


@pytest.mark.parametrize(
    ("load", "others", "share", "warned"),
    [(0.5, 5.0, 1.0, False), (8.0, 5.0, 1.0, True), (0.5, 90.0, 1.0, True), (8.0, 90.0, 0.02, False)],
)
def test_a_busy_machine_is_named_on_the_first_screen(load: float, others: float, share: float, warned: bool) -> None:
    """`share` of the trials ran while other processes made this load."""
    data = report_data("gain")
    records = []
    for number, record in enumerate(data.records):
        own = number < share * len(data.records)
        state = record.before.model_copy(
            update={"load_1min": load if own else 0.1, "other_cpu_percent": others if own else 1.0}
        )
        environment = record.environment | {"cores": "2"}
        records.append(record.model_copy(update={"before": state, "after": state, "environment": environment}))
    engines = {
        name: found.model_copy(update={"environment": found.environment | {"cores": ("2",)}})
        for name, found in data.estimates.engines.items()
    }
    estimates = data.estimates.model_copy(update={"engines": engines})
    page = render_report(data.model_copy(update={"records": tuple(records), "estimates": estimates}))
    assert ("The machine was busy." in page.partition('id="answer"')[0]) == warned
    assert not warned or f"of {len(records)} trials other processes" in page


def test_a_measurement_beyond_what_it_must_agree_with_is_not_green() -> None:
    cell = report_data("gain").estimates.cells[0]
    card = expectation("parts", Rule.PREDICTED, "As predicted.", "padded", Treatment.SPECULATIVE)
    assert verdict_row(verdict(card, cell, Word.EXCEEDED, "It lies above.")).colour != "good"


def test_how_many_more_pairs_would_settle_a_verdict_is_said_once() -> None:
    """With verdicts as the stage makes them, whose sentence says it."""
    data = report_data("inconclusive")
    claims = [each.claim for each in data.verdicts.verdicts if each.claim.kind is ClaimKind.EXPECTATION]
    judged = build_verdicts(data.study, data.estimates, claims, Facts())
    open_ones = [each for each in judged.verdicts if each.more_pairs]
    assert open_ones
    text = render_report(data.model_copy(update={"verdicts": judged}))
    table = text.partition('id="verdicts"')[2].partition("</table>")[0]
    assert table.count("more pairs would settle it") == len(open_ones)


@pytest.mark.parametrize(("missing", "fine"), [(0, True), (1, False)])
def test_a_rule_that_kept_every_token_ran_as_asked_and_one_that_did_not_fell_back(missing: int, fine: bool) -> None:
    everything = Comparison(pair="padded", treatment=Treatment.SPECULATIVE, lengths=(512,), keep=(1.0,), blocks=3)
    data = report_data("gain", comparisons=(everything,), verdicts=())

    def ran_dense(record: TrialRecord) -> TrialRecord:
        evidence = record.evidence.model_copy(update={"tokens_kept": record.prompt.tokens - missing})
        return record.model_copy(update={"outcome": "dense", "evidence": evidence})

    trials = Trials.of_records([ran_dense(record) if record.treated else record for record in data.records])
    row = evidence_rows(data, trials.frame(COLUMNS))[0]
    assert row.arm == "speculative" and row.fine == fine
    assert ("asked for sparse, ran dense" in row.problem) != fine


def test_what_was_requested_is_told_in_words() -> None:
    data = report_data("gain")
    asked = [row.asked for row in request_rows(data, Trials.of_records(data.records).frame(COLUMNS))]
    assert asked and not any(word in text for text in asked for word in ("None", "True", "False"))
    assert all("default rule, look-ahead of 8, from the last prompt token" in text for text in asked)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"preset": "ours"}, "rule ours"),
        ({"prompt_query": False}, "look-ahead of 8, not counting the last prompt token"),
        ({"stop_at_end": False}, "also past an end token"),
        ({"temperature": 0.6, "top_p": 0.9}, "drawn at temperature 0.6, top-p 0.9"),
        ({"tail_in_budget": True}, "tail 64, charged to the budget"),
        ({"windows": "kept", "window_tail": "always"}, "windows count kept tokens, last window read of every prompt"),
    ],
)
def test_every_parameter_of_a_rule_is_told(changes: dict[str, object], text: str) -> None:
    told = selection_words(Selection.model_construct(**(Selection().model_dump() | changes)))
    assert text in ", ".join(told)


def test_the_first_screen_leads_to_the_words_of_the_page() -> None:
    page = render_report(report_data("gain"))
    first = page[: page.index("<main>")]
    assert '<a href="#words">Words are explained here</a>' in first and '<section id="words">' in page
    glossary = page[page.index('<section id="words">') :].split("</section>")[0].lower()
    assert all(word in glossary for word in ("cell", "block", "gate", "pair", "ruler", "noise", "margin", "placebo"))


def test_a_word_of_a_check_is_not_broken_in_two_in_print() -> None:
    page = render_report(report_data("gain"))
    style = page[page.index("<style>") : page.index("</style>")]
    rules = dict(re.findall(r"(?m)^\s*([^\n{}@]+?) \{([^{}]*)\}", style[style.index("@media print {\n@page") :]))
    assert "overflow-wrap: break-word" in rules[".long"] and "anywhere" in rules[".long code"]
    assert re.search(r"\.v \{[^}]*overflow-wrap: break-word", style)
