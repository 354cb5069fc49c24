"""How much is computed: passes, tokens for which head and last layer are computed, and what stays in memory."""

import io

import mlx.core as mx
import pytest

from specprefill_repro.prefill import dense, speculative
from specprefill_repro.prefill.architectures import structure
from specprefill_repro.prefill.arms import Models, Request
from specprefill_repro.prefill.chunked import new_cache
from specprefill_repro.prefill.look_ahead import Attention, look_ahead
from specprefill_repro.prefill.scoring import token_scores
from specprefill_repro.study.plan import Arm, ArmKind
from specprefill_repro.study.schema import Selection
from tiny_architectures import build, prompt

STEP, LENGTH = 16, 50
PASSES = [16, 16, 16, 2]


class Recorded:
    """Notes what a module was given and gave, call by call."""

    def __init__(self, owner, name):
        self.owner, self.name, self.original = owner, name, getattr(owner, name)
        self.inputs, self.outputs = [], []
        setattr(owner, name, self)

    def __call__(self, x, *args, **kwargs):
        output = self.original(x, *args, **kwargs)
        self.inputs.append(x)
        self.outputs.append(output)
        return output

    def restore(self):
        setattr(self.owner, self.name, self.original)


def is_computed(array):
    """An array that was evaluated has let go of what it is computed from."""
    graph = io.StringIO()
    mx.export_to_dot(graph, array)
    return graph.getvalue().count("label") <= 1


@pytest.fixture
def model():
    return build("glm4")


@pytest.fixture
def watched(model):
    """The head, the MLPs of the last two layers, and the layers' attention outputs."""
    parts = {
        "head": Recorded(model, "lm_head"),
        "last": Recorded(model.layers[-1], "mlp"),
        "before": Recorded(model.layers[-2], "mlp"),
    }
    yield parts
    for part in parts.values():
        part.restore()


def tokens_read(part):
    return [x.shape[1] for x in part.inputs]


def tokens_computed(part):
    return [output.shape[1] for output in part.outputs if is_computed(output)]


def test_an_array_tells_whether_it_was_computed():
    array = mx.ones((3, 3)) @ mx.ones((3, 3))
    assert not is_computed(array)
    mx.eval(array)
    assert is_computed(array)


@pytest.mark.parametrize("queries", [1, 2, 5])
def test_the_last_prompt_token_s_query_takes_no_pass_of_its_own_and_the_last_query_no_head(model, watched, queries):
    layers, decoded = look_ahead(model, prompt()[0][:LENGTH], new_cache(model), STEP, queries, frozenset())
    assert layers[0].queries.shape[2] == queries and len(decoded) == queries - 1
    assert tokens_read(watched["before"]) == [*PASSES, *[1] * (queries - 1)]
    # One head for each decoded token. With the last query nothing above the last layer's attention is computed.
    assert tokens_computed(watched["head"]) == [1] * (queries - 1)
    above = [PASSES[-1], *[1] * (queries - 2)] if queries > 1 else []
    assert tokens_computed(watched["last"]) == above


def test_with_one_query_nothing_is_computed_above_the_last_layer_that_scores(monkeypatch):
    draft = build("gpt_oss")
    found = structure(draft)
    only_first = tuple(layer for layer in found.attention if layer.window is None)[:1]
    assert only_first[0].index < len(draft.layers) - 1
    monkeypatch.setattr(
        "specprefill_repro.prefill.look_ahead.scoring_layers", lambda found, tokens: [only_first[0].index]
    )
    cache = new_cache(draft)
    above = Recorded(draft.layers[only_first[0].index + 1], "mlp")
    keys_above = cache[only_first[0].index + 1]
    layers, _ = look_ahead(draft, prompt()[0][:LENGTH], cache, STEP, 1, frozenset())
    above.restore()
    assert len(layers) == 1 and layers[0].keys.shape[2] == LENGTH
    assert len(above.outputs) == len(PASSES) and tokens_computed(above) == []
    assert not is_computed(keys_above.keys)


def test_the_head_is_computed_for_the_last_token_alone_and_the_last_layer_in_the_last_pass_alone(model, watched):
    request = Request(tuple(prompt()[0][:LENGTH]), Arm(kind=ArmKind.DENSE), STEP, "")
    with dense.prefill(Models(model, None), request):
        pass
    assert tokens_read(watched["last"]) == PASSES
    assert tokens_computed(watched["last"]) == PASSES[-1:]
    assert tokens_read(watched["head"]) == [1] * len(PASSES)
    assert tokens_computed(watched["head"]) == [1]


def test_the_target_reads_the_kept_tokens_once(model, watched):
    selection = Selection(head=4, tail=4, chunk=8, look_ahead=1)
    arm = Arm(kind=ArmKind.SPECULATIVE, keep=0.4, selection=selection)
    request = Request(tuple(prompt()[0][:LENGTH]), arm, STEP, "")
    with speculative.prefill(Models(model, build("glm4")), request) as prefilled:
        kept = len(prefilled.kept)
    assert kept < LENGTH
    assert sum(tokens_read(watched["last"])) == kept
    assert tokens_computed(watched["head"]) == [1]


def test_the_draft_s_keys_are_free_to_go_when_the_target_begins(model, monkeypatch):
    alive = []

    def check(models, request, kept, marks):
        alive.append(mx.get_active_memory() - before)
        raise StopIteration

    draft = build("glm4")
    mx.eval(model.parameters(), draft.parameters())
    monkeypatch.setattr(speculative, "prefill_kept", check)
    ids = tuple(prompt()[0]) * 20
    request = Request(ids, Arm(kind=ArmKind.SPECULATIVE, keep=0.4, selection=Selection(look_ahead=2)), 64, "")
    before = mx.get_active_memory()
    with pytest.raises(RuntimeError), speculative.prefill(Models(model, draft), request):
        pass
    keys = len(ids) * draft.args.num_key_value_heads * draft.args.head_dim * 4
    assert len(alive) == 1 and alive[0] < keys


def test_scoring_copies_no_key_and_makes_no_square_of_the_prompt():
    tokens, heads, queries = 3000, 8, 4
    layer = Attention(
        queries=mx.random.normal((1, heads, queries, 64)), keys=mx.random.normal((1, 2, tokens, 64)), scale=0.1
    )
    mx.eval(layer.queries, layer.keys)
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    token_scores([layer] * 3, 13)
    weights = heads * queries * tokens * 4
    expanded_keys = heads * tokens * 64 * 4
    assert mx.get_peak_memory() - before < 9 * weights < expanded_keys
