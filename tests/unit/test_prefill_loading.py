"""Loading: what mlx_lm does besides is done too, and a process can go on with mlx_lm itself, as a notebook does."""

import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest

from specprefill_repro.prefill.loading import keep_resident
from tiny_model import write_tiny_model

LOADED_HERE = """
import sys
from pathlib import Path
from specprefill_repro.prefill.loading import load_model
folder = Path(sys.argv[1])
ours, _ = load_model(folder)
assert "transformers" not in sys.modules
"""
GOES_ON = """
model, tokenizer = load(str(folder))
assert type(model) is type(ours)
assert isinstance(tokenizer, mlx_lm.tokenizer_utils.TokenizerWrapper)
assert isinstance(generate(model, tokenizer, "The harbour", max_tokens=2), str)
assert len(list(mlx_lm.stream_generate(model, tokenizer, "The harbour", max_tokens=2))) > 0
assert load_model(folder)[0] is not ours and "utils" in vars(mlx_lm) and mlx_lm.load is mlx_lm.utils.load
print("well")
"""


@pytest.mark.parametrize(
    "imports",
    [
        "import mlx_lm\nfrom mlx_lm import generate, load",
        # The name of a module that is the name of a function too.
        "from mlx_lm.generate import stream_generate\nimport mlx_lm\nfrom mlx_lm import generate, load",
    ],
)
def test_mlx_lm_is_whole_for_whoever_imports_it_afterwards(imports: str, tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    command = [sys.executable, "-c", f"{LOADED_HERE}\n{imports}\n{GOES_ON}", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "well"), done.stderr


@pytest.mark.parametrize(("recommended", "set_to"), [(96 << 30, [96 << 30]), (None, [])])
def test_weights_stay_resident_as_far_as_the_device_recommends_as_with_mlx_lm(
    recommended: int | None, set_to: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """mlx_lm raises the wired limit before it generates; a dense arm without that would be a weak baseline on a Mac."""
    found = {} if recommended is None else {"max_recommended_working_set_size": recommended}
    limits: list[int] = []
    monkeypatch.setattr(mx, "device_info", lambda: found)
    monkeypatch.setattr(mx, "set_wired_limit", limits.append)
    assert keep_resident() == recommended
    assert limits == set_to
