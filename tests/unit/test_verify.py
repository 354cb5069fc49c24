"""A page that says anything else than its records is caught, and the place is named."""

import base64
import bz2
import dataclasses
import hashlib
import json
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from specprefill_repro import verify
from specprefill_repro.calibration.chain import render_page, run_chain, usual_study
from specprefill_repro.calibration.results import run_case
from specprefill_repro.calibration.worlds import TREATED, TRUE_WORLDS, controls
from specprefill_repro.cli import app
from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.estimates.build import estimate_study
from specprefill_repro.files import canonical_json, content_id
from specprefill_repro.report.build import render_report
from specprefill_repro.report.data import ReportData, read_embedded
from specprefill_repro.report.version import report_code
from specprefill_repro.trials.schema import BlockReceipt, TrialRecord
from specprefill_repro.trials.table import Trials, parquet, read_table, trial_table
from specprefill_repro.verdicts.build import build_verdicts
from specprefill_repro.verdicts.matching import facts_of
from specprefill_repro.verify import verify_page

BLOCK = re.compile(r'(<script type="application/json" id="records">)(.*?)(</script>)', re.DOTALL)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project, _ = run_case(TRUE_WORLDS[0], tmp_path_factory.mktemp("verify"))
    return render_page(project)


@pytest.fixture(scope="module", autouse=True)
def one_rendering_of_each_data() -> Any:
    """Rendering takes a second; pages of the same data are rendered once."""
    drawn: dict[str, str] = {}
    original = verify.render_report

    def render(data: ReportData, trials: Trials) -> str:
        key = content_id(data)
        if key not in drawn:
            drawn[key] = original(data, trials)
        return drawn[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "render_report", render)
        yield


@cache
def embedded(page: str) -> Any:
    found = BLOCK.search(page)
    assert found is not None
    return json.loads(bz2.decompress(base64.b64decode(json.loads(found[2])["data"])))


