"""What real oMLX servers logged, read by the engine's rule: sparse where it ran, and what it was where it did not."""

import json
import os
import plistlib
from pathlib import Path
from typing import Any

import pytest

from specprefill_repro.engines.chat import ChatAnswer, _numbers
from specprefill_repro.engines.omlx import Omlx, find_source, packages
from specprefill_repro.engines.omlx_log import read_loading, read_request
from specprefill_repro.engines.server_evidence import LogClaims, outcome
from specprefill_repro.project import Project
from specprefill_repro.study.engines import OmlxEngine
from specprefill_repro.study.plan import Arm, ArmKind
from specprefill_repro.trials.job import Job

RECORDED = Path(__file__).resolve().parent.parent / "reference" / "engines"
VERSIONS = ("0.3.5.dev1", "0.3.9.dev1")
THRESHOLD = 128
NO_LINE = "fallback: the log has no line of SpecPrefill for this request"

# The same at both versions, but for the draft that only the newer one can score.
WAYS = {
    "streaming chat": "sparse",
    "one token": "sparse",
    "chat without streaming": NO_LINE,
    "completions": NO_LINE,
    "threshold of the request": NO_LINE,
    "switched off by the request": NO_LINE,
    "keep rate of the request": "fallback: 321 of 610 tokens were kept, 162 to 193 were asked for",
    "system prompt": "fallback: 610 of 636 prompt tokens were scored",
    "draft missing": "fallback: SpecPrefill: draft model load failed",
    "with caches": "fallback: the draft keeps its cache from one request to the next",
    # Judged as if the caches were off by all that the log says of loading:
    "with caches, again": "fallback: 512 prompt tokens of the draft came from a cache",
    "with caches, after dense": "fallback: 512 prompt tokens came from a cache",
}


def recorded(version: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDED / f"omlx-{version}.json").read_text())
    return found


@pytest.fixture
def judge(real_project: Project, tmp_path: Path):
    """What a way of asking came to; `times`: as if the log had its lines so often."""
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    engine = Omlx(real_project, OmlxEngine(kind="omlx", threshold=THRESHOLD))

    def run(version: str, way: str, times: int = 1) -> tuple[str, LogClaims]:
        found = recorded(version)
        asked = found["ways"][way]
        started = "\n".join(asked.get("started") or found["started"])
        tokens = (asked["usage"] or {}).get("prompt_tokens", found["prompt_tokens"])
        arm = Arm(kind=ArmKind.SPECULATIVE, keep=0.3)
        job = Job(
            target_folder=str(tmp_path),
            draft_folder=str(tmp_path),
            arm=arm,
            ids=tuple(range(tokens)),
            needle_tokens=((0, 1),),
            warmup_ids=(),
            step=2048,
            answer_tokens=1,
            seed="1/cell/prompt",
            logits_file="",
        )
        claims = engine.read_log(job, started, "\n".join(asked["log"] * times))
        answer = ChatAnswer(1.0, 1.0, "x", "x", "stop", dict(_numbers(asked["usage"] or {})))
        cached = engine.cached_tokens(answer)
        return outcome(arm, tokens, THRESHOLD, claims, cached, engine.kept_bounds(job)), claims

    return run


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("way", WAYS)
def test_each_way_of_asking_comes_out_as_what_it_was(judge, version, way):
    said, _ = judge(version, way)
    assert said.startswith(WAYS[way])
    assert recorded(version)["ways"][way]["status"] == 200


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_that_was_scored_twice_is_no_proof(judge, version):
    said, _ = judge(version, "streaming chat", times=2)
    assert said == "fallback: the log has 2 lines of SpecPrefill for one request"


def test_a_dense_trial_whose_time_holds_the_loading_of_the_model_is_none(real_project: Project) -> None:
    """It would make a weak baseline, and so a gain out of nothing."""
    engine = Omlx(real_project, OmlxEngine(kind="omlx", threshold=THRESHOLD))
    dense = Arm(kind=ArmKind.DENSE)
    job = Job(
        target_folder="",
        draft_folder=None,
        arm=dense,
        ids=(1, 2, 3),
        needle_tokens=((0, 1),),
        warmup_ids=(),
        step=2048,
        answer_tokens=1,
        seed="1/cell/prompt",
        logits_file="",
    )
    log = "2026-03-01 10:00:00 - omlx.engine_pool - INFO - Loading model: target\n"
    before, within = engine.read_log(job, log, ""), engine.read_log(job, "", log)
    assert outcome(dense, 3, THRESHOLD, before, 0) == "dense"
    assert outcome(dense, 3, THRESHOLD, within, 0).startswith("fallback: the model was loaded within the request")


