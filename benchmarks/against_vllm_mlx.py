"""Time to first token and needle recall against vllm-mlx 0.2.9: same weights, prompts, step, BLAS; in alternation.

    .venv/bin/python benchmarks/against_vllm_mlx.py [--tokens 512 1024] [--prompts 6] [--recall-prompts 16]

Two processes hold the padded demo pair each; one of them works at a time.

    theirs  vllm-mlx with its defaults (keep 0.3, chunks of 32, 8 look-ahead tokens, pool 13), but greedy
    same    this package with those parameters: the same 8 queries, the same tokens kept
    ours    this package with the rule `ours`, at a lower keep rate

Time: every prompt is read by the three arms forwards and backwards (A B C C B A), which gives one ratio of neighbouring
times for each. Seconds on the clock are what counts; seconds of the process on a CPU stand beside them, since other
programs disturb those less. Recall: other prompts, read with the unpadded model as target, which computes the same
function as the padded one at a third of the cost.

The environment of vllm-mlx is made from envs/vllm-mlx-0.2.9.lock, without torch.
"""

import argparse
import json
import math
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measure import ROOT, ratio, table, words, write

from specprefill_repro.engines.environments import install_environment
from specprefill_repro.estimates.statistics import share_interval
from specprefill_repro.models.fetch import fetch_model
from specprefill_repro.prefill.blas import renamed_openblas
from specprefill_repro.project import Project
from specprefill_repro.prompts.build import build_prompt_set
from specprefill_repro.prompts.needle import answer_found
from specprefill_repro.prompts.schema import Prompt
from specprefill_repro.prompts.tokenizer import ChatTokenizer, load_tokenizer
from specprefill_repro.study.schema import NeedleKind

ENGINE, ENVIRONMENT = "vllm-mlx", "vllm-mlx-0.2.9"
PAIR = ("smollm2-135m-x3", "smollm2-135m")
THEIRS = {"chunk": 32, "pool": 13, "look_ahead": 8}
SAME = {"preset": "green2026", "temperature": 0.0, "top_p": 1.0}
OURS = {"preset": "ours"}
LIMITS = {"same": 1.0, "ours": 0.85}

Request = dict[str, Any]


class Side:
    """A process of benchmarks/sides.py."""

    def __init__(self, name: str, python: Path, folders: tuple[str, str], library: str) -> None:
        command = [str(python), str(Path(__file__).with_name("sides.py")), name, *folders, library]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.version = str(self._answer()["version"])

    def prefill(self, request: Request) -> dict[str, Any]:
        """Hand over a request and wait for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a side ended with status {self.process.wait()}; its last lines stand above")
        return dict(json.loads(line))

    def end(self) -> None:
        """Close its input, which ends it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


class Bench:
    """Both sides, the arms, and what they read."""

    def __init__(self, sides: dict[str, Side], arms: dict[str, tuple[str, Request]], step: int) -> None:
        self.sides, self.arms, self.step, self.rng = sides, arms, step, random.Random("order")

    def ask(self, arm: str, prompt: Prompt, target: str) -> dict[str, Any]:
        """Let an arm read a prompt."""
        side, parameters = self.arms[arm]
        return self.sides[side].prefill({"ids": prompt.ids, "step": self.step, "target": target, **parameters})

    def times(self, prompt: Prompt) -> dict[str, Any]:
        """Seconds and CPU seconds of every arm, each twice, and the order."""
        order = self.rng.sample(sorted(self.arms), len(self.arms))
        row: dict[str, Any] = {"prompt": prompt.id, "order": order, **{arm: [] for arm in order}}
        for arm in (*order, *reversed(order)):
            answer = self.ask(arm, prompt, "target")
            row[arm].append({"seconds": answer["seconds"], "cpu": answer["cpu"], "kept": len(answer["kept"])})
        print(f"  {prompt.id}: " + ", ".join(f"{arm} {row[arm][0]['seconds']:.2f} s" for arm in self.arms), flush=True)
        return row

    def recall(self, prompt: Prompt, tokenizer: ChatTokenizer) -> dict[str, Any]:
        """For every arm, the share of the needle that was kept, and whether the answer was given."""
        row: dict[str, Any] = {"prompt": prompt.id}
        needle = {position for first, stop in prompt.needle_tokens for position in range(first, stop)}
        for arm in self.arms:
            answer = self.ask(arm, prompt, "draft")
            kept = len(needle & set(answer["kept"])) / len(needle)
            found = answer_found(prompt.answer, tokenizer.decode(answer["tokens"]))
            row[arm] = {"kept": kept, "answer": found, "positions": answer["kept"]}
        print(f"  {prompt.id}: " + ", ".join(f"{arm} {row[arm]['kept']:.0%}" for arm in self.arms), flush=True)
        return row


def log_ratios(rows: Sequence[dict[str, Any]], arm: str, clock: str) -> list[float]:
    """Of an arm's seconds to theirs, a prompt each: the mean of both runs."""

    def logs(row: dict[str, Any], name: str) -> float:
        return sum(math.log(run[clock]) for run in row[name]) / len(row[name])

    return [logs(row, arm) - logs(row, "theirs") for row in rows]


