import json
import sys
from dataclasses import replace

import pytest

from reflectune.core.errors import UserError
from reflectune.models import schemes
from reflectune.models.rendering.turns import (
    ANSWER_PROMPTS,
    answer_prompt,
    documents_text,
    passage_text,
)
from reflectune.models.schemes.base import SCHEME_FILE
from reflectune.models.schemes.mmkb_rag import SCHEME as MMKB_RAG
from reflectune.models.schemes.mr2ag import SCHEME as MR2AG
from reflectune.models.schemes.plain import SCHEME as PLAIN
from reflectune.models.schemes.registry import all_schemes, find_scheme, load_scheme


@pytest.mark.parametrize(
    ("scheme", "tokens"),
    [
        (MR2AG, ["[Retrieval]", "[No Retrieval]", "[Relevant]", "[Irrelevant]"]),
        (MMKB_RAG, ["[Ret]", "[NoRet]", "[Rel]", "[NoRel]"]),
    ],
    ids=["mr2ag", "mmkb_rag"],
)
def test_tokens_are_those_of_the_papers_with_a_description_each(scheme, tokens):
    assert tuple(scheme.tokens) == tuple(scheme.descriptions) == ("retrieve", "no_retrieve", "relevant", "irrelevant")
    assert list(scheme.tokens.values()) == tokens
    assert len(set(scheme.descriptions.values())) == 4


def test_plain_fine_tuning_has_no_tokens():
    assert PLAIN.tokens == PLAIN.descriptions == {}
    decoded = " oak  tree [Relevant]"
    assert PLAIN.strip(decoded) == "oak tree [Relevant]"


@pytest.mark.parametrize("scheme", all_schemes().values(), ids=lambda scheme: scheme.name)
def test_a_saved_scheme_loads_as_itself(scheme, tmp_path):
    scheme.save(tmp_path)
    assert load_scheme(tmp_path) == scheme
    assert load_scheme(tmp_path).fingerprint == scheme.fingerprint


def test_the_fingerprint_follows_every_field():
    changed = [
        replace(MR2AG, name="x"),
        replace(MR2AG, tokens={**MR2AG.tokens, "relevant": "[R]"}),
        replace(MR2AG, descriptions={**MR2AG.descriptions, "relevant": "R"}),
        replace(MR2AG, prompts={**MR2AG.prompts, "read_short": "{passage} Read."}),
    ]
    assert len({scheme.fingerprint for scheme in [MR2AG, *changed]}) == 5


def _spoil(**changes):
    def spoil(content):
        return {key: value for key, value in {**content, **changes}.items() if value is not None}

    return spoil


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_spoil(prompts={"read_short": "{passage} Guess."}), "was changed after it was saved"),
        (_spoil(tokens=None), "lacks tokens"),
        (lambda content: content | {"tokens": None}, "was changed after it was saved"),
        (lambda content: content | {"prompts": [1]}, "was changed after it was saved"),
        (lambda content: content | {"name": ["mr2ag"]}, "unknown scheme"),
    ],
)
def test_a_spoilt_scheme_file_is_refused(spoil, says, tmp_path):
    MR2AG.save(tmp_path)
    path = tmp_path / SCHEME_FILE
    path.write_text(json.dumps(spoil(json.loads(path.read_text()))))
    with pytest.raises(UserError, match=says):
        load_scheme(tmp_path)


def test_a_checkpoint_that_learned_other_prompts_is_refused(tmp_path):
    earlier = {"read": "{passage} Answer.", "read_multi_answer": "{passage} Answer with '&&'."}
    replace(MR2AG, prompts=earlier).save(tmp_path)
    with pytest.raises(UserError, match=r"has no prompt answer_short, .*trained by an earlier version.*train it again"):
        load_scheme(tmp_path)


def test_a_checkpoint_of_a_version_with_fewer_tokens_is_refused(tmp_path):
    replace(MR2AG, tokens={"relevant": "[Relevant]"}).save(tmp_path)
    with pytest.raises(UserError, match="no token for retrieve, no_retrieve, irrelevant"):
        load_scheme(tmp_path)


