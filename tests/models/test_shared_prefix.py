"""Every supported family: what is computed over a shared prefix is what independent rows compute."""

import contextlib
import copy
import functools
import pickle
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel

from reflectune.core.errors import UnusableInput, UserError
from reflectune.models.attention import shared as shared_attention
from reflectune.models.attention import tree_mask as tree_attention
from reflectune.models.attention.collation import TreeCollator, loss_terms
from reflectune.models.attention.images import first_equal
from reflectune.models.attention.packed import pad_to_bucket
from reflectune.models.attention.tree import IGNORE, Segment, Tree
from reflectune.models.prefix import engine as engine_module
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.models.prefix.packed import PackedReader
from reflectune.models.rendering.renderer import Rendered
from reflectune.models.weights.spreading import spread
from reflectune.train.weights.parameters import freeze_tower, recompute_layers, tower_of
from tests.narrow_models import plain_inputs, plain_rows

IMAGE, VOCABULARY = 3, 120
TEXT = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
TEXT |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
ENDS = {"bos_token_id": 1, "eos_token_id": 2}
ROPE = {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}}
VISION = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
CLIP = {"model_type": "clip_vision_model", **VISION, "num_hidden_layers": 3, "image_size": 16, "patch_size": 8}
QWEN_VISION = {"num_heads": 2, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}
QWEN_25_VISION = {**QWEN_VISION, "hidden_size": 16, "out_hidden_size": 32, "intermediate_size": 32}
QWEN_IDS = {"video_token_id": 4, "vision_start_token_id": 5, "vision_end_token_id": 6}
CONFIGS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "llava": (CLIP, {"model_type": "llama"}, {}),
    "llava_next": (CLIP, {"model_type": "llama"}, {"image_grid_pinpoints": [[16, 32], [32, 16], [32, 32]]}),
    "qwen2_vl": ({**QWEN_VISION, "depth": 2, "embed_dim": 16, "hidden_size": 32}, ENDS | ROPE, QWEN_IDS),
    "qwen2_5_vl": (
        {**QWEN_25_VISION, "depth": 2, "window_size": 16, "fullatt_block_indexes": [1]},
        ENDS | ROPE,
        QWEN_IDS,
    ),
    "qwen3_vl": (
        {**QWEN_25_VISION, "depth": 3, "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]},
        {**ENDS, **ROPE, "head_dim": 8},
        QWEN_IDS,
    ),
    "qwen3_5": (
        {**QWEN_25_VISION, "depth": 2, "num_position_embeddings": 16},
        {
            **ENDS,
            "rope_parameters": {**ROPE["rope_parameters"], "partial_rotary_factor": 1.0},
            "head_dim": 8,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
        },
        QWEN_IDS,
    ),
    "internvl": (
        {**VISION, "num_hidden_layers": 2, "image_size": [16, 16], "patch_size": [4, 4]},
        {**ENDS, "model_type": "qwen2"},
        {"image_seq_length": 4},
    ),
    "gemma3": (
        {**VISION, "num_hidden_layers": 2, "image_size": 16, "patch_size": 4},
        {
            **ENDS,
            "head_dim": 8,
            "query_pre_attn_scalar": 8,
            "layer_types": ["sliding_attention"] * 2 + ["full_attention"],
        },
        {"mm_tokens_per_image": 4},
    ),
}
"""Settings of a family's vision tower, of its language model, and of both together."""
FAMILIES = list(CONFIGS)


def build(family: str, *, tied: bool = False) -> PreTrainedModel:
    """A model of random weights, wide enough that its decisions differ."""
    torch.manual_seed(0)
    vision, text, more = copy.deepcopy(CONFIGS[family])
    text |= {**TEXT, "tie_word_embeddings": tied}
    more |= {"image_token_index" if family == "llava_next" else "image_token_id": IMAGE, "tie_word_embeddings": tied}
    config = AutoConfig.for_model(family, vision_config=vision, text_config=text, **more)
    model = AutoModelForImageTextToText.from_config(config, attn_implementation="sdpa")
    for parameter in model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.15)
    return model.eval()


