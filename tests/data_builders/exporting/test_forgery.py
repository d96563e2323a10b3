import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectune.data_builders.exporting.conversations import Neutraliser
from reflectune.examples.miniature.models.architecture import FAMILIES, Family, train_tokenizer

SPELT = [*"<image> [Relevant] [NoRel] </s> <|im_end|> <|image_pad|> [INST] <video>".split(), "[No Retrieval]"]


@settings(deadline=None)
@given(st.lists(st.one_of(st.sampled_from([*SPELT, "<", "[", "|>", "<|", "ASSISTANT:"]), st.text(max_size=5))))
def test_no_special_token_survives_and_a_second_pass_changes_nothing(pieces: list[str]) -> None:
    clean = Neutraliser(["ASSISTANT:"])
    once = clean("".join(pieces))
    assert not any(token in once for token in [*SPELT, "ASSISTANT:"])
    assert clean(once) == once


def test_only_the_first_character_is_set_apart() -> None:
    clean = Neutraliser()
    assert clean("see <image>, [Relevant] or <|im_end|> ") == "see < image>, [ Relevant] or < |im_end|>"
    assert clean.changed == 1


@pytest.mark.parametrize("text", ["a < b and c > d", "[1] as in <b>bold</b>", "[relevant]", "Relevant: [sic] <3"])
def test_other_text_stays_as_it_is(text: str) -> None:
    clean = Neutraliser()
    assert clean(text) == text
    assert clean.changed == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_a_familys_tokenizer_finds_no_special_token_in_it(family: Family) -> None:
    tokenizer = train_tokenizer(["a few words"], 300, family)
    tokenizer.add_tokens(SPELT, special_tokens=True)
    ids = tokenizer(Neutraliser()(" ".join([*SPELT, *tokenizer.all_special_tokens])), add_special_tokens=False)
    assert not set(ids["input_ids"]) & set(tokenizer.convert_tokens_to_ids([*SPELT, *tokenizer.all_special_tokens]))
