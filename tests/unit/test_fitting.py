"""Which studies a machine can hold, told before any download; and running all that it can."""

import shutil
from pathlib import Path

import pytest

from specprefill_repro import run
from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.fitting import (
    Needs,
    Room,
    arm_memory,
    check_room,
    fits,
    model_bytes,
    needs,
    usable_memory,
    working_memory,
)
from specprefill_repro.project import Project
from specprefill_repro.run import run_all_that_fit
from specprefill_repro.study.load import load_study, study_names
from specprefill_repro.study.schema import Pair
from specprefill_repro.trials import macos

PROJECT = Project(Path(__file__).parents[2])
GB = 10**9
MAC = {  # usable by a trial: three quarters of the memory
    "16 GB": Room(int(16 * 2**30 * 0.75), 500 * GB),
    "64 GB": Room(int(64 * 2**30 * 0.75), 500 * GB),
    "128 GB": Room(int(128 * 2**30 * 0.75), 500 * GB),
}


def fitting(room: Room) -> set[str]:
    return {fit.study for fit in fits(PROJECT, "full", room) if fit.fits}


@pytest.mark.parametrize(
    ("machine", "some", "none"),
    [
        ("16 GB", {"demo", "small-mac"}, {"issue-gemma4-4bit", "draft-size", "issue-qwen-122b"}),
        ("64 GB", {"small-mac", "issue-gemma4-8bit", "green2026-35b", "draft-size"}, {"green2026-122b"}),
        ("128 GB", set(study_names(PROJECT)), set()),
    ],
)
def test_studies_fit_the_machines_that_they_were_made_for(machine, some, none):
    found = fitting(MAC[machine])
    assert some <= found
    assert not none & found


def test_too_little_disk_is_told_with_both_numbers():
    found = {fit.study: fit for fit in fits(PROJECT, "full", Room(200 * GB, 50 * GB))}
    (why,) = found["issue-qwen-122b"].lacking
    assert "free disk" in why and "50 GB" in why and "88 GB" in why.replace("89", "88")


def test_a_size_that_nobody_published_is_guessed_from_parameters_and_bits():
    assert 1 * GB < model_bytes(PROJECT, "qwen3.5-2b-6bit") < 2.5 * GB
    assert 0.4 * GB < model_bytes(PROJECT, "qwen3.5-0.8b-4bit") < 0.9 * GB


def test_a_model_of_unknown_size_fits_nowhere():
    assert Needs(1, 1, ("mystery",)).lacking(Room(10, 10)) == ("the size of mystery is not known",)


def test_all_that_fit_run_smallest_first_and_a_failure_stops_none(capsys):
    told, ran = [], []

    def run_one(project, name):
        ran.append(name)
        if name == "small-mac":
            raise ReproError("The disk is full.", "why", "next", Exit.ENVIRONMENT)

    with pytest.raises(ReproError, match=r"1 of \d+ studies failed: small-mac. The first: The disk is full") as caught:
        run_all_that_fit(PROJECT, "full", told.append, run_one, MAC["64 GB"])
    assert caught.value.exit_code == Exit.ENVIRONMENT
    assert set(ran) == fitting(MAC["64 GB"]) and ran[-1] != "small-mac"
    text = "\n".join(told)
    assert "green2026-122b: does not fit: needs about" in text
    assert "./reproduce green2026-122b --scale tiny" in text


def test_at_tiny_scale_every_study_fits_and_runs_under_its_own_name():
    ran = []
    run_all_that_fit(PROJECT, "tiny", lambda line: None, lambda project, name: ran.append(name), Room(8 * GB, 10 * GB))
    assert set(ran) == {f"{name}.tiny" for name in study_names(PROJECT)}


def test_a_machine_that_holds_none_is_told_so():
    with pytest.raises(ReproError, match="No study fits"):
        run_all_that_fit(PROJECT, "full", lambda line: None, lambda project, name: None, Room(GB, GB))


def test_a_study_that_does_not_fit_is_refused_with_numbers_and_with_what_to_run_instead():
    study = load_study(PROJECT, "issue-qwen-122b")
    with pytest.raises(ReproError, match=r"needs about 9\d GB of memory, and 12 GB can be used") as caught:
        check_room(PROJECT, study, Room(12 * GB, 500 * GB))
    assert caught.value.exit_code == Exit.ENVIRONMENT and "Nothing was downloaded" in caught.value.why
    assert "./reproduce issue-qwen-122b --scale tiny" in caught.value.next
    assert "./reproduce small-mac" in caught.value.next
    with pytest.raises(ReproError, match=r"free disk, and 50 GB can be used"):
        check_room(PROJECT, study, Room(200 * GB, 50 * GB))
    check_room(PROJECT, study, Room(200 * GB, 500 * GB))


def test_a_run_is_refused_before_anything_is_asked_of_the_network(monkeypatch):
    monkeypatch.setattr(run, "check_room", lambda project, study: check_room(project, study, Room(4 * GB, 500 * GB)))
    monkeypatch.setattr(run, "lock_unlocked", lambda *given: pytest.fail("the Hub was asked"))
    with pytest.raises(ReproError, match="green2026-122b does not fit this machine"):
        run.run_study(PROJECT, "green2026-122b")


def test_the_demo_fits_the_4_GiB_that_the_readme_asks_for():
    room = Room(int(4 * 2**30 * 0.9), 10 * GB)
    for name in ("demo", "engines-demo", "rules"):
        check_room(PROJECT, load_study(PROJECT, name), room)


def test_memory_is_told_arm_by_arm_and_a_model_that_drafts_for_itself_counts_once():
    small, large = model_bytes(PROJECT, "qwen3.5-2b-6bit"), model_bytes(PROJECT, "qwen3.5-122b-a10b-5bit")
    found = arm_memory(PROJECT, Pair(target="qwen3.5-122b-a10b-5bit", draft="qwen3.5-2b-6bit"))
    assert found.dense == working_memory(large) and found.speculative == working_memory(large + small)
    own = arm_memory(PROJECT, Pair(target="qwen3.5-2b-6bit", draft="qwen3.5-2b-6bit"))
    assert own.dense == own.speculative == working_memory(small)


def test_what_an_interrupted_download_left_is_not_needed_again(tmp_path):
    project = copy_of_configuration(tmp_path)
    study = load_study(project, "small-mac")
    whole = needs(project, study)
    assert whole.download_bytes == whole.disk_bytes > 0
    target = study.pairs[next(iter(study.pairs))].target
    begun = project.model_downloads(target) / "revision" / "model.safetensors.part"
    begun.parent.mkdir(parents=True)
    with begun.open("wb") as file:
        file.truncate(1 * GB)  # sparse: takes no disk here
    left = needs(project, study)
    assert whole.download_bytes - left.download_bytes == whole.disk_bytes - left.disk_bytes == 1 * GB


def test_on_a_mac_the_wired_limit_is_what_a_trial_may_use(monkeypatch):
    monkeypatch.setattr("sys.platform", "darwin")
    for limit, expected in (("0\n", 96 * GB), (None, 96 * GB), ("110000\n", 110_000 * 2**20), ("999999\n", 128 * GB)):
        monkeypatch.setattr(macos, "ask", lambda command, limit=limit: limit)
        assert usable_memory(128 * GB) == expected


def copy_of_configuration(root: Path) -> Project:
    shutil.copytree(PROJECT.config, root / "config")
    return Project(root)
