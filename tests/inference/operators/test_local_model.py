"""Steps on a real model: judging documents over a shared prefix equals judging each alone."""

import dataclasses
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from PIL import Image

from reflectune.core.types import Passage
from reflectune.inference.operators.models import LocalModel, conversation
from reflectune.inference.operators.query_reply import read_queries
from reflectune.inference.operators.requests import JudgeReply, Prompt
from reflectune.models.loading import load
from reflectune.models.prefix.engine import Generation, PrefixEngine
from reflectune.models.rendering.turns import Turn
from reflectune.models.schemes.reflectiva import SCHEME as REFLECTIVA
from tests.inference.families import ONE_FAMILY

TEMPLATE = "What is it? {question}\n\nPassage:\n{documents}\n\nIs it of use? "
DOCUMENTS = ("It is made of oak.", "Title e1: H0. It is made.", "oak " * 40, "It is made of oak.", ") (")
PROMPTS = {
    "a system's turn": Prompt(TEMPLATE, {"question": "What is it made of?"}, DOCUMENTS, system="Be brief."),
    "no system's turn": Prompt(TEMPLATE, {"question": "What is it made of?"}, DOCUMENTS),
    "no image": Prompt(TEMPLATE, {"question": "What is it made of?"}, DOCUMENTS, image=False),
    "one document": Prompt(TEMPLATE, {"question": "What is it made of?"}, DOCUMENTS[:1]),
}
JUDGED = [
    ("a system's turn", ("Yes", "No")),
    ("no system's turn", ("oak", "of")),
    ("no image", ("Yes", "No")),
    ("one document", ("made", "title")),
]


@pytest.fixture(scope="module")
def engine(checkpoints: SimpleNamespace) -> PrefixEngine:
    return PrefixEngine(load(checkpoints.base), token_budget=256)


@pytest.fixture
def model(engine: PrefixEngine) -> LocalModel:
    return LocalModel(engine, batch_size=4)


def alone(prompt: Prompt) -> list[Prompt]:
    return [dataclasses.replace(prompt, documents=(document,)) for document in prompt.documents]


@pytest.mark.parametrize(("name", "words"), JUDGED, ids=[f"{name}-{'-'.join(words)}" for name, words in JUDGED])
def test_documents_over_a_shared_prefix_are_judged_as_each_alone(
    model: LocalModel, name: str, words: tuple[str, str], images: list[Image.Image]
) -> None:
    prompt = PROMPTS[name]
    shared = model.judge_each([(image, prompt) for image in images], *words)
    for image, judged in zip(images, shared, strict=True):
        expected = model.judge([(image, each) for each in alone(prompt)], *words)
        assert [each.yes for each in judged.each] == pytest.approx([each.yes for each in expected], rel=1e-4)
        assert [each.no for each in judged.each] == pytest.approx([each.no for each in expected], rel=1e-4)
        assert all(each.shown == 1 for each in judged.each)
        assert all(part.read < whole.read for part, whole in zip(judged.each, expected, strict=True))
        if len(judged.each) > 1:
            assert judged.read < sum(each.read for each in expected)


@ONE_FAMILY
def test_a_document_that_the_context_does_not_hold_is_not_judged(engine, model, images) -> None:
    long = dataclasses.replace(PROMPTS["no system's turn"], documents=("oak", "oak " * 5000))
    first, second = model.judge_each([(images[0], long)], "Yes", "No")[0].each
    assert first.shown == 1
    assert second == JudgeReply(0.0, 0.0)
    only = dataclasses.replace(long, documents=("oak " * 5000,))
    assert model.judge_each([(images[0], only)], "Yes", "No")[0].each == (JudgeReply(0.0, 0.0),)


def test_questions_with_different_numbers_of_documents_are_judged_together(model, images) -> None:
    prompt = PROMPTS["a system's turn"]
    fewer = dataclasses.replace(prompt, documents=prompt.documents[:2])
    both = model.judge_each([(images[0], prompt), (images[1], fewer)], "Yes", "No")
    assert [len(judged.each) for judged in both] == [5, 2]
    (single,) = model.judge_each([(images[1], fewer)], "Yes", "No")
    assert [each.yes for each in both[1].each] == pytest.approx([each.yes for each in single.each], rel=1e-4)


@pytest.mark.parametrize(("name", "has_turn"), [("miniature/qwen2_vl", True), ("miniature/llava", False)])
def test_a_systems_words_are_read_whether_or_not_the_template_has_such_a_turn(name: str, has_turn: bool) -> None:
    turn = Turn("user", ("It is oak.",), image=True)
    behind, before = (Turn("system", ("Be brief.",)), turn), Turn("user", ("Be brief.", "\n\n", "It is oak."), True)
    renderer = load(name).renderer
    assert renderer.under_system("", turn) == (turn,)
    assert renderer.under_system("Be brief.", turn) == (behind if has_turn else (before,))


REFLECTIVA_ASKED = Prompt(
    REFLECTIVA.prompts["answer"].replace("{passage}", "{documents}"),
    {"question": "What is it made of?"},
    (DOCUMENTS[0], "It isn't <paragraph>."),
    earlier=(("{question}", REFLECTIVA.tokens["retrieve"]),),
)


def test_turns_before_a_prompt_are_those_of_the_scheme_that_was_tuned_on_them(checkpoints, images) -> None:
    renderer = load(checkpoints.base, scheme="reflectiva").renderer
    read: Any = SimpleNamespace(renderer=renderer, max_length=4096, image_prefixes=MagicMock())
    passage = Passage("e1", 0, 0, title="", lead="", heading="", text="\n".join(REFLECTIVA_ASKED.documents))
    branch = REFLECTIVA.answer_branch(renderer, [passage])

    shown, rendered = LocalModel(read, 1).fit(images[0], REFLECTIVA_ASKED, 8)

    assert shown == 2
    assert rendered.ids == [*renderer.prefix("What is it made of?", images[0]).ids, *branch]
    ids = {role: rendered.ids.count(token) for role, token in renderer.token_ids.items()}
    assert (ids["retrieve"], ids["paragraph"], ids["end_of_paragraph"]) == (1, 1, 1)  # a document forges none


def test_a_server_is_sent_the_turns_before_a_prompt_with_the_image_in_the_first() -> None:
    first, reply, last = conversation("data:,", REFLECTIVA_ASKED)
    assert [part["type"] for part in first["content"]] == ["image_url", "text"]
    assert first["content"][1]["text"] == "What is it made of?"
    assert reply == {"role": "assistant", "content": "[Retrieval]"}
    paragraph = "<paragraph>It is made of oak.\nIt isn't <paragraph>.</paragraph>"
    text = f"Consider this paragraph: {paragraph}. Give a short answer."
    assert last == {"role": "user", "content": [{"type": "text", "text": text}]}


def test_a_replys_lines_are_kept_since_queries_stand_in_them(engine, model, images, monkeypatch) -> None:
    said = "## Analysis\nOf  oak. \n\n## Queries\nQuestion 1: Where?\nQuestion 2: When?"
    generation = Generation([1], said, [-1.0], True)
    monkeypatch.setattr(engine, "generate", lambda *_, **__: [generation])
    (reply,) = model.write([(images[0], PROMPTS["one document"])], 8)
    assert reply.text == "## Analysis\nOf oak.\n## Queries\nQuestion 1: Where?\nQuestion 2: When?"
    assert read_queries(reply.text, 2) == ("Where?", "When?")
