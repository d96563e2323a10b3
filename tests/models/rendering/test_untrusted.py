import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from reflectune.core.errors import UserError
from reflectune.models.rendering.turns import Slot
from reflectune.models.rendering.untrusted import SafeTokenizer, cut_at_slots, slot_mark


def wrap(model, *added: str, special: bool = True) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(list(added))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>")


def unigram() -> PreTrainedTokenizerFast:
    """A tokenizer whose model itself holds the special tokens as pieces, as SentencePiece's do."""
    pieces = [("<unk>", 0.0), ("</s>", -0.1), *((letter, -5.0) for letter in "▁abs<>/[]REL")]
    return wrap(models.Unigram(pieces, unk_id=0), "</s>", "<unk>")


def merging() -> PreTrainedTokenizerFast:
    """A byte-pair tokenizer whose merges make a special token out of plain characters."""
    vocab = {token: i for i, token in enumerate(["<unk>", "</s>", *"▁abs<>/", "</", "s>"])}
    return wrap(models.BPE(vocab, [("<", "/"), ("s", ">"), ("</", "s>")], unk_token="<unk>"), "</s>", "<unk>")


@pytest.mark.parametrize("build", [unigram, merging])
def test_the_model_itself_cannot_make_a_special_token(build):
    tokenizer = build()
    end = tokenizer.eos_token_id
    split = tokenizer("a</s>", add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert end in split  # transformers' own switch is not enough
    safe = SafeTokenizer(tokenizer, owned=())
    assert end not in safe.encode_from_start("a</s>")
    assert safe.encode_from_start(safe.trust("a</s>")) == tokenizer("a</s>", add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("build", [unigram, merging])
def test_other_ids_stay(build):
    tokenizer = build()
    safe = SafeTokenizer(tokenizer, owned=())
    for text in ("a b", "<a>", "s/b"):
        assert safe.encode_from_start(text) == tokenizer(text, add_special_tokens=False)["input_ids"]


def test_tags_that_are_not_marked_special_are_owned_and_words_are_not():
    tokenizer = wrap(unigram().backend_tokenizer.model, "<a>", "[REL]", "bab", special=False)
    safe = SafeTokenizer(tokenizer, owned=())
    ids = [tokenizer.convert_tokens_to_ids(token) for token in ("<a>", "[REL]", "bab")]
    encoded = safe.encode_from_start("<a>[REL]bab")
    assert [i for i in encoded if i in ids] == ids[2:]
    assert safe.encode_from_start(safe.trust("<a>[REL]bab")) == ids


def test_cleaning_leaves_no_secret_names_and_no_halves_of_characters():
    assert SafeTokenizer.clean(" \ufdd07\ufdd1 \ud83d x\n") == "\ufffd7\ufffd \ufffd x"


def test_special_tokens_of_a_trusted_text_are_found_in_order():
    safe = SafeTokenizer(unigram(), owned=())
    assert safe.specials_in(safe.trust("a</s>b<unk>")) == [1, 0]
    assert safe.specials_in("a</s>") == []


def test_a_text_is_cut_at_its_slots():
    one, two = Slot("one"), Slot("two")
    assert cut_at_slots(f"a{slot_mark(one)}{slot_mark(two)}b") == ("a", one, two, "b")


def test_a_slow_tokenizer_is_refused():
    with pytest.raises(UserError, match="not a fast tokenizer"):
        SafeTokenizer(object(), owned=())  # type: ignore[arg-type]
