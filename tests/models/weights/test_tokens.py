import pytest
import torch
from tokenizers import AddedToken

from reflectune.core.errors import UserError
from reflectune.models.schemes.mmkb_rag import SCHEME as MMKB_RAG
from reflectune.models.schemes.mr2ag import SCHEME as MR2AG
from reflectune.models.weights.tokens import NOISE, add_reflection_tokens, known_tokens, token_id_of

FAMILIES = ["llava", "qwen2_vl"]
TABLES = [pytest.param(0, id="unpadded"), pytest.param(64, id="padded")]
TIES = [pytest.param(False, id="untied"), pytest.param(True, id="tied")]


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


def build(make, family, padding=0, tie=False, seed=0, scheme=MR2AG):
    model = make.model(family, vocab_size=len(make.tokenizer(family)) + padding, tie_word_embeddings=tie)
    processor = make.processor(family)
    before = [m.weight.detach().clone() for m in (model.get_input_embeddings(), model.get_output_embeddings())]
    ids = add_reflection_tokens(model, processor, scheme, seed=seed)
    after = [m.weight for m in (model.get_input_embeddings(), model.get_output_embeddings())]
    return model, processor, ids, before, after


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "the model's processor has no chat template; set one"),
        ("{% for m in messages", "the chat template can't be rendered .*; write one"),
        ("{{ nobody.said }}", "the chat template can't be rendered .*; write one"),
    ],
)
def test_a_processor_without_a_chat_template_that_can_be_rendered_is_refused(make, family, template, message):
    processor = make.processor(family)
    processor.chat_template = template
    with pytest.raises(UserError, match=message):
        add_reflection_tokens(make.model(family), processor, MR2AG)


def test_a_model_that_cannot_write_new_tokens_is_refused(make, family):
    """Mllama's image token has a row in the token table only."""
    model = make.model(family, vocab_size=len(make.tokenizer(family)) + 64, tie_word_embeddings=False)
    head = model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight[:-64].detach())
    with pytest.raises(UserError, match=r"rows in its output matrix .* new tokens can't be written"):
        add_reflection_tokens(model, make.processor(family), MR2AG)


@pytest.mark.parametrize("padding", TABLES)
@pytest.mark.parametrize("tie", TIES)
@torch.no_grad()
def test_a_new_row_is_its_descriptions_mean_plus_a_little_noise_and_no_other_row_changes(make, family, padding, tie):
    """In each matrix; tied matrices stay tied, and the table never shrinks."""
    model, processor, ids, before, after = build(make, family, padding, tie)
    rows = list(ids.values())
    assert (after[0] is after[1]) == torch.equal(after[0][rows], after[1][rows]) == tie
    assert model.config.tie_word_embeddings == tie
    for old, new in zip(before, after, strict=True):
        assert new.shape[0] == max(old.shape[0], len(processor.tokenizer))
        untouched = [row for row in range(len(old)) if row not in rows]
        assert torch.equal(new[untouched], old[untouched])
        for role, row in ids.items():
            words = processor.tokenizer(MR2AG.descriptions[role], add_special_tokens=False)["input_ids"]
            noise = new[row] - old[words].mean(0)
            spread = old[: len(processor.tokenizer) - 4].std() * NOISE
            assert 0.4 * spread < noise.std() < 1.8 * spread


def test_new_rows_differ_and_follow_the_seed(make, family):
    _, _, ids, _, first = build(make, family, seed=0)
    _, _, _, _, again = build(make, family, seed=0)
    _, _, _, _, other = build(make, family, seed=1)
    rows = list(ids.values())
    for a, b, c in zip(first, again, other, strict=True):
        assert torch.equal(a[rows], b[rows])
        assert not torch.equal(a[rows], c[rows])
        assert torch.pdist(a[rows]).min() > 0


def test_adding_twice_changes_nothing(make, family):
    model, processor, ids, _, after = build(make, family)
    size, kept = len(processor.tokenizer), [matrix.detach().clone() for matrix in after]
    with torch.no_grad():
        after[0][ids["relevant"]] += 1  # as training would
    kept[0][ids["relevant"]] += 1
    assert add_reflection_tokens(model, processor, MR2AG, seed=5) == ids
    assert len(processor.tokenizer) == size
    assert all(torch.equal(now, then) for now, then in zip(after, kept, strict=True))


def test_a_fresh_model_gets_rows_though_its_tokenizer_has_the_tokens(make, family):
    _, processor, ids, _, _ = build(make, family, padding=64)
    model = make.model(family, vocab_size=len(make.tokenizer(family)) + 64)
    before = model.get_output_embeddings().weight.detach().clone()
    add_reflection_tokens(model, processor, MR2AG)
    assert (model.get_output_embeddings().weight[list(ids.values())] != before[list(ids.values())]).any()


@pytest.mark.parametrize("scheme", [MR2AG, MMKB_RAG], ids=lambda scheme: scheme.name)
@pytest.mark.parametrize("around", ["{}", " {}", "x{}", "x {} y", "({})", "\n{}\n", "{}{}"])
def test_a_token_is_one_id_everywhere(make, family, scheme, around):
    _, processor, ids, _, _ = build(make, family, scheme=scheme)
    for role, token in scheme.tokens.items():
        token_ids = processor.tokenizer(around.replace("{}", token))["input_ids"]
        assert token_ids.count(ids[role]) == around.count("{}")
        assert processor.tokenizer.decode([ids[role]]) == token


def test_a_token_that_is_not_one_token_is_refused(make, family):
    tokenizer = make.processor(family).tokenizer
    with pytest.raises(UserError, match="not as one token"):
        token_id_of(tokenizer, "[Relevant]")
    tokenizer.add_tokens(["[Relevant]", AddedToken(": [Rel")])
    with pytest.raises(UserError, match="not as one token"):
        token_id_of(tokenizer, "[Relevant]")


def test_known_tokens_tell_a_tuned_tokenizer(make, family):
    assert known_tokens(make.processor(family).tokenizer, MR2AG) == set()
    assert known_tokens(build(make, family)[1].tokenizer, MR2AG) == set(MR2AG.tokens.values())