@pytest.mark.parametrize("changed", ["omlx", "mlx"])
def test_a_command_that_pip_brought_up_to_date_is_another_engine_though_it_is_the_same_file(tmp_path, changed):
    """Its numbers must not be taken for those of the version before."""
    python, command = tmp_path / "python", tmp_path / "omlx"
    command.write_text(f"#!{python}\n")
    command.chmod(0o755)
    found = []
    for version in ("0.3.5", "0.3.9"):
        versions = json.dumps({"omlx": "0.3.5", "mlx": "0.30.0", changed: version})
        python.write_text(f"#!/bin/sh\necho '{versions}'\n")
        python.chmod(0o755)
        packages.cache_clear()
        found.append(find_source(OmlxEngine(kind="omlx", command=str(command))))
    packages.cache_clear()
    assert found[0].identity != found[1].identity
    assert (found[1].version == "0.3.9") == (changed == "omlx")


@pytest.mark.parametrize("form", [plistlib.FMT_XML, plistlib.FMT_BINARY])
@pytest.mark.parametrize("launcher", ["in the application", "a link to it", "a script that names it"])
def test_an_application_that_was_updated_is_another_engine_though_its_launcher_is_the_same(tmp_path, launcher, form):
    contents = tmp_path / "My oMLX.app" / "Contents"
    inner = contents / "MacOS" / "omlx"
    inner.parent.mkdir(parents=True)
    inner.write_bytes(b"\xcf\xfa\xed\xfe a program")
    command = inner if launcher == "in the application" else tmp_path / "bin" / "omlx"
    command.parent.mkdir(exist_ok=True)
    if launcher == "a link to it":
        command.symlink_to(inner)
    elif launcher == "a script that names it":
        command.write_text(f'#!/bin/sh\nexec "{inner}" "$@"\n')
    command.chmod(0o755)
    found = []
    for version in ("0.3.5", "0.3.9", "0.3.9"):
        info = {"CFBundleShortVersionString": version, "CFBundleName": "oMLX"}
        (contents / "Info.plist").write_bytes(plistlib.dumps(info, fmt=form))
        os.utime(command)
        found.append(find_source(OmlxEngine(kind="omlx", command=f"'{command}'")))
    assert found[0].identity != found[1].identity == found[2].identity
    assert [each.version for each in found] == ["0.3.5", "0.3.9", "0.3.9"]


@pytest.mark.parametrize("content", [b"", b"not a list", b"<plist><dict><key>", b"bplist00\xff", plistlib.dumps([1])])
def test_an_application_that_says_nothing_of_itself_has_no_version(tmp_path, content):
    program = tmp_path / "oMLX.app" / "Contents" / "MacOS" / "omlx"
    program.parent.mkdir(parents=True)
    program.write_bytes(b"a program")
    program.chmod(0o755)
    (program.parents[1] / "Info.plist").write_bytes(content)
    assert find_source(OmlxEngine(kind="omlx", command=str(program))).version == "unknown"


def test_a_program_that_was_written_anew_is_another_engine(tmp_path):
    program = tmp_path / "omlx"
    program.write_bytes(b"\x7fELF that loads what lies beside it")
    program.chmod(0o755)
    found = []
    for written in (1_000_000_000, 1_000_000_000, 1_100_000_000):
        os.utime(program, (written, written))
        found.append(find_source(OmlxEngine(kind="omlx", command=str(program))).identity)
    assert found[0] == found[1] != found[2]


def test_only_the_newer_version_scores_a_qwen3_draft(judge):
    assert judge("0.3.5.dev1", "Qwen 3 draft")[0].startswith("fallback: SpecPrefill scoring failed")
    assert judge("0.3.9.dev1", "Qwen 3 draft")[0] == "sparse"


@pytest.mark.parametrize("version", VERSIONS)
def test_the_numbers_of_the_lines_are_read(version):
    found = recorded(version)
    asked = read_request(found["ways"]["system prompt"]["log"])
    assert (asked.prompt_tokens, asked.system_tokens, asked.tokens_scored) == (636, 26, 610)
    # 192 of the conversation, the system prompt, and the last token.
    assert asked.tokens_selected == 192 and asked.tokens_read == 192 + 26 + 1
    assert read_request(found["ways"]["with caches, again"]["log"]).draft_cached_tokens == 512
    assert read_request([]).tokens_read is None
    loading = read_loading(found["started"])
    assert loading.draft_loaded and not loading.draft_caches and loading.failure is None
    assert not read_loading(found["ways"]["draft missing"]["started"]).draft_loaded


@pytest.mark.parametrize("version", VERSIONS)
def test_three_fields_of_an_answer_are_one_measurement(version):
    usage = recorded(version)["ways"]["streaming chat"]["usage"]
    assert usage["time_to_first_token"] == usage["prompt_eval_duration"]
    rate = usage["prompt_tokens"] / usage["time_to_first_token"]
    assert usage["prompt_tokens_per_second"] == pytest.approx(rate, rel=0.01)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_draft_s_cache_shows_in_the_log_alone(version):
    again = recorded(version)["ways"]["with caches, again"]
    usage = again["usage"]
    assert not usage.get("cached_tokens") and not (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    assert "draft cache hit 512" in again["log"][0]
