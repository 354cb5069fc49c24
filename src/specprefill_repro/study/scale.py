"""A study at tiny scale: the same comparisons of small random models of the same architectures, on short prompts.

It shows that everything of a study but its size works on a machine that cannot hold its models. Its numbers say nothing
about the study's question.
"""

from collections.abc import Callable

from specprefill_repro.errors import ReproError
from specprefill_repro.study.engines import EngineSettings, MlxLmEngine
from specprefill_repro.study.schema import Pair, Study

TINY = "tiny"
SUFFIX = f".{TINY}"
"""A study at tiny scale is called NAME.tiny, so that its results and its report lie apart."""
SHORTEST = 256
"""Tokens that the shortest prompt has at least at tiny scale."""
MOST = 32
"""Prompts are at most so many times shorter."""
BLOCKS = 1
"""Of every cell: two pairs, too few for any verdict."""


def scaled_name(name: str, scale: str | None) -> str:
    """The name of a study at a scale; None and `full` leave it as it is.

    Raises:
        ReproError: there is no such scale.
    """
    if scale in (None, "full"):
        return name
    if scale != TINY:
        raise ReproError(f"There is no scale {scale!r}.", "There are: full, tiny.", "Give one of these.")
    return name if name.endswith(SUFFIX) else name + SUFFIX


def at_tiny_scale(study: Study, stand_in: Callable[[str], str]) -> Study:
    """The study with the models that stand in for its own, prompts shorter by one factor, and one block a cell.

    The factor is the largest up to 32 that leaves the shortest prompt 256 tokens. Thresholds shrink by it too;
    selection rules stay as they are. Pairs keep their names, also where the same model stands in for two drafts.

    Args:
        stand_in: by the name of a model, that of the one that stands in for it.
    """
    shortest = min(length for each in study.comparisons for length in each.lengths)
    factor = max(1, min(MOST, shortest // SHORTEST))
    comparisons = tuple(
        each.model_copy(
            update={
                "lengths": tuple(round(length / factor) for length in each.lengths),
                "blocks": BLOCKS,
                "most_blocks": None,
            }
        )
        for each in study.comparisons
    )
    content = study.model_dump() | {
        "name": study.name + SUFFIX,
        "pairs": {
            name: Pair(target=stand_in(pair.target), draft=stand_in(pair.draft)) for name, pair in study.pairs.items()
        },
        "engines": {name: _shrunk_engine(engine, factor) for name, engine in study.engines.items()},
        "prefill_step": max(16, study.prefill_step // factor),
        "warmup_tokens": max(16, study.warmup_tokens // factor),
        "comparisons": comparisons,
        "shrunk": factor,
    }
    return Study.model_validate(content)


def _shrunk_engine(engine: EngineSettings, factor: int) -> EngineSettings:
    if isinstance(engine, MlxLmEngine):
        return engine
    return engine.model_copy(update={"threshold": max(1, engine.threshold // factor)})
