import copy
import dataclasses
import math

import pytest
import torch

from reflectune.core.errors import UserError
from reflectune.models.loading import Loaded
from reflectune.models.prefix import engine as engine_module
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.models.prefix.forward import Forward
from reflectune.models.prefix.packed import PackedReader
from reflectune.models.rendering.renderer import Rendered
from reflectune.models.schemes.passages import PassageScheme

FAMILIES = ["llava", "qwen2_vl"]
COUNTS = [3, 0, 1, 5]  # passages of each question: ragged, and none
QUESTIONS = ["When was the tower built?", "Who?", "What is it made of, and who drew this tower of oak?", "Made of?"]
SIZES = [(80, 60), (64, 64), (30, 120), (200, 40)]


@pytest.fixture(scope="module", params=FAMILIES)
def loaded(request, make):
    return make.loaded(request.param)


@pytest.fixture(params=[False, True], ids=["levels", "packed"], autouse=True)
def packed(request, monkeypatch) -> bool:
    """Read in packed rows, as on a GPU."""
    if request.param:
        monkeypatch.setattr(engine_module, "packed_for", lambda *known, **_: PackedReader(*known, compile_after=None))
    return request.param


@pytest.fixture(scope="module")
def prefixes(loaded, make) -> list[Rendered]:
    images = [make.image(seed, size) for seed, size in enumerate(SIZES)]
    return [loaded.renderer.prefix(q, image) for q, image in zip(QUESTIONS, images, strict=True)]


@pytest.fixture(scope="module")
def branches(loaded, make) -> list[list[list[int]]]:
    def branch(q: int, k: int) -> list[int]:
        passage = make.passage(f"Number {q}{k}." + " It is made of oak." * ((q + k) % 4))
        return PassageScheme.of(loaded.renderer).passage_branch(loaded.renderer, passage)

    return [[branch(q, k) for k in range(count)] for q, count in enumerate(COUNTS)]


def gate_ids(loaded: Loaded) -> list[int]:
    return [loaded.renderer.token_id(role) for role in ("retrieve", "no_retrieve")]


def test_an_answer_ends_with_the_end_token_which_counts_in_the_score(loaded, prefixes, plain):
    engine = PrefixEngine(loaded)
    head, end = loaded.model.get_output_embeddings(), loaded.renderer.end_token_id
    kept = head.weight.detach().clone()
    with torch.no_grad():
        hidden = Forward(loaded.model).prefill(prefixes).hidden
        head.weight[end] = 20 * hidden.mean(0) / hidden.mean(0).norm()  # makes most rows end at once
    try:
        order = [2, 0, 1, 3]
        answers = engine.generate(engine.read(prefixes), [(q, 0) for q in order], max_new_tokens=5)
        expected = [plain.answer(loaded, prefixes[q], [], steps=5) for q in order]
    finally:
        with torch.no_grad():
            head.weight.copy_(kept)
    assert any(answer.finished for answer in answers)
    for answer, (ids, log_probs) in zip(answers, expected, strict=True):
        assert answer.token_ids == ids
        assert answer.finished == (ids[-1] == end)
        assert answer.score == pytest.approx(math.exp(sum(log_probs) / len(log_probs)), rel=1e-3)
        assert answer.text == loaded.renderer.decode(ids[:-1] if answer.finished else ids)


def test_a_budget_bounds_what_is_read_at_once_and_kept(loaded, prefixes, branches, packed):
    engine = PrefixEngine(loaded, token_budget=100)
    state = engine.branch(engine.read(prefixes), branches)
    if packed:
        rows = {id(sequence.row): sequence.row for sequence in state.cache.values()}.values()
        assert all(len(row.segments) == 1 or len(row.ids) <= 100 for row in rows)
        kept = [row.past + len(row.ids) for row in rows if row.cache]
        assert 0 < sum(kept) <= 400 < sum(len(row.ids) for row in rows)
        return
    levels = [rows.last_level for rows in [*state.prefixes.cache.batches, *state.cache.batches]]
    assert all(len(level.real) == 1 or level.real.numel() <= 100 for level in levels)
    read = [rows.last_level for rows in state.cache.batches]
    kept = [level.real.numel() for level in read if level.cache]
    assert 0 < sum(kept) <= 400 < sum(level.real.numel() for level in read)


@pytest.mark.parametrize("loaded", ["llava"], indirect=True)
def test_answering_leaves_the_state_as_it_is(loaded, prefixes, branches):
    engine = PrefixEngine(loaded)
    state = engine.branch(engine.read(prefixes), branches)
    first = engine.generate(state, [(0, 1), (3, 2)], max_new_tokens=3)
    assert engine.generate(state, [(0, 1), (3, 2)], max_new_tokens=3) == first
    assert engine.generate(state, [(3, 2)], max_new_tokens=3)[0].token_ids == first[1].token_ids


@pytest.mark.parametrize("loaded", ["llava"], indirect=True)
def test_nothing_in_nothing_out(loaded, prefixes):
    engine = PrefixEngine(loaded)
    assert engine.read([]).probabilities([1, 2]).shape == (0, 2)
    state = engine.branch(engine.read(prefixes), [[]] * 4)
    assert [probabilities.shape for probabilities in state.probabilities([1])] == [(0, 1)] * 4
    assert engine.generate(state, []) == []


@pytest.mark.parametrize("loaded", ["llava"], indirect=True)
def test_too_long_a_row_is_refused_not_cut(loaded, prefixes, branches):
    engine = PrefixEngine(loaded)
    engine.max_length = len(prefixes[0].ids) + 10
    with pytest.raises(UserError, match="but the model takes"):
        engine.branch(engine.read(prefixes[:1]), branches[:1])
    engine.max_length = 10
    with pytest.raises(UserError, match="never truncated"):
        engine.read(prefixes[:1])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_that_computes_no_numbers_is_refused(make, family):
    """A finite weight may be so large that what follows overflows; every answer would be the same token."""
    loaded = make.loaded(family)
    with torch.no_grad():
        loaded.model.model.language_model.norm.weight.fill_(3e38)
    engine = PrefixEngine(loaded)
    prefixes = engine.read([loaded.renderer.prefix(QUESTIONS[0], make.image(0, SIZES[0]))])
    with pytest.raises(UserError, match="NaN in float32"):
        prefixes.probabilities(gate_ids(loaded))
    (answer,) = engine.generate(prefixes, [(0, 0)], max_new_tokens=2)
    with pytest.raises(UserError, match="NaN in float32"):
        engine.check_numbers(answer.score)


def test_gates_of_a_bfloat16_model_are_read_in_float32(loaded, prefixes, branches, packed):
    model = copy.deepcopy(loaded.model).bfloat16()
    engine = PrefixEngine(dataclasses.replace(loaded, model=model))
    head = model.get_output_embeddings().weight.detach().float()
    state = engine.branch(engine.read(prefixes), branches)
    yes, no = gate_ids(loaded)
    for row, (positive, negative) in enumerate(state.probabilities([yes, no])[3].log().tolist()):
        if packed:
            hidden = state.cache[3, row].states[-1].float()
        else:
            batch, place = state.cache.locations[3, row]
            hidden = state.cache.batches[batch].hidden[place].float()
        assert positive - negative == pytest.approx(float(hidden @ (head[yes] - head[no])), abs=1e-5)