def prefix(model: PreTrainedModel, images: int, words: int, *, seed: int = 0) -> Rendered:
    """Images of different shapes where the family has such, and words between and after them."""
    generator = torch.Generator().manual_seed(seed)
    ids, vision = [1], []
    for number in range(images):
        count, made = _image(model, seed + number, generator)
        before, after = ([5], [6]) if "qwen" in model.config.model_type else ([], [])
        ids += [*_words(1, generator), *before, *[IMAGE] * count, *after]
        vision.append(made)
    ids += _words(words, generator)
    names = vision[0] if vision else {}
    return Rendered(ids, list(ids), {name: _joined([made[name] for made in vision]) for name in names})


def branch(tokens: int, *, seed: int) -> list[int]:
    """Random words."""
    return _words(tokens, torch.Generator().manual_seed(1000 + seed))


GATES = [7, 8]
COUNTS = [3, 0, 5]
"""Passages of each question: ragged, and none."""


UNTIED = [(family, False) for family in FAMILIES]
TIED = [*UNTIED, ("llava", True), ("qwen2_vl", True)]
"""Families, and whether the token table is the output's matrix."""
THREE = ("llava", "qwen2_vl", "qwen3_5")


def cases(names: str, everywhere: list[Any], three: list[Any]) -> pytest.MarkDecorator:
    """Options for every model of `TIED`, and those that the untied ones of `THREE` are tried with too."""
    made = [
        (of, *options) for of in TIED for options in [*everywhere, *(three if of in UNTIED and of[0] in THREE else ())]
    ]
    return pytest.mark.parametrize(("model", *names.split()), made, indirect=["model"], ids=str)


built = functools.cache(build)
"""Models that tests leave as they are."""


@pytest.fixture(params=UNTIED, ids=str)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    family, tied = request.param
    return built(family, tied=tied)


@functools.cache
def plain_probabilities(model: PreTrainedModel, images: int, number: int, more: tuple[int, ...]) -> Tensor:
    """`next_probabilities` of one of `questions`, and of what follows it."""
    return next_probabilities(model, questions(model, images)[number], list(more))


@functools.cache
def plainly_learned(model: PreTrainedModel, make: Callable[[PreTrainedModel, int], list[Tree]], images: int) -> Any:
    """Return the loss and the gradients of the independent rows of trees."""
    return learned(model, plain_rows(model, make(model, images)))


def engine_of(model: PreTrainedModel, budget: int = 16_384, packed: bool = False, **settings: Any) -> PrefixEngine:
    """An engine on levels of keys and values, or on packed rows, as a GPU has it."""
    renderer = SimpleNamespace(end_token_id=2, decode=lambda ids: " ".join(map(str, ids)))
    with contextlib.ExitStack() as stack:
        if packed:
            reader = functools.partial(PackedReader, compile_after=None)
            stack.enter_context(mock.patch.object(engine_module, "packed_for", lambda *known, **_: reader(*known)))
        loaded = SimpleNamespace(model=model, renderer=renderer, name="test", calibration={})
        return PrefixEngine(loaded, budget, **settings)


def questions(model: PreTrainedModel, images: int) -> list[Rendered]:
    return [prefix(model, images, 3 + 4 * q, seed=q) for q in range(len(COUNTS))]


def branches() -> list[list[list[int]]]:
    return [[branch(2 + (3 * q + 2 * k) % 7, seed=10 * q + k) for k in range(count)] for q, count in enumerate(COUNTS)]


@torch.no_grad()
def next_probabilities(model: PreTrainedModel, question: Rendered, more: list[int]) -> Tensor:
    """Transformers' own reading of one whole row."""
    inputs = plain_inputs(model, [*question.ids, *more], question.vision)
    return model(**inputs, use_cache=False).logits[0, -1].softmax(-1)


