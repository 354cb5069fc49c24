"""Claim cards for people: a table of all, or one in full. One card a line, tabs between, when nobody looks on."""

from collections import Counter
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from specprefill_repro.verdicts.rules import word_for
from specprefill_repro.verdicts.schema import Claim, ClaimKind, Contradiction, Verdict, Word
from specprefill_repro.wording import counted

COLUMNS = ("id", "kind", "metric", "figure", "rule", "where it was found")


def print_claims(claims: Iterable[Claim], console: Console) -> None:
    """Print one line a card; a table on a terminal."""
    rows = [_row(claim) for claim in claims]
    if not console.is_terminal:
        for row in (COLUMNS, *rows):
            print("\t".join(row), file=console.file)
        return
    table = Table(
        title=f"{len(rows)} claim cards; fewer with a pattern, such as 'green-*', or --kind", header_style="bold"
    )
    # An id is there to be copied, so that it stays whole; the rest is folded where there is little room.
    table.add_column(COLUMNS[0], no_wrap=True, min_width=max((len(row[0]) for row in rows), default=0))
    for column in COLUMNS[1:]:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(value) for value in row))
    console.print(table)


def print_verdicts(verdicts: Iterable[Verdict], console: Console) -> None:
    """Print one line a verdict, and how many claims got none."""
    unjudged: Counter[tuple[Word, bool]] = Counter()
    for verdict in verdicts:
        if verdict.word in (Word.NOT_COMPARABLE, Word.NOT_RUN):
            unjudged[verdict.word, verdict.claim.kind is ClaimKind.EXPECTATION] += 1
            continue
        console.print(
            Text(f"{word_for(verdict.claim, verdict.word)}: {verdict.claim.id}. {verdict.sentence}"), soft_wrap=True
        )
    for (word, own), count in unjudged.items():
        what = "expectation of this study" if own else "published figure"
        console.print(Text(f"{word}: {counted(count, what)}"), soft_wrap=True)


def print_claim(claim: Claim, contradictions: Iterable[Contradiction], console: Console) -> None:
    """Print one card in full, with what contradicts it."""
    pairs = list(_lines(claim, contradictions))
    if not console.is_terminal:
        for name, value in pairs:
            print(f"{name}\t{value}", file=console.file)
        return
    table = Table(show_header=False, title=Text(claim.id))
    for name, value in pairs:
        table.add_row(Text(name, style="bold"), Text(value))
    console.print(table)


def figure(claim: Claim) -> str:
    """The claimed value as its source words it."""
    stated = f"{claim.value:g} {claim.unit}" if claim.value is not None else claim.value_stated or "in words"
    return stated.replace("\t", " ")


def _row(claim: Claim) -> tuple[str, ...]:
    return claim.id, claim.kind.value, claim.metric, figure(claim), claim.rule.value, claim.source


def _lines(claim: Claim, contradictions: Iterable[Contradiction]) -> Iterator[tuple[str, str]]:
    yield "statement", claim.statement
    yield "kind", claim.kind.value
    yield "figure", f"{claim.metric}: {figure(claim)}"
    yield (
        "trials",
        f"{claim.trials if claim.trials is not None else 'not stated'}, spread {claim.spread or 'not stated'}",
    )
    yield "rule", f"{claim.rule.value}, tolerance {claim.tolerance:.0%}, tie margin {claim.tie_margin:.0%}"
    yield "source", claim.source
    yield "address", claim.source_url or "this package"
    yield "place", f"{claim.location} ({claim.access})"
    for name, value in claim.conditions.model_dump(mode="json").items():
        if value is not None:
            yield name.replace("_", " "), f"{value}"
    missing = [n for n in ("hardware", "target", "draft", "keep", "prompt_tokens") if not getattr(claim.conditions, n)]
    if missing:
        yield "not stated", ", ".join(missing).replace("_", " ")
    if claim.note:
        yield "note", claim.note
    for item in contradictions:
        if claim.id in item.claims:
            yield "contradicted" if not item.inference else "in doubt", item.sentence
