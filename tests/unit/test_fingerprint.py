"""The fingerprint of code changes with what can change a number, and its pieces name what that was."""

from pathlib import Path

import pytest

from specprefill_repro import fingerprint
from specprefill_repro.changes import changes

USED = """from specprefill_repro import used

WIDTH = 3

def begin():
    return used.Chooser().best()
"""
MODULE = """\"\"\"Chooses.\"\"\"

class Chooser:
    \"\"\"One that chooses.\"\"\"

    limit: int = 2

    def best(self):
        return self.limit  # the best there is

    def worst(self):
        return 0
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`package(number, text)`: fingerprint and pieces of a package whose module `used` has that text."""

    def of(number: int, text: str) -> tuple[str, dict[str, dict[str, str]]]:
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "begin.py").write_text(USED)
        (folder / "used.py").write_text(text)
        monkeypatch.setattr(fingerprint, "__file__", str(folder / "fingerprint.py"))
        modules = ["specprefill_repro.begin"]
        return fingerprint.code_fingerprint(modules), fingerprint.definitions(modules)

    return of


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("return self.limit ", "return self.limit + 1 ", ["used.py: function Chooser.best changed"]),
        ("limit: int = 2", "limit: int = 3", ["used.py: class Chooser changed"]),
        (
            "def worst",
            "def least",
            ["used.py: function Chooser.worst removed", "used.py: function Chooser.least added"],
        ),
        ("class Chooser:", "import ast\nMOST = 4\nclass Chooser:", ["used.py: imports added", "used.py: MOST added"]),
        ("class Chooser:", "print()\nclass Chooser:", ["used.py: other statements added"]),
        ("# the best there is", "# another comment", []),
        ("One that chooses.", "Another docstring.", []),
    ],
)
def test_the_pieces_name_what_changed_and_nothing_when_the_fingerprint_stays(package, old, new, said):
    before, pieces = package(1, MODULE)
    after, others = package(2, MODULE.replace(old, new))
    assert list(changes(pieces, others)) == said
    assert (before == after) == (said == [])


def test_a_module_that_is_not_imported_does_not_count(package):
    assert package(1, MODULE)[1].keys() == {"begin.py", "used.py"}