def sealed(page: str, content: bytes) -> str:
    """The page with other data, its hash made to fit: what somebody would do who knows the format."""
    block = {
        "data": base64.b64encode(bz2.compress(content)).decode(),
        "encoding": "base64 of bzip2 of JSON (UTF-8)",
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    return BLOCK.sub(lambda found: found[1] + canonical_json(block).decode() + found[3], page)


def refused(path: Path, text: str) -> str:
    path.write_text(text)
    with pytest.raises(ReproError) as caught:
        verify_page(path)
    assert caught.value.exit_code is Exit.VERIFICATION
    return caught.value.what


def changed(page: Path, edit: Callable[[Any], None]) -> str:
    data = json.loads(json.dumps(embedded(page.read_text())))
    edit(data)
    return sealed(page.read_text(), canonical_json(data))


def test_an_untouched_page_is_verified(page: Path) -> None:
    found = verify_page(page)
    assert (found.records, found.cells, found.divergences) == (72, 6, 36)


def other(character: str, rng: random.Random) -> str:
    return rng.choice([c for c in "0123456789" if c != character])


def test_60_of_60_single_characters_of_numbers_on_the_page_are_caught(page: Path, tmp_path: Path) -> None:
    text, rng = page.read_text(), random.Random(1)
    digits = [found.start() for found in re.finditer(r"\d", text)]
    for place in rng.sample(digits, 60):
        edited = text[:place] + other(text[place], rng) + text[place + 1 :]
        assert re.search(r"line \d+, column|data block", refused(tmp_path / "page.html", edited))


def test_40_of_40_single_digits_of_records_are_caught_though_the_hash_is_made_to_fit(
    page: Path, tmp_path: Path
) -> None:
    """In records, receipts and estimates: the data say it themselves, before the page is drawn."""
    text, rng = page.read_text(), random.Random(2)
    data = embedded(text)
    for number in range(40):
        part = ("records", "receipts", "estimates", "verdicts")[number % 4]
        plain = json.dumps(data[part])
        digits = [found.start() for found in re.finditer(r"(?<=[\d.])\d(?=\d)", plain)]
        place = rng.choice(digits)
        edited = json.loads(plain[:place] + other(plain[place], rng) + plain[place + 1 :])
        what = refused(tmp_path / "page.html", sealed(text, canonical_json(data | {part: edited})))
        assert "at " in what or "data block" in what


def test_a_changed_second_is_named_by_its_record(page: Path, tmp_path: Path) -> None:
    def edit(data: Any) -> None:
        data["records"][7]["seconds"] += 0.001

    record = embedded(page.read_text())["records"][7]
    what = refused(tmp_path / "page.html", changed(page, edit))
    assert f"record 8 (trial {record['position'] + 1} of block {record['block']} of {record['cell']})" in what


def test_a_changed_estimate_is_named_by_its_cell(page: Path, tmp_path: Path) -> None:
    def edit(data: Any) -> None:
        data["estimates"]["cells"][1]["interval95"]["high"] += 0.01

    assert "estimates.cells[pair-1024-speculative-keep0.2].interval95.high" in refused(
        tmp_path / "page.html", changed(page, edit)
    )


def test_a_changed_verdict_is_named_by_its_claim(page: Path, tmp_path: Path) -> None:
    def edit(data: Any) -> None:
        data["verdicts"]["verdicts"][2]["word"] = "exceeded"

    assert "verdicts.verdicts[scripted-claim].word" in refused(tmp_path / "page.html", changed(page, edit))


def test_a_record_that_is_left_out_is_missed(page: Path, tmp_path: Path) -> None:
    assert "trial 1 of block 0" in refused(tmp_path / "page.html", changed(page, lambda data: data["records"].pop(0)))


def redrawn(page: Path, keep: Callable[[BlockReceipt], bool]) -> str:
    """A page that follows in everything from its records, of a study of which only some blocks are told."""
    data = read_embedded(page.read_text())
    kl = {p.dense_record: p.kl_nats for cell in data.estimates.cells for p in cell.pairs}
    receipts = tuple(receipt for receipt in data.receipts if keep(receipt))
    named = {identity for receipt in receipts for identity in receipt.records}
    records = tuple(record for record in data.records if content_id(record) in named)
    trials = Trials.of_records(records)
    estimates = estimate_study(data.study, trials.of_cell, receipts, data.gates, lambda twins: kl[twins.dense_record])
    claims = [verdict.claim for verdict in data.verdicts.verdicts]
    verdicts = build_verdicts(data.study, estimates, claims, facts_of(estimates, data.models))
    told = {"records": records, "receipts": receipts, "estimates": estimates, "verdicts": verdicts}
    return render_report(data.model_copy(update=told))


def rehashed(page: Path, changes: dict[str, Any]) -> str:
    """A page with other values in all of its records, and every hash and number made to fit."""
    data = read_embedded(page.read_text())
    records = tuple(record.model_copy(update=changes) for record in data.records)
    names = {content_id(old): content_id(new) for old, new in zip(data.records, records, strict=True)}
    kl = {names[p.dense_record]: p.kl_nats for cell in data.estimates.cells for p in cell.pairs}
    receipts = tuple(
        each.model_copy(update={"records": tuple(names[name] for name in each.records)}) for each in data.receipts
    )
    trials = Trials.of_records(records)
    estimates = estimate_study(data.study, trials.of_cell, receipts, data.gates, lambda twins: kl[twins.dense_record])
    told = {"records": records, "receipts": receipts, "estimates": estimates}
    return sealed(page.read_text(), canonical_json(data.model_copy(update=told).model_dump(mode="json")))


@pytest.mark.parametrize(
    "changes",
    [
        {"started_at": "zzz"},
        {"environment": {"cores": "\u00b2"}},
        {"environment": {"mlx": ""}, "started_at": "2026-13-45T99:99:99+00:00"},
    ],
)
def test_values_that_no_computation_foresees_are_the_pages_fault(
    page: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    refused(tmp_path / "page.html", rehashed(page, changes))


def test_data_nested_deeper_than_any_reader_goes_is_the_pages_fault(page: Path, tmp_path: Path) -> None:
    what = refused(tmp_path / "page.html", sealed(page.read_text(), b"[" * 100_000 + b"]" * 100_000))
    assert str(tmp_path / "page.html") in what or "data" in what


@pytest.mark.parametrize(
    ("keep", "told"),
    [
        (lambda receipt: (receipt.cell, receipt.block) != (TREATED, 1), "0, 2"),
        (lambda receipt: (receipt.cell, receipt.block) != (TREATED, 2), "0, 1"),
        (lambda receipt: receipt.cell != TREATED, "none"),
    ],
)
def test_a_page_that_leaves_out_whole_blocks_is_refused_though_all_else_follows(
    page: Path, tmp_path: Path, keep: Callable[[BlockReceipt], bool], told: str
) -> None:
    what = refused(tmp_path / "page.html", redrawn(page, keep))
    assert f"the blocks of {TREATED}, it should be 0, 1, 2, and is {told}" in what


def test_a_cell_that_ran_on_until_the_result_was_welcome_is_refused(tmp_path: Path) -> None:
    """Its looks said that the first three blocks were enough."""
    case = TRUE_WORLDS[0]
    project, _ = run_chain(tmp_path, usual_study(blocks=4), case.world, [*controls(), case.claim])
    page = render_page(project)
    assert verify_page(page).records == 96
    one = read_embedded(page.read_text())
    wider = tuple(each.model_copy(update={"blocks": 3, "most_blocks": 4}) for each in one.study.comparisons)
    (tmp_path / "other.html").write_text(
        render_report(one.model_copy(update={"study": one.study.model_copy(update={"comparisons": wider})}))
    )
    what = refused(tmp_path / "other.html", redrawn(tmp_path / "other.html", lambda receipt: True))
    assert "it should be 0, 1, 2, and is 0, 1, 2, 3" in what


def test_a_block_whose_arms_ran_in_another_order_than_its_coin_says_is_refused(page: Path, tmp_path: Path) -> None:
    text = page.read_text()
    data = read_embedded(text)
    other_seed = data.model_copy(update={"study": data.study.model_copy(update={"seed": 4})})
    assert "the arm that the study's coin gives it" in refused(tmp_path / "page.html", render_report(other_seed))


def test_a_hash_in_a_receipt_is_caught(page: Path, tmp_path: Path) -> None:
    def edit(data: Any) -> None:
        data["receipts"][0]["parts"]["code"] = "0" * 64

    assert "receipt of block 0" in refused(tmp_path / "page.html", changed(page, edit))


def test_a_claim_that_was_softened_no_longer_fits_its_verdict(page: Path, tmp_path: Path) -> None:
    def edit(data: Any) -> None:
        data["verdicts"]["verdicts"][2]["claim"]["value"] = 0.2

    assert "scripted-claim" in refused(tmp_path / "page.html", changed(page, edit))


def of_another_version(data: Any) -> None:
    data["facts"]["report code (SHA-256)"] = "0" * 64


def refusal(path: Path, text: str) -> ReproError:
    path.write_text(text)
    with pytest.raises(ReproError) as caught:
        verify_page(path)
    assert caught.value.exit_code is Exit.VERIFICATION
    return caught.value


def test_a_page_names_the_code_that_made_it(page: Path) -> None:
    assert f"report code {report_code()[:12]}." in page.read_text()


def test_a_page_of_another_version_is_not_called_edited_when_its_numbers_are_right(page: Path, tmp_path: Path) -> None:
    found = refusal(tmp_path / "page.html", changed(page, of_another_version))
    assert "report code 000000000000" in found.what and f"report code {report_code()[:12]}" in found.what
    assert "recomputed from them and are equal" in found.why and "the version that made it" in found.next


def test_a_page_of_another_version_with_other_numbers_names_the_place_and_both_versions(
    page: Path, tmp_path: Path
) -> None:
    def edit(data: Any) -> None:
        of_another_version(data)
        data["estimates"]["cells"][1]["interval95"]["high"] += 0.01

    found = refusal(tmp_path / "page.html", changed(page, edit))
    assert "estimates.cells[pair-1024-speculative-keep0.2].interval95.high" in found.what
    assert "report code 000000000000" in found.why and "are not the same" in found.why


def test_a_page_whose_data_have_another_form_says_that_nothing_was_recomputed(page: Path, tmp_path: Path) -> None:
    def edit(data: Any) -> None:
        of_another_version(data)
        data["estimates"]["a field of later"] = 1

    found = refusal(tmp_path / "page.html", changed(page, edit))
    assert "a field of later" in found.what and "Nothing was recomputed" in found.why


def test_a_page_with_other_words_and_the_same_data_is_caught(page: Path, tmp_path: Path) -> None:
    text = page.read_text()
    assert "<script>" not in text
    assert "line " in refused(tmp_path / "page.html", text.replace("</body>", "<script>alert(1)</script></body>"))


@pytest.mark.parametrize(
    "edit, what",
    [
        (lambda data: data["records"][0]["prompt"].update(tokens=10**12), "more positions than a prompt has"),
        (
            lambda data: data["records"][0]["evidence"].update(kept_ranges=[[0, 10**15]]),
            "more positions than a prompt has",
        ),
        (
            lambda data: data["study"]["comparisons"][0].update(
                lengths=list(range(128, 2128)), keep=[0.1 + i / 10_000 for i in range(2000)]
            ),
            "more than 2,000 cells",
        ),
    ],
)
def test_a_page_made_to_exhaust_the_machine_is_refused_at_once(
    page: Path, tmp_path: Path, edit: Callable[[Any], None], what: str
) -> None:
    assert what in refused(tmp_path / "page.html", changed(page, edit))


def test_a_compressed_bomb_is_refused(page: Path, tmp_path: Path) -> None:
    assert "larger than 50 MB" in refused(tmp_path / "page.html", sealed(page.read_text(), b" " * 60_000_000))


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"<html></html>", b"{" * 100_000])
def test_what_is_no_page_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "page.html"
    path.write_bytes(content)
    with pytest.raises(ReproError):
        verify_page(path)


