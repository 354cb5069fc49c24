"""Which studies a machine can hold, told before any download; and running all that it can."""

from pathlib import Path

import pytest

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.fitting import Needs, Room, fits, model_bytes, run_all_that_fit
from specprefill_repro.project import Project
from specprefill_repro.study.load import study_names

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

    def run(project, name):
        ran.append(name)
        if name == "small-mac":
            raise ReproError("The disk is full.", "why", "next", Exit.ENVIRONMENT)

    with pytest.raises(ReproError, match=r"1 of \d+ studies failed: small-mac. The first: The disk is full") as caught:
        run_all_that_fit(PROJECT, "full", told.append, run, MAC["64 GB"])
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
