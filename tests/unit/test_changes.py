"""What changed is said in words, place by place, and nothing is said of what did not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specprefill_repro.changes import changes

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ({"treated": {"keep": 0.2}}, {"treated": {"keep": 0.3}}, ["treated: keep 0.2 -> 0.3"]),
        (
            {"mlx": "0.30.1", "a": "1"},
            {"mlx": "0.31.0", "b": "2"},
            ["mlx 0.30.1 -> 0.31.0", "a removed (1)", "b added (2)"],
        ),
        ({"perplexity": False}, {"perplexity": True}, ["perplexity no -> yes"]),
        ([{"blocks": 3}, {"blocks": 1}], [{"blocks": 4}], ["number 1: blocks 3 -> 4", "number 2 removed"]),
        # By id: one card more changes no other.
        ([{"id": "b", "value": 1}], [{"id": "a", "value": 9}, {"id": "b", "value": 2}], ["b: value 1 -> 2", "a added"]),
        ([{"id": "a"}, {"id": "b"}], [{"id": "b"}, {"id": "a"}], ["in another order"]),
        ([], [{"path": "w", "sha256": "0" * 64}], ["w added"]),
        ({"w": "1" * 64}, {"w": "2" * 64}, ["w 111111111111 -> 222222222222"]),
        (
            {"prefill/selection.py": {"function choose_chunks": "0" * 16}},
            {"prefill/selection.py": {"function choose_chunks": "1" * 16, "LIMIT": "2" * 16}},
            ["prefill/selection.py: function choose_chunks changed", "prefill/selection.py: LIMIT added"],
        ),
        (["a"], ["a", "b"], ["[a] -> [a, b]"]),
    ],
)
def test_a_change_is_named_with_its_place_and_both_values(old, new, said):
    assert list(changes(old, new)) == said


@given(JSON, JSON)
def test_something_is_said_exactly_when_something_changed(old, new):
    assert bool(list(changes(old, new))) == (old != new)
    assert list(changes(old, old)) == []