@cases("images copied", [(1, 0), (2, "packed")], [(2, 80), (1, "packed")])
def test_gates_answers_and_scores_are_those_of_independent_rows(model, images, copied, monkeypatch):
    packed = copied == "packed"
    monkeypatch.setattr(shared_attention, "COPIED", 0 if copied == "packed" else copied)
    engine, prefixes, hung = engine_of(model, packed=packed), questions(model, images), branches()
    opened = engine.read(prefixes)
    assert len(opened.probabilities(GATES)) == len(prefixes)
    state = engine.branch(opened, hung)
    for q, question_gates in enumerate(opened.probabilities(GATES)):
        plain = plain_probabilities(model, images, q, ())[GATES]
        torch.testing.assert_close(question_gates, plain, rtol=1e-5, atol=1e-7)
    for q, (question_branches, branch_gates) in enumerate(zip(hung, state.probabilities(GATES), strict=True)):
        for one, gates in zip(question_branches, branch_gates, strict=True):
            plain = plain_probabilities(model, images, q, tuple(one))[GATES]
            torch.testing.assert_close(gates, plain, rtol=1e-4, atol=1e-7)
    rows = [(2, 4), (0, 1), (2, 0)]
    answers = engine.generate(state, rows, forced=[9], max_new_tokens=4)
    for (q, k), answer in zip(rows, answers, strict=True):
        written = [*hung[q][k], 9]
        for token, log_prob in zip(answer.token_ids, answer.log_probs, strict=True):
            expected = plain_probabilities(model, images, q, tuple(written))
            assert token == int(expected.argmax())
            assert log_prob == pytest.approx(float(expected[token].log()), abs=1e-4)
            written.append(token)
    scored = engine.score(state, rows, [[9, *answer.token_ids] for answer in answers])
    for answer, (_, *log_probs) in zip(answers, scored, strict=True):
        assert log_probs == pytest.approx(answer.log_probs, abs=1e-5)


def trees(model: PreTrainedModel, images: int) -> list[Tree]:
    """Questions whose last prefix token is supervised, as [Retrieval] is, and branches that are partly so."""
    made = []
    for question, question_branches in zip(questions(model, images), branches(), strict=True):
        labels = [*[IGNORE] * (len(question.ids) - 1), question.ids[-1]]
        hung = tuple(Segment.of(ids, [IGNORE, *ids[1:]] if k % 2 else ids) for k, ids in enumerate(question_branches))
        made.append(Tree(Segment.of(question.ids, labels), hung, question.vision))
    return made


def learned(model: PreTrainedModel, batches: Iterable[dict[str, Any]]) -> dict[str, Tensor]:
    """The summed loss, and every gradient."""
    model.zero_grad()
    losses = []
    for batch in batches:
        loss, _ = loss_terms(model, batch)
        loss.backward()
        losses.append(loss.detach())
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": torch.stack(losses).sum(), **gradients}