def recall_summary(rows: Sequence[dict[str, Any]], arm: str) -> dict[str, Any]:
    """Needles wholly kept, answers given, and both held against theirs, prompt by prompt.

    The interval is of the share of prompts in which an arm loses a needle that theirs kept (Clopper-Pearson).
    """
    whole = [(row[arm]["kept"] == 1.0, row["theirs"]["kept"] == 1.0) for row in rows]
    lost = sum(their and not mine for mine, their in whole)
    interval = share_interval(lost, len(rows))
    assert interval is not None
    return {
        "needles_kept": sum(mine for mine, _ in whole) / len(rows),
        "answers_found": sum(row[arm]["answer"] for row in rows) / len(rows),
        "needles_lost": lost,
        "needles_gained": sum(mine and not their for mine, their in whole),
        "lost_interval": [interval.low, interval.high],
        "same_tokens_kept": sum(row[arm]["positions"] == row["theirs"]["positions"] for row in rows),
        "prompts": len(rows),
    }


def prompts_of(tokens: int, count: int, seed: int, tokenizer: ChatTokenizer) -> list[Prompt]:
    """Prompts with a number or a city to find, in turn."""
    kinds = (NeedleKind.NUMBER, NeedleKind.CITY)
    return list(build_prompt_set(seed, "benchmark", kinds, tokens, count, tokenizer, "0" * 64).prompts)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 1024])
    parser.add_argument("--prompts", type=int, default=6, help="that are timed, at each length")
    parser.add_argument("--recall-prompts", type=int, default=16, help="at each length")
    parser.add_argument("--step", type=int, default=128)
    parser.add_argument("--their-keep", type=float, default=0.3)
    parser.add_argument("--our-keep", type=float, default=0.15)
    parser.add_argument("--rule", type=json.loads, default=OURS, help="the rule `ours`, in JSON")
    options = parser.parse_args()
    project = Project(ROOT)
    for name in PAIR:
        fetch_model(project, name)
    install_environment(project, ENGINE, ENVIRONMENT)
    folders = (str(project.model_folder(PAIR[0])), str(project.model_folder(PAIR[1])))
    library = str(renamed_openblas()) if sys.platform.startswith("linux") else ""
    theirs = project.engine_environment(ENVIRONMENT) / "bin" / "python"
    sides = {
        "ours": Side("ours", Path(sys.executable), folders, library),
        "theirs": Side("theirs", theirs, folders, library),
    }
    arms: dict[str, tuple[str, Request]] = {
        "theirs": ("theirs", {**THEIRS, "keep": options.their_keep}),
        "same": ("ours", {**SAME, "keep": options.their_keep}),
        "ours": ("ours", {**options.rule, "keep": options.our_keep}),
    }
    bench = Bench(sides, arms, options.step)
    tokenizer = load_tokenizer(project.model_folder(PAIR[1]))
    found, shown = [], []
    for tokens in options.tokens:
        warm = prompts_of(min(options.tokens), 1, 0, tokenizer)[0]
        for arm in arms:
            bench.ask(arm, warm, "target")
        times = [bench.times(prompt) for prompt in prompts_of(tokens, options.prompts, 1, tokenizer)]
        recalls = [
            bench.recall(prompt, tokenizer) for prompt in prompts_of(tokens, options.recall_prompts, 2, tokenizer)
        ]
        judged = {
            arm: {
                "seconds": ratio(log_ratios(times, arm, "seconds")),
                "cpu": ratio(log_ratios(times, arm, "cpu")),
                "kept_share": sum(row[arm][0]["kept"] for row in times) / len(times) / tokens,
                **recall_summary(recalls, arm),
            }
            for arm in arms
        }
        found.append({"tokens": tokens, "arms": judged, "times": times, "recalls": recalls})
        for arm, of in judged.items():
            shown.append(
                (
                    str(tokens),
                    f"{arm} at {arms[arm][1]['keep']:g}",
                    f"{of['kept_share']:.0%}",
                    "1" if arm == "theirs" else words(of["seconds"]),
                    "1" if arm == "theirs" else words(of["cpu"]),
                    f"{LIMITS[arm]:g}" if arm in LIMITS else "",
                    f"{of['needles_kept']:.0%}",
                    f"{of['answers_found']:.0%}",
                    f"{of['needles_lost']} of {of['prompts']} (up to {of['lost_interval'][1]:.0%})",
                )
            )
    for side in sides.values():
        side.end()
    same = sum(each["arms"]["same"]["same_tokens_kept"] for each in found)
    print(
        f"With equal parameters both keep the same tokens in {same} of {len(found) * options.recall_prompts} prompts."
    )
    table(
        f"{sides['ours'].version} against {sides['theirs'].version}; step {options.step}; 95 % intervals",
        ("tokens", "arm", "kept", "TTFT / theirs", "CPU / theirs", "limit", "needles", "answers", "needles lost"),
        shown,
    )
    versions = {name: side.version for name, side in sides.items()}
    write("against_vllm_mlx", {"versions": versions, "arms": arms, "step": options.step, "lengths": found})


if __name__ == "__main__":
    main()
