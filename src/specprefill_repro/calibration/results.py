"""What calibration found, as it is published: results.json beside this file, docs/method.md and the report show it.

`specprefill-repro calibrate` recomputes it, in a few minutes, with the same numbers on any machine.
"""

from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from specprefill_repro.calibration.chain import render_page, run_chain
from specprefill_repro.calibration.simulate import Tally, simulate
from specprefill_repro.calibration.worlds import (
    CLAIMED,
    FAULTS,
    GAIN_WORDS,
    NO_GAIN_WORDS,
    NOISES,
    PUBLISHED_WORLDS,
    TOLERANCE,
    TRUE_WORLDS,
    TRUTHS,
    Case,
    controls,
)
from specprefill_repro.files import read_model, write_json, write_text
from specprefill_repro.project import Project
from specprefill_repro.schema import Frozen
from specprefill_repro.verdicts.schema import Verdict, Word

PUBLISHED = Path(__file__).with_name("results.json")
STUDIES = 20_000
BORDER_STUDIES = 4_000
BLOCKS, MOST_BLOCKS = 3, 8
BORDER = (0.90, 0.94, 0.97, 0.99, 1.0, 1.01, 1.03, 1.06, 1.10)
"""True speed-ups as multiples of the smallest one that reproduces the claim."""
BORDER_NOISES = ("quiet", "noisy")


class WorldResult(Frozen):
    """Many simulated studies of one cell in one world."""

    noise: str
    deviation: float
    """Of ln(seconds) of a trial."""
    drift: float
    outliers: float
    truth: str
    true_speedup: float
    studies: int
    coverage: float
    """Share of studies whose 95 % interval held the true speed-up."""
    false_reproduced: float | None
    """Share that called the claim reproduced or exceeded although it does not hold; None where it holds."""
    false_not_reproduced: float | None
    """Share that called it tied, slower or smaller although it holds; None where it does not."""
    inconclusive: float
    median_pairs: float
    """Until the rule stopped."""


class BorderPoint(Frozen):
    """How the words change where the truth lies at the very border of the claim."""

    noise: str
    truth: float
    """True speed-up as a multiple of the smallest that reproduces the claim."""
    reproduced: float
    inconclusive: float
    not_reproduced: float


class CaseResult(Frozen):
    """One study that ran through the whole chain."""

    name: str
    word: Word
    sentence: str


class Calibration(Frozen):
    seed: int
    claimed: float
    tolerance: float
    blocks: int
    most_blocks: int
    worlds: tuple[WorldResult, ...]
    border: tuple[BorderPoint, ...]
    cases: tuple[CaseResult, ...]

    @property
    def lowest_coverage(self) -> float:
        return min(world.coverage for world in self.worlds)

    @property
    def highest_coverage(self) -> float:
        return max(world.coverage for world in self.worlds)

    @property
    def worst_false_reproduced(self) -> float:
        return max(world.false_reproduced or 0.0 for world in self.worlds)

    @property
    def worst_false_not_reproduced(self) -> float:
        return max(world.false_not_reproduced or 0.0 for world in self.worlds)


def published() -> Calibration:
    """The committed results."""
    return read_model(PUBLISHED, Calibration)


def calibrate(seed: int = 1, tell: Callable[[str], None] = lambda line: None) -> Calibration:
    """Recompute everything; `tell` hears of each world."""
    worlds = []
    for noise in NOISES:
        for truth in TRUTHS:
            tell(f"{noise}, {truth}: {STUDIES:,} studies")
            worlds.append(world_result(noise, truth, STUDIES, seed))
    border = tuple(_border(noise, truth, seed) for noise in BORDER_NOISES for truth in BORDER)
    cases = []
    for case in (*TRUE_WORLDS, *PUBLISHED_WORLDS, *FAULTS):
        tell(f"{case.name}: from study to page")
        with TemporaryDirectory() as folder:
            project, verdict = run_case(case, Path(folder))
            render_page(project)
        cases.append(CaseResult(name=case.name, word=verdict.word, sentence=verdict.sentence))
    return Calibration(
        seed=seed,
        claimed=CLAIMED,
        tolerance=TOLERANCE,
        blocks=BLOCKS,
        most_blocks=MOST_BLOCKS,
        worlds=tuple(worlds),
        border=border,
        cases=tuple(cases),
    )


