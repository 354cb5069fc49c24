"""Bad input to a whole run: three lines and an exit code at once, no traceback, nothing written, nothing started."""

import pytest

from small_project import STUDY, command, make_small_project
from specprefill_repro.models.fetch import fetch_model
from specprefill_repro.project import Project


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return make_small_project(tmp_path_factory.mktemp("bad input"))


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("keep: [0.5]", "keep: [1.5]", "less than or equal to 1"),
        ("keep: [0.5]", "keep: [yes]", "valid number"),
        ("target: target", "target: nobody", "There is no model 'nobody'"),
        ('claims: ["demo-*"]', 'claims: ["nobody-*"]', "nobody-*"),
        ("seed: 7", "seed: 7\ncolour: red", "colour"),
        ("seed: 7", "seed: *seed", "aliases"),
        ("name: tiny", "name: other", "calls itself"),
    ],
)
def test_a_bad_study_is_refused_before_anything_runs(project, old, new, what):
    assert old in STUDY
    file = project / "config/studies/tiny.yaml"
    file.write_text(STUDY.replace(old, new))
    done = command(project, "run", "tiny")
    assert done.returncode == 2
    assert what in done.stderr
    assert "why:" in done.stderr and "next:" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (project / "results").exists()
    file.write_text(STUDY)


def test_an_unknown_study_names_the_known_ones(project):
    done = command(project, "run", "nothing")
    assert done.returncode == 2
    assert "there are: tiny" in done.stderr


def test_a_prompt_longer_than_the_context_is_refused_before_anything_runs(tmp_path):
    root = make_small_project(tmp_path / "long")
    for model in ("target", "draft"):
        fetch_model(Project(root), model)
    (root / "config/studies/tiny.yaml").write_text(STUDY.replace("lengths: [400]", "lengths: [9000]"))
    done = command(root, "run", "tiny")
    assert done.returncode == 2
    assert "9,000" in done.stderr and "8,192" in done.stderr


def test_a_claim_without_a_source_is_refused(tmp_path):
    root = make_small_project(tmp_path / "claim")
    file = root / "config/claims/demo.yaml"
    file.write_text(file.read_text().replace("    source: this package, placebo\n", ""))
    done = command(root, "run", "tiny")
    assert done.returncode == 2
    assert "source" in done.stderr


def test_two_runs_in_one_checkout_are_refused(project):
    import fcntl

    path = project / "results" / "run.lock"
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = command(project, "run", "tiny")
    assert done.returncode == 3
    assert "Another run" in done.stderr


def test_a_folder_that_snakemake_can_not_make_is_named(tmp_path):
    root = make_small_project(tmp_path / "cache")
    (root / ".cache").write_text("a file, where Snakemake keeps a folder\n")
    done = command(root, "run", "tiny")
    assert done.returncode == 1
    assert f"{root / '.cache'}" in done.stderr.partition("why:")[0]
    assert "Traceback" not in done.stderr