def differences(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> list[float]:
    assert actual.keys() == expected.keys()
    return [
        float((actual[name] - value).norm() / (value.norm() + 1e-3 * max(1.0, float(expected["loss"]) ** 0.5)))
        for name, value in expected.items()
    ]


@contextlib.contextmanager
def training(model: PreTrainedModel, checkpointing: bool) -> Iterator[None]:
    model.train()
    if checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    try:
        yield
    finally:
        model.activation_checkpointing_disable()
        model.eval()


@cases(
    "attention images checkpointing",
    [("by parts", 2, True), ("dense masks", 1, True), ("packed", 2, False)],
    [("by parts", 1, False), ("dense masks", 2, False), ("packed", 1, True)],
)
def test_loss_and_gradients_are_those_of_independent_rows(
    model, images, attention, checkpointing, monkeypatch, differentiable_flex
):
    expected = plainly_learned(model, trees, images)
    monkeypatch.setattr(tree_attention, "has_backward", lambda *kind: attention == "by parts")
    batch = TreeCollator(model)(trees(model, images))
    with training(model, checkpointing):
        actual = learned(model, [pad_to_bucket(batch, "cpu") if attention == "packed" else batch])
    assert max(differences(actual, expected)) < 1e-4


SLIDING: dict[str, dict[str, Any]] = {
    "llava": {"model_type": "mistral"},  # in all layers
    "internvl": {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 1},
}


@pytest.mark.parametrize("family", SLIDING)
def test_a_window_that_covers_a_row_is_exact_and_a_shorter_one_is_refused(family, monkeypatch):
    vision, text, more = CONFIGS[family]

    def windowed(tokens: int) -> PreTrainedModel:
        monkeypatch.setitem(CONFIGS, family, (vision, {**text, **SLIDING[family], "sliding_window": tokens}, more))
        return build(family)

    model, narrow = windowed(32), windowed(9)
    prefixes, hung = questions(model, 1), branches()
    expected = {
        (q, k): next_probabilities(model, prefixes[q], one)[GATES]
        for q, own in enumerate(hung)
        for k, one in enumerate(own)
    }
    plain = learned(model, plain_rows(model, trees(model, 1)))
    assert max(differences(learned(model, [TreeCollator(model)(trees(model, 1))]), plain)) < 1e-4
    far = next_probabilities(narrow, prefixes[2], hung[2][4])[GATES]
    assert not torch.allclose(far, expected[2, 4], rtol=1e-2)  # the narrow model sees less
    for packed in (False, True):
        engine = engine_of(model, packed=packed)
        state = engine.branch(engine.read(prefixes), hung)
        for (q, k), gates in expected.items():
            torch.testing.assert_close(state.probabilities(GATES)[q][k], gates, rtol=1e-4, atol=1e-7)
        assert len(engine.generate(state, [(2, 4)], max_new_tokens=3)) == 1
        with pytest.raises(UnusableInput, match="but the model takes 32"):
            engine.generate(state, [(2, 4)], max_new_tokens=32)
        with pytest.raises(UnusableInput, match="but the model takes 9"):
            engine_of(narrow, packed=packed).read(prefixes)


@pytest.mark.parametrize("by_parts", [True, False])
def test_a_broken_mask_is_noticed(by_parts, monkeypatch):
    monkeypatch.setattr(tree_attention, "has_backward", lambda *kind: by_parts)
    model = build("llava")
    made = trees(model, 1)
    expected = learned(model, plain_rows(model, made))
    batch = TreeCollator(model)(made)
    batch["attention_mask"] = batch["attention_mask"].clamp(max=1)  # all branches of a question as one
    assert max(differences(learned(model, [batch]), expected)) > 1e-2


@pytest.mark.parametrize("packed", [True, False])
def test_an_image_that_is_read_one_way_is_noticed(packed, differentiable_flex):
    model = build("gemma3")
    made = trees(model, 2)
    expected = learned(model, plain_rows(model, made))
    batch = TreeCollator(model)(made)
    batch["attention_mask"] = batch["attention_mask"][:, :, :1]
    assert max(differences(learned(model, [pad_to_bucket(batch, "cpu") if packed else batch]), expected)) > 1e-2


@pytest.fixture(scope="module", params=THREE)
def one_of_three(request: pytest.FixtureRequest) -> PreTrainedModel:
    return build(request.param)


@given(
    st.lists(st.lists(st.integers(1, 6), max_size=4), min_size=1, max_size=4),
    st.integers(1, 120),
    st.randoms(use_true_random=False),
    st.booleans(),
)
@settings(max_examples=5, deadline=None)
def test_neither_budget_nor_order_matters(one_of_three, lengths, budget, rng, packed):
    prefixes = [prefix(one_of_three, 1, 2 + q, seed=q) for q in range(len(lengths))]
    hung = [[branch(n, seed=10 * q + k) for k, n in enumerate(counts)] for q, counts in enumerate(lengths)]
    rows = [(q, k) for q, counts in enumerate(lengths) for k in range(len(counts))]

    def results(order: list[int], budget: int) -> tuple[Tensor, list[Tensor], list[Any]]:
        engine = engine_of(one_of_three, budget, packed)
        opened = engine.read([prefixes[q] for q in order])
        state = engine.branch(opened, [hung[q] for q in order])
        back = [order.index(q) for q in range(len(order))]
        answers = engine.generate(state, [(back[q], k) for q, k in rows], max_new_tokens=3)
        relevance = state.probabilities(GATES)
        return opened.probabilities(GATES)[back], [relevance[place] for place in back], answers

    order = list(range(len(lengths)))
    expected = results(order, 16_384)
    rng.shuffle(order)
    actual = results(order, budget)
    torch.testing.assert_close(actual[:2], expected[:2], rtol=1e-5, atol=1e-7)
    for answer, wanted in zip(actual[2], expected[2], strict=True):
        assert answer.token_ids == wanted.token_ids
        assert answer.score == pytest.approx(wanted.score, rel=1e-3)


def test_a_prefix_without_an_image_and_a_branch_beyond_the_context():
    model = build("llava")
    engine = engine_of(model)
    bare = Rendered([1, 20, 21], [1, 20, 21])
    (gates,) = engine.branch(engine.read([bare]), [[[30, 31]]]).probabilities(GATES)
    torch.testing.assert_close(gates[0], next_probabilities(model, bare, [30, 31])[GATES], rtol=1e-5, atol=1e-7)
    with pytest.raises(UserError, match="the model takes 512"):
        engine.branch(engine.read([bare]), [[branch(510, seed=0)]])


def about(model: PreTrainedModel, question: Rendered, words: list[int]) -> Rendered:
    """Another question about the same images."""
    end = len(question.ids) - question.ids[::-1].index(IMAGE)
    ids = [*question.ids[: end + 1], *words]
    return Rendered(ids, list(ids), question.vision)


def vision_calls(model: PreTrainedModel) -> list[int]:
    """Grows with every image that the vision tower reads."""
    seen: list[int] = []
    tower = getattr(model.model, "vision_tower", None) or model.model.visual
    tower.register_forward_hook(lambda *_: seen.append(1))
    return seen


@pytest.mark.parametrize(
    ("family", "keep", "copied"),
    [
        *((family, *options) for family in FAMILIES for options in ((2, 0), (0, "packed"))),
        ("llava", 0, 80),
        ("llava", 2, "packed"),
    ],
)
def test_questions_about_one_image_read_it_once(family, keep, copied, monkeypatch):
    packed = copied == "packed"
    monkeypatch.setattr(shared_attention, "COPIED", 0 if copied == "packed" else copied)
    monkeypatch.setattr("reflectune.models.prefix.image_prefix.WORTHWHILE", 1)
    model = build(family)
    first, other = prefix(model, 1, 4, seed=0), prefix(model, 1, 5, seed=1)
    prefixes = [about(model, first, [20, 21, 22]), other, about(model, first, [23, 24]), first]
    expected = [next_probabilities(model, question, [30, 31])[GATES] for question in prefixes]
    engine, seen = engine_of(model, packed=packed), vision_calls(model)
    engine.image_prefixes.keep(keep)
    probabilities = engine.branch(engine.read(prefixes), [[[30, 31]]] * 4).probabilities(GATES)
    for gates, wanted in zip(probabilities, expected, strict=True):
        torch.testing.assert_close(gates[0], wanted, rtol=1e-4, atol=1e-7)
    before = len(seen)
    again = engine.branch(engine.read([prefixes[2]]), [[[30, 31]]]).probabilities(GATES)
    torch.testing.assert_close(again[0][0], expected[2], rtol=1e-4, atol=1e-7)
    assert (len(seen) == before) == bool(keep)


@pytest.mark.parametrize(("family", "tied"), [("llava", False), ("qwen2_vl", True), ("qwen3_5", False)])
def test_layers_on_two_devices_never_mix_them_and_say_the_same(family, tied, pretended):
    model = build(family, tied=tied)
    prefixes, rows = [prefix(model, 1, 4, seed=0), prefix(model, 2, 30, seed=1)], [(0, 0), (1, 1)]

    def said() -> tuple[Any, Any]:
        state = (engine := engine_of(model)).branch(engine.read(prefixes), [[[30, 31]], [[32], [33, 34]]])
        return [gates.tolist() for gates in state.probabilities(GATES)], engine.generate(state, rows, max_new_tokens=4)

    expected = said()
    with pretended.PretendDevices() as devices, torch.no_grad():
        spread(model, pretended.halves(model, "cpu:1", "cpu:2"), torch.float32)
        assert said() == expected
    assert {torch.device("cpu:1"), torch.device("cpu:2")} <= devices.seen


def test_an_image_of_few_tokens_is_not_worth_another_pass():
    model = build("llava")
    engine, first = engine_of(model), prefix(model, 1, 4, seed=0)
    read = engine.read([about(model, first, [20, 21, 22]), first])
    assert [len(rows.levels) for rows in read.cache.batches] == [1]


def of_one_image(model: PreTrainedModel, images: int) -> list[Tree]:
    """Three questions, the first and the last about the same images, read from the disk twice."""
    first, other, last = trees(model, images)
    again = about(model, Rendered(list(first.prefix.ids), [], first.vision), [20, 21, 22])
    silent = (IGNORE,) * (len(again.ids) - 1)
    prefix = Segment.of(again.ids, [*silent, again.ids[-1]])
    return [first, other, Tree(prefix, last.branches, {name: value.clone() for name, value in first.vision.items()})]


def pixels_read(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Gets the pixels that the model's class makes features of, from now on."""
    seen: list[Tensor] = []
    kind, original = type(model.model), type(model.model).get_image_features

    @functools.wraps(original)
    def spy(self: Any, pixel_values: Tensor, *args: Any, **kwargs: Any) -> Any:
        seen.append(pixel_values)
        return original(self, pixel_values, *args, **kwargs)

    monkeypatch.setattr(kind, "get_image_features", spy)
    return seen


@pytest.mark.parametrize(("images", "checkpointing"), [(1, True), (2, False)])
def test_training_reads_an_image_of_several_questions_once(model, images, checkpointing, monkeypatch):
    made, collate = of_one_image(model, images), TreeCollator(model)
    expected = plainly_learned(model, of_one_image, images)
    batch = collate(made)
    counts = [len(collate([tree])["pixel_values"]) for tree in made]
    assert len(batch["pixel_values"]) == sum(counts)
    seen = pixels_read(model, monkeypatch)
    with training(model, checkpointing):
        actual = learned(model, [batch])
    assert max(differences(actual, expected)) < 1e-4
    assert [len(pixels) for pixels in seen] == [sum(counts[:2])]


def test_an_image_in_a_wrong_place_is_noticed(monkeypatch):
    model = build("llava")
    made = of_one_image(model, 1)
    expected = learned(model, plain_rows(model, made))
    monkeypatch.setattr("reflectune.models.attention.images.first_equal", lambda images, told: [0] * len(images))
    assert max(differences(learned(model, [TreeCollator(model)(made)]), expected)) > 1e-2


def test_images_that_differ_are_not_shared(monkeypatch):
    model = build("llava")
    made = of_one_image(model, 1)
    made[2].vision["pixel_values"][0, 0, 0, 0] += 1e-3
    seen = pixels_read(model, monkeypatch)
    learned(model, [TreeCollator(model)(made)])
    assert [len(pixels) for pixels in seen] == [3]


def test_images_are_the_same_if_all_that_is_told_of_them_is():
    image, other = torch.zeros(6, 4), torch.zeros(6, 4)
    turned = torch.tensor([[1.0, -1.0]]).repeat(6, 2)  # of the same sum
    assert first_equal([image, turned, other, torch.zeros(3, 8), turned.clone()], [""] * 5) == [0, 1, 0, 3, 1]
    assert first_equal([image, other, image], ["2 x 3", "3 x 2", "2 x 3"]) == [0, 1, 0]
    assert first_equal([torch.full((2, 2), torch.nan)] * 2, ["", ""]) == [0, 1]
    assert first_equal([image], [""]) == [0]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_a_prepared_model_reads_images_itself(copied):
    model = build("qwen2_vl")
    made, collate = of_one_image(model, 1), TreeCollator(model)
    twin = copied(model)
    TreeCollator(twin)
    model.zero_grad()
    gradients = learned(twin, [collate(made)])
    assert any("visual" in name for name in gradients)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("family", "frozen"),
    [*((family, "vision tower") for family in FAMILIES), ("llava", "projector"), ("llava", "language model")],
)
def test_a_frozen_vision_tower_keeps_nothing_for_a_backward_pass(family, frozen):
    """Recomputed layers included: transformers' way puts the tower into the graph, and gives the same gradients."""
    model = build(family).train()
    freeze_tower(model, "vision tower")
    freeze_tower(model, frozen)
    batch = TreeCollator(model)(of_one_image(model, 1))
    plain = learned(model, [batch])
    model.activation_checkpointing_enable({"use_reentrant": False})
    expected = learned(model, [batch])
    model.disable_input_require_grads()
    recompute_layers(model)
    kept: list[bool] = []
    for name, module in model.named_modules():
        if tower_of(name) == "vision tower":
            module.register_forward_hook(lambda *io: kept.extend(t.requires_grad for t in io if torch.is_tensor(t)))
    gradients = learned(model, [batch])
    assert kept
    assert not any(kept)
    assert any(tower_of(name) == "projector" for name in gradients) == (frozen != "projector")
    assert gradients.keys() == expected.keys() == plain.keys()
    assert all(torch.equal(gradients[name], expected[name]) for name in expected)


@pytest.mark.parametrize(("family", "every"), [("llava", 1), ("qwen2_vl", 2)])
def test_recomputed_layers_give_a_trained_vision_tower_its_gradients(family, every):
    model = build(family).train()
    batch = TreeCollator(model)(of_one_image(model, 1))
    expected = learned(model, [batch])
    recompute_layers(model, every)
    model.enable_input_require_grads()  # as TRL asks for
    gradients = learned(model, [batch])
    assert any(tower_of(name) == "vision tower" for name in gradients)
    torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-5)


