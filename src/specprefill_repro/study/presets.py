"""Selection rules by name: those that others published, with their sources, and ours. Plain data.

A study names one (`selection: ours`, or `selection: {preset: ours, chunk: 16}`); what is not set here keeps the default
of `Selection`. config/README.md has the same as a table, docs/selection.md how `ours` was chosen.
"""

from typing import Any, Literal

from specprefill_repro.schema import Frozen

PresetName = Literal["liu2025", "green2026", "omlx", "ours"]


class Preset(Frozen):
    """A selection rule that has a name."""

    parameters: dict[str, Any]
    """Of `Selection`, where they are not its defaults."""
    keep: float
    """The keep rate that its source uses when nothing else is said."""
    sources: tuple[str, ...]
    note: str


_PORTS: dict[str, Any] = {
    "look_ahead": 8,
    "prompt_query": False,
    "temperature": 0.6,
    "top_p": 0.95,
    "stop_at_end": False,
    "pool": 13,
    "chunk": 32,
    "head": 0,
    "windows": "kept",
}
"""What the two MLX ports share. Neither seeds its sampler; here it is seeded by study, cell and prompt."""

PRESETS: dict[str, Preset] = {
    "liu2025": Preset(
        parameters={"look_ahead": 8, "pool": 13, "chunk": 32, "head": 0, "tail": 0},
        keep=0.1,
        sources=(
            "arXiv 2502.02789, section 3",
            "github.com/Jingyu6/speculative_prefill at c1d6bd3: look_ahead_cnt 8, pool_kernel_size 13, chunk 32; keep "
            "0.1 in the first of its configurations",
        ),
        note="The last prompt token's query and those of 7 tokens decoded greedily after it, stopping at an end token; "
        "no token is kept by force, so the first logits come from the last kept token.",
    ),
    "green2026": Preset(
        parameters={**_PORTS, "tail": 0, "window_tail": "long-prompts"},
        keep=0.3,
        sources=(
            "github.com/waybarrios/vllm-mlx, pull request 180, in versions 0.2.7 to 0.2.9: vllm_mlx/specprefill.py",
            "the same functions at 4b654c0: _lookahead_decode, _compute_importance, select_chunks",
        ),
        note="The queries of 8 sampled tokens, not that of the last prompt token, and no stop at an end token; nothing "
        "is kept by force. A sliding-window target also reads the last window of a prompt that is longer than it.",
    ),
    "omlx": Preset(
        parameters={**_PORTS, "tail": 512, "tail_in_budget": True, "window_tail": "always"},
        keep=0.2,
        sources=(
            "github.com/jundot/omlx at 0017479: omlx/patches/specprefill.py, select_chunks and sparse_prefill",
            "pull request 2442 (the last 512 tokens, after issue 2439)",
        ),
        note="Scores as green2026; the last 512 tokens are kept, in whole chunks, and charged to the budget, so that "
        "short prompts are cut to their ends alone. A sliding-window target also reads its last window.",
    ),
    "ours": Preset(
        parameters={"look_ahead": 8, "pool": 13, "chunk": 16, "head": 4, "tail": 32},
        keep=0.2,
        sources=("docs/selection.md", "benchmarks/choose_selection.py"),
        note="Greedy and deterministic: the last prompt token's query and those of 7 decoded tokens. Smaller chunks "
        "than the paper's, and a few first and last tokens outside the budget.",
    ),
}