def world_result(noise: str, truth: str, studies: int, seed: int) -> WorldResult:
    """Simulate one world; the same seed gives the same studies."""
    physics, speedup = NOISES[noise], TRUTHS[truth]
    tally = _simulate(noise, speedup, studies, seed + 1000 * list(NOISES).index(noise) + list(TRUTHS).index(truth))
    holds = speedup >= CLAIMED
    return WorldResult(
        noise=noise,
        deviation=physics.deviation,
        drift=physics.drift,
        outliers=physics.outliers,
        truth=truth,
        true_speedup=speedup,
        studies=studies,
        coverage=tally.covered / studies,
        false_reproduced=None if holds else tally.share(*GAIN_WORDS),
        false_not_reproduced=tally.share(*NO_GAIN_WORDS) if holds else None,
        inconclusive=tally.share(Word.INCONCLUSIVE),
        median_pairs=float(median(tally.pairs)),
    )


def _border(noise: str, truth: float, seed: int) -> BorderPoint:
    tally = _simulate(noise, truth * CLAIMED * (1 - TOLERANCE), BORDER_STUDIES, seed + round(1e6 * truth))
    return BorderPoint(
        noise=noise,
        truth=truth,
        reproduced=tally.share(*GAIN_WORDS),
        inconclusive=tally.share(Word.INCONCLUSIVE),
        not_reproduced=tally.share(*NO_GAIN_WORDS),
    )


def _simulate(noise: str, truth: float, studies: int, seed: int) -> Tally:
    return simulate(
        NOISES[noise],
        truth,
        CLAIMED,
        TOLERANCE,
        blocks=BLOCKS,
        most_blocks=MOST_BLOCKS,
        studies=studies,
        seed=seed,
    )


def run_case(case: Case, folder: Path) -> tuple[Project, Verdict]:
    """Run one case through the chain, and return its project and its verdict on the claim."""
    project, verdicts = run_chain(folder, case.study, case.world, [*controls(), case.claim])
    return project, next(verdict for verdict in verdicts.verdicts if verdict.claim.id == case.claim.id)


def method_section(found: Calibration) -> str:
    """The tables of docs/method.md."""
    lines = [
        f"A claim of {found.claimed:g} at least, tolerance {found.tolerance:.0%}, {2 * found.blocks} to "
        f"{2 * found.most_blocks} pairs, {found.worlds[0].studies:,} simulated studies a line, seed {found.seed}.",
        "Noise is the standard deviation of ln(seconds) of a trial.",
        "",
        "| machine | noise | truth | interval holds it | false *reproduced* | false *not reproduced* | *inconclusive* |"
        " median pairs |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for world in found.worlds:
        errors = f"{_share(world.false_reproduced)} | {_share(world.false_not_reproduced)}"
        lines.append(
            f"| {world.noise} | {world.deviation:.1%} | {world.truth} ({world.true_speedup:g}) | {world.coverage:.1%} "
            f"| {errors} | {world.inconclusive:.1%} | {world.median_pairs:g} |"
        )
    lines += [
        "",
        "At the border itself no rule can be right: the word changes within a few percent of it, and in between the "
        "answer is *inconclusive*.",
        "",
        "| machine | true speed-up / border | *reproduced* | *inconclusive* | *not reproduced* or *smaller* |",
        "|---|---|---|---|---|",
    ]
    for point in found.border:
        lines.append(
            f"| {point.noise} | {point.truth:.2f} | {point.reproduced:.1%} | {point.inconclusive:.1%} | "
            f"{point.not_reproduced:.1%} |"
        )
    lines += [
        "",
        "Whole studies, from study file to page:",
        "",
        "| scripted machine | verdict on the claim |",
        "|---|---|",
    ]
    lines += [f"| {case.name} | **{case.word.value}**: {case.sentence} |" for case in found.cases]
    return "\n".join(lines) + "\n"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2%}"


BEGIN, END = "<!-- calibration: begin -->\n", "<!-- calibration: end -->"


def with_section(text: str, found: Calibration) -> str:
    """docs/method.md with its tables replaced.

    Raises:
        ValueError: the page has no place for them.
    """
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not rest or END not in rest:
        raise ValueError("docs/method.md has no place for the calibration")
    return f"{before}{BEGIN}{method_section(found)}{END}{after}"


def write_results(found: Calibration, method: Path) -> None:
    """Publish: the data file, and the tables in docs/method.md."""
    write_json(PUBLISHED, found)
    write_text(method, with_section(method.read_text(), found))