def test_a_batch_of_mixed_image_counts():
    model = build("qwen2_5_vl")
    engine = engine_of(model)
    prefixes = [prefix(model, images, 4, seed=images) for images in (2, 1, 3)]
    probabilities = engine.read(prefixes).probabilities(GATES)
    for question, gates in zip(prefixes, probabilities, strict=True):
        torch.testing.assert_close(gates, next_probabilities(model, question, [])[GATES], rtol=1e-5, atol=1e-7)


def _words(count: int, generator: torch.Generator) -> list[int]:
    return torch.randint(10, VOCABULARY, (count,), generator=generator).tolist()


def _joined(parts: list[Tensor]) -> Tensor:
    most = max(part.shape[1] for part in parts)
    paddings = [part.new_zeros(len(part), most - part.shape[1], *part.shape[2:]) for part in parts]
    return torch.cat([torch.cat(pair, 1) for pair in zip(parts, paddings, strict=True)])


def _image(model: PreTrainedModel, seed: int, generator: torch.Generator) -> tuple[int, dict[str, Tensor]]:
    """Return the number of an image's tokens, and its tensors."""
    kind = model.config.model_type
    if "qwen" in kind:
        height, width = ((4, 4), (2, 6), (6, 4))[seed % 3]
        patch = model.config.vision_config.patch_size
        pixels = torch.randn(height * width, 3 * 2 * patch * patch, generator=generator)
        return height * width // 4, {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, height, width]])}
    if kind == "llava_next":
        size = ((32, 16), (32, 32))[seed % 2]  # two tiles or four, and the whole image
        pixels = torch.randn(1, 1 + size[0] * size[1] // 256, 3, 16, 16, generator=generator)
        rows, columns = size[0] // 8, size[1] // 8
        return 4 + rows * (columns + 1), {"pixel_values": pixels, "image_sizes": torch.tensor([size])}
    return 4, {"pixel_values": torch.randn(1, 3, 16, 16, generator=generator)}
