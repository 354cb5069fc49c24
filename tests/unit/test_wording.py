"""A number and its noun agree."""

import pytest

from specprefill_repro.wording import counted


@pytest.mark.parametrize(
    ("number", "what", "text"),
    [
        (1, "published figure", "1 published figure"),
        (0, "published figure", "0 published figures"),
        (1, "expectation of this study", "1 expectation of this study"),
        (2, "expectation of this study", "2 expectations of this study"),
        (1024, "trial", "1,024 trials"),
    ],
)
def test_a_number_and_its_noun_agree(number: int, what: str, text: str) -> None:
    assert counted(number, what) == text