def test_a_page_larger_than_any_report_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "MAX_PAGE_BYTES", 1000)
    (tmp_path / "page.html").write_text(" " * 1001)
    with pytest.raises(ReproError, match="larger than 1,000 bytes"):
        verify_page(tmp_path / "page.html")


TABLES = ("blocks.parquet", "estimates.json", "trials.csv", "trials.parquet", "verdicts.json")


def test_the_tables_beside_a_page_are_held_against_it_and_named(page: Path, tmp_path: Path) -> None:
    assert verify_page(page).tables == TABLES
    told = CliRunner().invoke(app, ["verify", str(page)]).output
    assert all(name in told for name in TABLES)
    alone = Path(shutil.copy(page, tmp_path))
    assert verify_page(alone).tables == ()
    assert "The page alone was looked at" in CliRunner().invoke(app, ["verify", str(alone)]).output


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("kind", ["small", "large"])
def test_a_table_beside_a_page_that_was_edited_is_caught(
    page: Path, large: Path, tmp_path: Path, kind: str, name: str
) -> None:
    path = beside({"small": page, "large": large}[kind], tmp_path)
    table = path.parent / name
    content = table.read_bytes() if table.exists() else b"record\n"
    text = re.sub(rb"\d(?=\D*$)", lambda found: bytes([found[0][0] ^ 1]), content)  # the last digit
    table.write_bytes(content[: len(content) // 2] if name.endswith(".parquet") or text == content else text)
    assert name in refused(path, path.read_text())


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a study that is called large: its records lie beside it."""
    project, _ = run_case(TRUE_WORLDS[0], tmp_path_factory.mktemp("large"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specprefill_repro.report.data.LISTED_TRIALS", 10)
        return render_page(project)


def beside(large: Path, folder: Path) -> Path:
    return Path(shutil.copytree(large.parent, folder / "copy")) / large.name


def test_a_large_study_is_verified_from_the_files_beside_its_page(large: Path, page: Path) -> None:
    assert embedded(large.read_text())["records"] == []
    found = verify_page(large)
    assert found.beside == ("blocks.parquet", "estimates.json", "trials.parquet")
    small = verify_page(page)
    assert dataclasses.replace(found, beside=(), tables=()) == dataclasses.replace(small, tables=())
    assert set(small.tables) - set(found.tables) == {"trials.csv"}


def test_a_large_study_without_the_files_beside_its_page_is_refused(large: Path, tmp_path: Path) -> None:
    path = beside(large, tmp_path)
    (path.parent / "trials.parquet").unlink()
    assert "trials.parquet is missing" in refused(path, path.read_text())


@pytest.mark.parametrize("name", ["trials.parquet", "blocks.parquet", "estimates.json"])
def test_a_changed_byte_beside_the_page_is_caught(large: Path, tmp_path: Path, name: str) -> None:
    path = beside(large, tmp_path)
    content = bytearray((path.parent / name).read_bytes())
    content[len(content) // 2] ^= 1
    (path.parent / name).write_bytes(content)
    assert f"{name} is not the file that the page was made from" in refused(path, path.read_text())


def resealed(path: Path, name: str, content: bytes) -> str:
    """The page with another file beside it, and its hash made to fit everywhere."""
    before = hashlib.sha256((path.parent / name).read_bytes()).hexdigest()
    (path.parent / name).write_bytes(content)
    data = json.loads(json.dumps(embedded(path.read_text())))
    data["beside"][name] = hashlib.sha256(content).hexdigest()
    return sealed(path.read_text(), canonical_json(data)).replace(before, data["beside"][name])


def test_a_changed_second_beside_the_page_is_caught_though_all_hashes_are_made_to_fit(
    large: Path, tmp_path: Path
) -> None:
    path = beside(large, tmp_path)
    trials = Trials(read_table(path.parent / "trials.parquet", TrialRecord))
    records = trials.records()
    records[7] = records[7].model_copy(update={"seconds": records[7].seconds + 0.001})
    kept = resealed(path, "trials.parquet", parquet(trial_table(trials.ids(), records)))
    assert "row 8 is not the record" in refused(path, kept)
    ids = [content_id(record) for record in records]
    own = f"record 8 (trial {records[7].position + 1} of block {records[7].block} of {records[7].cell})"
    assert own in refused(path, resealed(path, "trials.parquet", parquet(trial_table(ids, records))))


def test_a_changed_pair_beside_the_page_is_caught_though_all_hashes_are_made_to_fit(
    large: Path, tmp_path: Path
) -> None:
    path = beside(large, tmp_path)
    data = json.loads((path.parent / "estimates.json").read_text())
    data["cells"][1]["pairs"][0]["log_ratio"] += 0.01
    assert "estimates.cells[pair-1024-speculative-keep0.2].pairs[number-1024-000].log_ratio" in refused(
        path, resealed(path, "estimates.json", canonical_json(data))
    )


def test_a_table_made_to_exhaust_the_machine_is_refused(large: Path, tmp_path: Path) -> None:
    path = beside(large, tmp_path)
    trials = Trials(read_table(path.parent / "trials.parquet", TrialRecord))
    first, *rest = trials.records()
    vast = first.model_copy(update={"prompt": first.prompt.model_copy(update={"tokens": 10**12})})
    ids = [content_id(vast), *trials.ids()[1:]]
    page = resealed(path, "trials.parquet", parquet(trial_table(ids, [vast, *rest])))
    assert "more tokens than a prompt has" in refused(path, page)


def test_a_number_beyond_any_integer_of_a_table_is_refused(page: Path, tmp_path: Path) -> None:
    edited = changed(page, lambda data: data["records"][0].update(position=10**30))
    assert "no number of a trial" in refused(tmp_path / "page.html", edited)


def test_nothing_of_mlx_is_needed(page: Path) -> None:
    program = (
        "import sys; sys.modules['mlx'] = sys.modules['mlx_lm'] = None\n"
        "from specprefill_repro.cli import app\napp(['verify', sys.argv[1]])"
    )
    done = subprocess.run([sys.executable, "-c", program, str(page)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "72 records, 6 cells and 3 verdicts recomputed" in done.stdout
