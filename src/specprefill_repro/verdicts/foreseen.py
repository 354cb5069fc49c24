"""Before a study runs: which of its claims will get a verdict on this machine, and which can't, and why."""

from collections.abc import Sequence
from dataclasses import dataclass

from specprefill_repro.estimates.build import build_estimates
from specprefill_repro.study.schema import Study
from specprefill_repro.verdicts.build import best_matching, expectation_cells
from specprefill_repro.verdicts.matching import NEEDED, Facts, closest_cell, is_full_match, match_conditions
from specprefill_repro.verdicts.schema import Claim, ClaimKind, ConditionMatch, Rule


@dataclass(frozen=True)
class Foreseen:
    """What will become of one claim if every trial goes well."""

    claim: Claim
    judged: bool
    failing: tuple[ConditionMatch, ...] = ()
    """Conditions that are another here, or that the source leaves open and a verdict needs."""
    reason: str = ""
    """Why there is no verdict, where it is not for a condition."""


def foresee(study: Study, claims: Sequence[Claim], facts: Facts) -> list[Foreseen]:
    """By the same matching as the verdicts themselves, on the cells that the study will measure.

    Args:
        facts: of this machine, and of the models as far as they are known.
    """
    # Cells that nothing was measured in yet; nothing is ever read of them but what the study says.
    estimates = build_estimates(study, [], [], {}, _no_distribution)
    found = []
    for claim in claims:
        if claim.kind is ClaimKind.EXPECTATION:
            cells = expectation_cells(claim, study, estimates)
            reason = "" if cells else "the study has no cell that it is about"
            found.append(Foreseen(claim, bool(cells) and claim.rule is not Rule.SHOWN, reason=reason))
            continue
        if claim.rule is Rule.SHOWN:
            found.append(Foreseen(claim, False, reason="shown beside the results, never judged"))
            continue
        cell = closest_cell(claim.conditions, best_matching(claim, study, estimates.cells, facts))
        if cell is None:
            found.append(Foreseen(claim, False, reason="the study has no speculative cell"))
            continue
        rows = match_conditions(claim, cell, study, facts)
        failing = tuple(row for row in rows if row.matches is False or _is_needed(row))
        found.append(Foreseen(claim, is_full_match(rows), failing))
    return found


def _is_needed(row: ConditionMatch) -> bool:
    return row.matches is None and row.condition in NEEDED


def _no_distribution(sha256: str) -> object:
    raise AssertionError("nothing was measured")
