"""A table holds what its records held, to the last bit; and a file that does not is refused."""

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.files import content_id
from specprefill_repro.study.plan import Arm, ArmKind
from specprefill_repro.study.schema import Selection
from specprefill_repro.trials.schema import BlockReceipt, Evidence, MachineState, ServerEvidence, TrialRecord
from specprefill_repro.trials.table import (
    Trials,
    block_table,
    check_ids,
    parquet,
    parse_table,
    read_table,
    table_file,
    to_models,
    trial_table,
)
from synthetic_records import demo_study, synthetic_study_records

MADE = synthetic_study_records(demo_study(blocks=1), 1)

numbers = st.floats(allow_nan=False, allow_infinity=False)
whole = st.integers(-(2**63), 2**63 - 1)
words = st.text(max_size=20)
states = st.builds(
    MachineState,
    load_1min=numbers,
    swap_out_bytes=whole,
    available_bytes=whole,
    cpu_mhz=st.none() | numbers,
    other_cpu_percent=st.none() | numbers,
)
evidence = st.builds(
    Evidence,
    **{name: whole for name, field in Evidence.model_fields.items() if field.annotation is int},
    kept_ranges=st.lists(st.tuples(whole, whole), max_size=3).map(tuple),
    rotary_modules_expected=st.none() | whole,
    look_ahead_tokens=st.lists(whole, max_size=3).map(tuple),
    needle_kept=numbers,
)
server_evidence = st.builds(
    ServerEvidence,
    **{name: whole for name, field in ServerEvidence.model_fields.items() if field.annotation is int},
    keep_logged=st.none() | numbers,
    threshold_logged=st.none() | whole,
    cached_tokens=st.none() | whole,
    lines=st.lists(words, max_size=3).map(tuple),
    server_seconds=st.dictionaries(words, numbers, max_size=2),
)
arms = st.builds(Arm, kind=st.sampled_from(ArmKind), keep=numbers, selection=st.none() | st.just(Selection()))
changes = st.fixed_dictionaries(
    {
        "requested": arms,
        "evidence": evidence | server_evidence,
        "phases": st.none() | st.just(MADE.records[0].phases),
        "load_seconds": st.none() | numbers,
        "before": states,
        "seconds": numbers,
        "answer_text": words,
        "draft": st.none() | words,
        "environment": st.dictionaries(words, words, max_size=3),
    }
)


@settings(deadline=None, max_examples=60, phases=[Phase.generate])
@given(st.lists(changes, max_size=4))
def test_records_come_back_as_they_were(made: list[dict[str, object]]) -> None:
    records = [MADE.records[0].model_copy(update=change) for change in made]
    trials = Trials.of_records(records)
    file = parquet(trials.table)
    back = Trials(parse_table(Path("x"), file, TrialRecord))
    assert back.records() == records and back.ids() == [content_id(record) for record in records]
    check_ids(back)


def test_receipts_come_back_as_they_were() -> None:
    void = MADE.receipts[0].model_copy(update={"void": "the worker ended", "records": (), "attempts": ("a", "b")})
    receipts = [*MADE.receipts, void]
    assert to_models(parse_table(Path("x"), parquet(block_table(receipts)), BlockReceipt), BlockReceipt) == receipts


def test_a_file_that_is_written_cell_by_cell_holds_all_cells(tmp_path: Path) -> None:
    cells = list(dict.fromkeys(record.cell for record in MADE.records))
    with table_file(tmp_path / "trials.parquet", TrialRecord) as add:
        for cell in [*cells, "one without records"]:
            records = [record for record in MADE.records if record.cell == cell]
            add(trial_table([content_id(record) for record in records], records))
    trials = Trials(read_table(tmp_path / "trials.parquet", TrialRecord))
    assert trials.records() == MADE.records
    assert [r for cell in cells for r in trials.of_cell(cell)] == MADE.records and trials.of_cell("none") == []


def test_a_file_that_could_not_be_finished_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), table_file(tmp_path / "trials.parquet", TrialRecord) as add:
        add(trial_table(["a"], MADE.records[:1]))
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_frame_has_lengths_for_lists() -> None:
    frame = Trials.of_records(MADE.records).frame(["evidence.kept_ranges", "seconds"])
    assert frame["evidence.kept_ranges"].tolist() == [len(record.evidence.kept_ranges) for record in MADE.records]
    assert frame["seconds"].tolist() == [record.seconds for record in MADE.records]


def test_a_row_that_is_not_its_record_is_named() -> None:
    ids = [content_id(record) for record in MADE.records[:3]]
    changed = [*MADE.records[:2], MADE.records[2].model_copy(update={"seconds": 1.0})]
    with pytest.raises(ValueError, match="row 3 is not the record"):
        check_ids(Trials(trial_table(ids, changed)))


@pytest.mark.parametrize("content", [b"", b"PAR1" * 10, parquet(pa.table({"a": [1]})), parquet(block_table([]))])
def test_what_is_no_table_of_trials_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.parquet").write_bytes(content)
    with pytest.raises(ReproError) as caught:
        read_table(tmp_path / "x.parquet", TrialRecord)
    assert caught.value.exit_code is Exit.VERIFICATION