def test_a_missing_scheme_file_is_refused(tmp_path):
    with pytest.raises(UserError, match="scheme is missing"):
        load_scheme(tmp_path)


def test_an_unknown_scheme_is_refused():
    with pytest.raises(UserError, match="choose one of mmkb_rag, mr2ag, plain, reflectiva"):
        find_scheme("mr3ag")


@pytest.mark.parametrize(
    ("left_out", "text"),
    [
        ({}, "The Oak Tower: A tower of oak. History. It was built."),
        ({"lead": ""}, "The Oak Tower: History. It was built."),
        ({"heading": " "}, "The Oak Tower: A tower of oak. It was built."),
        ({"title": "", "lead": "", "heading": ""}, "It was built."),
    ],
)
def test_a_passage_reads_as_title_lead_heading_text(left_out, text, make):
    assert passage_text(make.passage("It was built.", **left_out)) == text


def test_documents_are_numbered_from_one(make):
    two = [make.passage("A.", title="T", lead="", heading=""), make.passage("B.", title="U", lead="", heading="")]
    assert documents_text(two) == "T: A. U: B."
    assert documents_text(two, numbered=True) == "1. T: A. 2. U: B."


def test_the_instructions_are_those_of_mr2ag():
    assert answer_prompt("short", documents=True) == (
        "{passage} Based on the retrieved document, answer the question with a single word or phrase."
    )
    assert answer_prompt("list", documents=True) == (
        "{passage} Based on the retrieved documents, answer the question as briefly as possible, using '&&' to "
        "connect multiple different answers."
    )


@pytest.mark.parametrize("style", ["short", "list", "free"])
def test_an_answer_is_asked_for_alike_with_documents_and_without(style):
    """No score and no gate may depend on the difference."""
    wanted = {"short": "a single word or phrase", "list": "as briefly as possible, using '&&'", "free": ""}
    prompts = [answer_prompt(style, documents=documents) for documents in (False, True)]
    others = [words for name, words in wanted.items() if name != style and words]
    for prompt in prompts:
        assert wanted[style] in prompt
        assert not any(words in prompt for words in others)
    alone, reading = (prompt.lower().removeprefix("{passage} ") for prompt in prompts)
    if style != "free":  # but for "Based on the retrieved document," they are the same words
        assert reading.split(", ", 1)[1] == alone


def test_every_scheme_asks_for_an_answer_in_the_same_words():
    for scheme in all_schemes().values():
        assert {name: scheme.prompts[name] for name in ANSWER_PROMPTS} == ANSWER_PROMPTS


def test_stripping_leaves_the_answer():
    decoded = " [Relevant] oak  tree[Irrelevant]"
    assert MR2AG.strip(decoded) == "oak tree"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, "the scheme is named `mr2ag`; name it `mine`, as its file"),
        ({"name": "mine", "tokens": {**MR2AG.tokens, "irrelevant": "[Relevant]"}}, "needs a token of its own"),
        ({"name": "mine", "tokens": {**MR2AG.tokens, "certain": "[Certain]"}}, "and a description"),
    ],
    ids=["name", "token", "description"],
)
def test_a_module_with_a_slip_in_its_scheme_is_refused(tmp_path, monkeypatch, change, problem):
    words = "import dataclasses; from reflectune.models.schemes.mr2ag import SCHEME as MR2AG\n"
    (tmp_path / "mine.py").write_text(f"{words}SCHEME = dataclasses.replace(MR2AG, **{change})")
    with monkeypatch.context() as patch:
        patch.setattr(schemes, "__path__", [*schemes.__path__, str(tmp_path)])
        all_schemes.cache_clear()
        with pytest.raises(UserError, match=rf"mine\.py: .*{problem}"):
            all_schemes()
    del sys.modules[f"{schemes.__name__}.mine"]
    all_schemes.cache_clear()
