"""One side of benchmarks/against_vllm_mlx.py: a process that holds both models and prefills what it is told.

    PYTHON sides.py ours|theirs TARGET_FOLDER DRAFT_FOLDER OPENBLAS

`target` of a request names the model that reads the kept tokens: the target, or the draft in its place.
Reads one request a line from standard input and writes one answer a line, both JSON. `theirs` runs in an environment
that holds vllm-mlx and nothing of this project; so nothing but the standard library is imported up here.
"""

import ctypes
import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

ANSWER_TOKENS = 12


def use_blas(library: str) -> None:
    """Open the OpenBLAS that both sides use, before mlx is imported; "" where mlx brings a fast one."""
    if library:
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)


class Theirs:
    """The functions that the server of vllm-mlx calls, in its order (vllm_mlx/engine/simple.py)."""

    def __init__(self, target: str, draft: str) -> None:
        import importlib.metadata
        import importlib.util

        import mlx.core as mx
        from mlx_lm.models.cache import make_prompt_cache
        from mlx_lm.utils import load_model

        # The module alone: the package's __init__ starts a server's worth of imports.
        files = importlib.metadata.distribution("vllm-mlx")
        spec = importlib.util.spec_from_file_location("specprefill", str(files.locate_file("vllm_mlx/specprefill.py")))
        assert spec is not None and spec.loader is not None
        self.module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.module)
        self.version = f"vllm-mlx {files.version}, mlx {importlib.metadata.version('mlx')}"
        self.mx, self.make_cache = mx, make_prompt_cache
        self.models = {"target": self._load(load_model, target), "draft": self._load(load_model, draft)}

    def _load(self, load_model: Any, folder: str) -> Any:
        model, _ = load_model(Path(folder))
        if self.mx.default_device() == self.mx.Device(self.mx.cpu):
            model.set_dtype(self.mx.float32)
        self.mx.eval(model.parameters())
        return model

    def prefill(self, request: dict[str, Any]) -> dict[str, Any]:
        """Greedy look-ahead, as on our side; its server samples, which costs it a sort of the vocabulary more."""
        module, mx = self.module, self.mx
        target = self.models[request["target"]]
        cpu, start = time.process_time(), time.perf_counter()
        importance = module.score_tokens(
            self.models["draft"],
            request["ids"],
            n_lookahead=request["look_ahead"],
            pool_kernel=request["pool"],
            temp=0.0,
            prefill_step_size=request["step"],
        )
        selected = module.select_chunks(importance, keep_pct=request["keep"], chunk_size=request["chunk"])
        scored = time.perf_counter()
        cache = self.make_cache(target)
        logits = module.sparse_prefill(target, request["ids"], selected, cache, step_size=request["step"])
        tokens = [int(mx.argmax(logits[0, -1]).item())]
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        while len(tokens) < ANSWER_TOKENS:
            logits = target(mx.array([tokens[-1:]]), cache=cache)
            tokens.append(int(mx.argmax(logits[0, -1]).item()))
        module.cleanup_rope(target)
        return {"seconds": seconds, "cpu": cpu, "scored": scored - start, "kept": selected.tolist(), "tokens": tokens}


class Ours:
    def __init__(self, target: str, draft: str) -> None:
        import mlx.core as mx

        from specprefill_repro import __version__
        from specprefill_repro.prefill.arms import Models
        from specprefill_repro.prefill.loading import load_model

        self.version = f"specprefill-repro {__version__}, mlx {mx.__version__}"
        self.mx = mx
        target_model, draft_model = (load_model(Path(folder))[0] for folder in (target, draft))
        self.models = {"target": Models(target_model, draft_model), "draft": Models(draft_model, draft_model)}

    def prefill(self, request: dict[str, Any]) -> dict[str, Any]:
        """No end token stops the look-ahead, as theirs does not."""
        from specprefill_repro.prefill import speculative
        from specprefill_repro.prefill.arms import Request
        from specprefill_repro.prefill.chunked import most_likely
        from specprefill_repro.study.plan import Arm, ArmKind
        from specprefill_repro.study.schema import Selection

        parameters = {key: value for key, value in request.items() if key in Selection.model_fields}
        arm = Arm(kind=ArmKind.SPECULATIVE, keep=request["keep"], selection=Selection(**parameters))
        asked = Request(ids=tuple(request["ids"]), arm=arm, step=request["step"], seed="")
        cpu, start = time.process_time(), time.perf_counter()
        with speculative.prefill(self.models[request["target"]], asked) as prefilled:
            seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
            scored = dict(prefilled.marks)["selection"] - start
            tokens = [prefilled.first_token]
            while len(tokens) < ANSWER_TOKENS:
                tokens.append(most_likely(prefilled.decode(tokens[-1])))
        return {"seconds": seconds, "cpu": cpu, "scored": scored, "kept": prefilled.kept, "tokens": tokens}


def main() -> None:
    """Serve requests until standard input ends."""
    name, target, draft, library = sys.argv[1:5]
    use_blas(library)
    side = Ours(target, draft) if name == "ours" else Theirs(target, draft)
    print(json.dumps({"version": side.version}), flush=True)
    for line in sys.stdin:
        side.mx.clear_cache()
        gc.collect()
        gc.disable()
        answer = side.prefill(json.loads(line))
        gc.enable()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
