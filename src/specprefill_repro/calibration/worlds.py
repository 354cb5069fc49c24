"""The scripted machines, the cards that they are held against, and what each must come out as."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specprefill_repro.calibration.chain import usual_study
from specprefill_repro.engines.scripted import MACHINE, NAME, Cost, Fault, Noise, World
from specprefill_repro.study.schema import Study, Treatment
from specprefill_repro.verdicts.schema import Claim, ClaimKind, Conditions, Rule, Word

CLAIMED = 1.8
TOLERANCE = 0.15
TREATED = "pair-1024-speculative-keep0.2"
"""The cell that the claim is about."""

COSTS = {"large": Cost(0.01, 2e-6, 0.02), "small": Cost(0.0012, 2e-7, 0.003)}

TRUTHS = {"as claimed": CLAIMED, "half the claimed gain": 1 + (CLAIMED - 1) / 2, "no effect": 1.0}
"""True speed-ups that lie clearly on one side."""

NOISES = {
    "very quiet": Noise(0.003),
    "quiet": Noise(0.01),
    "ordinary": Noise(0.02),
    "noisy": Noise(0.03),
    "very noisy": Noise(0.05),
    "drifting": Noise(0.01, drift=0.001),
    "with outliers": Noise(0.01, outliers=0.03),
}

GAIN_WORDS = (Word.REPRODUCED, Word.EXCEEDED)
NO_GAIN_WORDS = (Word.TIED, Word.SLOWER, Word.NOT_REPRODUCED, Word.SMALLER)


def claim(value: float = CLAIMED, length: int = 1024, name: str = "scripted-claim") -> Claim:
    """A published figure whose every condition the scripted machine meets."""
    return _card(
        name,
        ClaimKind.AUTHOR_CLAIM,
        Rule.AT_LEAST,
        Conditions(
            hardware=MACHINE["chip"],
            memory_gib=float(MACHINE["memory_gib"]),
            target="large",
            draft="small",
            target_quantization="none",
            draft_quantization="none",
            keep=0.2,
            prompt_tokens=length,
            engine=NAME,
            engine_version=MACHINE[NAME],
        ),
        value=value,
    )


def controls() -> list[Claim]:
    """The draft as its own draft must be slower, which is the ruler; the placebo must tie."""
    return [
        _card(
            "scripted-self-slower",
            ClaimKind.EXPECTATION,
            Rule.SLOWER,
            Conditions(pair="self", treatment=Treatment.SPECULATIVE),
        ),
        _card(
            "scripted-placebo-tied",
            ClaimKind.EXPECTATION,
            Rule.TIED,
            Conditions(pair="pair", treatment=Treatment.PLACEBO),
        ),
    ]


def _card(name: str, kind: ClaimKind, rule: Rule, conditions: Conditions, value: float | None = None) -> Claim:
    own = kind is ClaimKind.EXPECTATION
    return Claim(
        id=name,
        kind=kind,
        statement="A scripted machine does what its script says.",
        source="calibration",
        source_url=None if own else "https://example.org/scripted",
        location="script",
        access="own",
        metric="ttft_speedup",
        value=value,
        unit="x",
        trials=None,
        spread=None,
        tolerance=TOLERANCE,
        ruler=rule is Rule.SLOWER,
        rule=rule,
        conditions=conditions,
    )


USUAL = usual_study()
CLAIM = claim()


@dataclass(frozen=True)
class Case:
    """One study on one machine, and what its verdict on the claim must be and say."""

    name: str
    world: World
    words: tuple[Word, ...]
    """Any of these is right."""
    says: str
    """What the verdict's sentence or attribution must hold; empty: anything."""
    study: Study = USUAL
    claim: Claim = CLAIM


def _gain(noise: Noise, ratio: float | None, costs: Mapping[str, Cost] = COSTS, **more: Any) -> World:
    """A machine on which every speculative trial is `ratio` times as fast as dense; None: as fast as the costs say."""
    return World(costs, noise, {"pair-*-speculative-*": ratio} if ratio else {}, **more)


def _faulty(fault: Fault, words: tuple[Word, ...], says: str, where: str = TREATED) -> Case:
    return Case(fault.value, _gain(Noise(0.01), CLAIMED, faults={where: fault}), words, says)


FAULTS = (
    _faulty(Fault.CACHE_HIT, (Word.INVALID,), "tokens were in the KV cache"),
    _faulty(Fault.SILENT_FALLBACK, (Word.INVALID,), "SpecPrefill did not run"),
    _faulty(Fault.WRONG_POSITIONS, (Word.INVALID,), "saw other positions"),
    _faulty(Fault.WEAK_BASELINE, (Word.INVALID,), "weak baseline"),
    _faulty(Fault.THROTTLING, (Word.REPRODUCED, Word.INCONCLUSIVE), "dense trials became", where="*"),
    _faulty(Fault.SUSPEND, (Word.INVALID,), "the machine slept"),
    _faulty(Fault.SWAP, (Word.INVALID,), "swapped out"),
    _faulty(Fault.HEAT, (Word.INVALID,), "thermal pressure"),
    _faulty(Fault.OUTLIER, (Word.REPRODUCED, Word.INCONCLUSIVE), "outlier"),
)
"""Every fault but the crash, which leaves no verdict: the run ends and says why, and no block is half kept."""

TRUE_WORLDS = (
    Case("gain as claimed", _gain(Noise(0.01), CLAIMED), (Word.REPRODUCED,), ""),
    Case("gain of the costs alone", _gain(Noise(0.01), None), GAIN_WORDS, ""),
    Case("half the gain", _gain(Noise(0.01), TRUTHS["half the claimed gain"]), (Word.SMALLER,), ""),
    Case("no gain", _gain(Noise(0.005), 1.0), (Word.TIED,), "lies within the tie margin"),
    Case("a loss", _gain(Noise(0.01), 0.7), (Word.SLOWER,), "slower than dense"),
    Case("too noisy", _gain(Noise(0.08), 1.5), (Word.INCONCLUSIVE,), "more pairs"),
)


GEMMA_LENGTHS = (5060, 8192, 8954)
# Prefill of 105 tokens/s at every length, dense and sparse alike, so that nothing is won anywhere.
_GEMMA = {"large": Cost(1 / 105, 0.0, 0.001), "small": Cost(1e-4, 0.0, 0.001)}

PUBLISHED_WORLDS = (
    *(
        Case(
            name,
            _gain(Noise(0.01), 1.0, _GEMMA, dense_factor={weak: 105 / 55.27}),
            (Word.INVALID,),
            "weak baseline",
            usual_study(lengths=GEMMA_LENGTHS),
            claim(value=1.82, length=8954),
        )
        for name, weak in {
            "Gemma 4 31B 8-bit: dense 55 tokens/s in one cell, 105 elsewhere": "pair-8954-speculative-*",
            "the same, dense 55 tokens/s also in the placebo of that length": "pair-8954-*",
        }.items()
    ),
    Case(
        "Gemma 4 31B 4-bit: 102.3 tokens/s dense, 101.1 with SpecPrefill",
        _gain(Noise(0.005), 101.14 / 102.33, _GEMMA),
        (Word.TIED,),
        "lies within the tie margin",
        usual_study(lengths=GEMMA_LENGTHS[:1]),
        claim(value=1.82, length=5060),
    ),
)
"""Made from the raw numbers of oMLX issues that report on Gemma 4 (config/claims)."""
