"""Files: nothing half-written, nothing too large, nothing clever in YAML."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specprefill_repro.cli import calibrate
from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.files import (
    atomic_file,
    canonical_json,
    content_id,
    read_limited,
    read_model,
    read_yaml,
    read_yaml_model,
    sha256_file,
    users_path,
    write_all,
    write_json,
    write_text,
)
from specprefill_repro.gate.schema import Check
from specprefill_repro.project import Project
from specprefill_repro.publish.command import destination_of
from specprefill_repro.study.given import give_engine

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(plain)
def test_content_ids_do_not_depend_on_the_order_of_keys(value):
    def reverse(part):
        if isinstance(part, dict):
            return {key: reverse(part[key]) for key in reversed(list(part))}
        return [reverse(item) for item in part] if isinstance(part, list) else part

    assert content_id(value) == content_id(reverse(value))
    assert json.loads(canonical_json(value)) == value


def test_hash_of_a_file_equals_hashlib(tmp_path):
    content = os.urandom(5_000_000)
    (tmp_path / "file").write_bytes(content)
    blocks = []
    assert sha256_file(tmp_path / "file", blocks.append) == hashlib.sha256(content).hexdigest()
    assert sum(blocks) == len(content)


def test_an_error_while_writing_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "record.json"
    write_text(path, "old")
    with pytest.raises(KeyboardInterrupt), atomic_file(path) as file:
        file.write(b"half of the new")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_kill_9_while_writing_leaves_the_old_file(tmp_path):
    path = tmp_path / "record.json"
    write_text(path, "old")
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from specprefill_repro.files import atomic_file\n"
        "with atomic_file(Path(sys.argv[1])) as file:\n"
        "    file.write(b'x' * 1000000)\n"
        "    file.flush()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert done.returncode == -9
    assert path.read_text() == "old"


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="needs root to mount a small file system")
def test_a_full_disk_is_explained_and_the_old_file_stays(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", disk], check=False).returncode != 0:
        pytest.skip("mounting a tmpfs is not allowed here")
    try:
        write_text(disk / "record.json", "old")
        with pytest.raises(ReproError, match="disk is full") as error:
            write_text(disk / "record.json", "x" * 1_000_000)
        assert error.value.exit_code is Exit.ENVIRONMENT
        assert (disk / "record.json").read_text() == "old"
        assert [path.name for path in disk.iterdir()] == ["record.json"]
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_folder_that_may_not_be_written_is_explained(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    # Root may write anywhere, so the refusal of the system is simulated.
    monkeypatch.setattr("tempfile.mkstemp", refuse)
    with pytest.raises(ReproError, match="Permission denied") as error:
        write_text(tmp_path / "file", "x")
    assert error.value.exit_code is Exit.ENVIRONMENT


def test_of_several_files_none_is_replaced_before_all_can_be(tmp_path):
    page, table = tmp_path / "page", tmp_path / "table"
    write_all({page: b"old", table: b"old"})
    (tmp_path / "no-folder").write_text("")
    with pytest.raises(OSError):
        write_all({page: b"new", table: b"new", tmp_path / "no-folder" / "file": b"new"})
    assert (page.read_bytes(), table.read_bytes()) == (b"old", b"old")
    assert {path.name for path in tmp_path.iterdir()} == {"page", "table", "no-folder"}
    write_all({page: b"new", table: b"new"})
    assert (page.read_bytes(), table.read_bytes()) == (b"new", b"new")


def yaml_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    return path


def test_an_alias_bomb_is_refused_at_once(tmp_path):
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}]\n"
        for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    with pytest.raises(ReproError, match="aliases"):
        read_yaml(yaml_file(tmp_path, bomb))


@pytest.mark.parametrize(
    "text",
    [
        "a: !!python/object/apply:os.system [id]",
        "a: 1\na: 2",
        "a: [1, 2",
        "? [1, 2]\n: 3",
        "\x00",
        "- " * 3000,
        "a: " + "[" * 3000,
        "? " * 300_000,
        "a: " + "[" * 60 + "]" * 60,
        "*a",
        "seed: " + "9" * 5000,
        "seed: 0x" + "9" * 5000,
        "seed: 1" + ":1" * 100_000,
        "0x_: 1",
        "- 0b_",
        "a: !!int abc",
        "a: !!int ''",
        "a: !!float abc",
        "a: !!bool maybe",
        "a: !!timestamp foo",
        "a: !!timestamp 2026-99-99",
        "a: !!map foo",
        "a: !!set foo",
        "a: !!omap foo",
        "!!map foo",
    ],
)
def test_yaml_that_is_not_plain_is_refused_without_a_traceback(tmp_path, text):
    with pytest.raises(ReproError, match="not YAML"):
        read_yaml(yaml_file(tmp_path, text))


@given(
    st.sampled_from("int float bool null timestamp binary str seq map set omap pairs".split()),
    st.text("0123456789abxo_:.-+ {}[],'TZ?", max_size=12),
)
def test_whatever_a_tag_is_given_is_read_or_refused(tmp_path_factory, tag, text):
    path = tmp_path_factory.getbasetemp() / "tagged.yaml"
    path.write_text(f"a: !!{tag} {text}\n")
    try:
        read_yaml(path)
    except ReproError as error:
        assert str(path) in error.what and error.exit_code is Exit.BAD_INPUT


def test_the_home_of_nobody_is_explained(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert users_path("~/engine") == tmp_path / "engine"
    with pytest.raises(ReproError, match="nobody on this machine"):
        users_path("~no-such-user/x")
    for give in (
        lambda: destination_of(Project(tmp_path), "~no-such-user/x", None),
        lambda: give_engine(Project(tmp_path), "omlx=~no-such-user/x"),
    ):
        with pytest.raises(ReproError, match="nobody on this machine"):
            give()


def test_a_negative_seed_is_refused():
    with pytest.raises(ReproError, match="-5 is negative"):
        calibrate(-5)


def test_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "study.yaml")
    with pytest.raises(ReproError, match="not a regular file"):
        read_yaml(tmp_path / "study.yaml")
    with pytest.raises(ReproError, match="not a regular file"):
        read_model(Path("/dev/zero"), Check)


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(ReproError, match="not a regular file"):
        read_limited(tmp_path, 10)


@pytest.mark.parametrize("size", [0, 1, 99, 100])
def test_a_file_is_read_up_to_the_limit_whole(tmp_path, size):
    content = os.urandom(size)
    (tmp_path / "file").write_bytes(content)
    assert read_limited(tmp_path / "file", 100) == content


@pytest.mark.parametrize("size", [101, 102, 100_000])
def test_one_byte_more_than_the_limit_is_too_many(tmp_path, size):
    (tmp_path / "file").write_bytes(bytes(size))
    with pytest.raises(ReproError, match="larger than 100 bytes"):
        read_limited(tmp_path / "file", 100)


def test_a_file_without_a_size_is_read_to_its_end():
    # Files of /proc are said to have no bytes.
    assert read_limited("/proc/self/stat", 10_000).split()[0] == str(os.getpid()).encode()


def test_a_large_file_is_refused_unread(tmp_path):
    with pytest.raises(ReproError, match="larger than"):
        read_yaml(yaml_file(tmp_path, "a: " + "x" * 10_000_000))


def test_a_date_stays_text(tmp_path):
    assert read_yaml(yaml_file(tmp_path, "day: 2026-03-20")) == {"day": "2026-03-20"}


def test_a_missing_file_is_explained(tmp_path):
    with pytest.raises(ReproError, match="Could not read"):
        read_yaml(tmp_path / "nothing.yaml")
    with pytest.raises(ReproError, match="Could not read"):
        read_yaml(tmp_path)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("{name: a, passed: yes please, measured: x, required: x}", "passed"),
        ("{name: a, passed: true, measured: x}", "required"),
        ("{name: a, passed: true, measured: x, required: x, extra: 1}", "extra"),
        ("[1, 2]", "the file"),
        ("{name: a, passed: true, measured: .nan, required: x}", "nan"),
    ],
)
def test_a_wrong_shape_names_the_key(tmp_path, text, place):
    with pytest.raises(ReproError) as error:
        read_yaml_model(yaml_file(tmp_path, text), Check)
    assert place in error.value.what.lower()


def test_what_is_written_is_read_back_equal(tmp_path):
    check = Check(name="a", passed=True, measured="1", required="1", guards=(1, 2))
    write_json(tmp_path / "check.json", check)
    assert read_model(tmp_path / "check.json", Check) == check


def test_a_damaged_file_is_explained(tmp_path):
    (tmp_path / "check.json").write_text('{"name": "a", "pas')
    with pytest.raises(ReproError, match="does not hold a valid Check") as error:
        read_model(tmp_path / "check.json", Check)
    assert error.value.exit_code is Exit.VERIFICATION
