"""The four prompts over the shared prefix give what independent rows give."""

import math
from collections.abc import Callable

import pytest
import torch

from reflectune.core.errors import UserError
from reflectune.core.types import Passage
from reflectune.inference.reading.prompted_reader import PromptedReader
from reflectune.inference.reading.reader import Reader
from reflectune.models.loading import Loaded, load
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.models.schemes.prompts import PromptScheme
from tests.inference.families import ONE_FAMILY

MAX_NEW, MAX_REPLY = 4, 6


@pytest.fixture(scope="module")
def tuned(prompted) -> Loaded:
    return load(prompted.tuned, scheme="mmkb_rag")


@pytest.fixture(scope="module")
def reader(tuned: Loaded) -> PromptedReader:
    return PromptedReader(PrefixEngine(tuned), MAX_NEW, MAX_REPLY)


@ONE_FAMILY
def test_what_a_model_computes_that_is_no_number_is_an_error(questions, passages, prompted, images) -> None:
    broken = load(prompted.tuned, scheme="mmkb_rag")
    with torch.no_grad():
        broken.model.get_output_embeddings().weight.fill_(math.nan)
    reader = PromptedReader(PrefixEngine(broken), MAX_NEW, MAX_REPLY)
    opened = reader.open(questions, images)
    with pytest.raises(UserError, match="NaN in float32"):
        reader.gates(opened)
    with pytest.raises(UserError, match="NaN in float32"):
        reader.answer(opened, {0: passages[0]})


def prompt(loaded: Loaded, name: str, *passages: Passage) -> list[int]:
    return PromptScheme.of(loaded.renderer).prompt_branch(loaded.renderer, name, passages)


@pytest.fixture(scope="module")
def softmax_of_two(tuned, log_probabilities) -> Callable[..., float]:
    """Return a function that computes equations 4 and 7 from the logits of one independent row."""

    def compute(rendered, more: list[int], roles: tuple[str, str]) -> float:
        log_softmax = log_probabilities(tuned, rendered, more)
        first, second = (math.exp(log_softmax[tuned.renderer.token_id(role)]) for role in roles)
        return first / (first + second)

    return compute


@pytest.fixture(scope="module")
def greedy(tuned, log_probabilities) -> Callable[..., tuple[str, float, int]]:
    """Return a function that decodes one token at a time: text, S_ans and number of tokens."""

    def decode(rendered, more: list[int], most: int) -> tuple[str, float, int]:
        ids: list[int] = []
        logs: list[float] = []
        while len(ids) < most and tuned.renderer.end_token_id not in ids:
            last = log_probabilities(tuned, rendered, more + ids)
            ids.append(int(last.argmax()))
            logs.append(float(last.max()))
        text = tuned.renderer.decode([i for i in ids if i != tuned.renderer.end_token_id])
        return tuned.scheme.strip(text), math.exp(sum(logs) / len(logs)), len(ids)

    return decode


def test_score_ret_is_the_softmax_of_two_logits(questions, tuned, reader, images, softmax_of_two) -> None:
    gates = reader.gates(reader.open(questions, images))
    for score, question, image in zip(gates, questions, images, strict=True):
        prefix = tuned.renderer.question_prefix(question.text, image)
        expected = softmax_of_two(prefix, prompt(tuned, "ret"), ("retrieve", "no_retrieve"))
        assert score == pytest.approx(expected, abs=1e-5)


def test_score_srt_is_the_softmax_of_two_logits(questions, passages, tuned, reader, images, softmax_of_two) -> None:
    judged = reader.judge(reader.open(questions, images), passages)
    assert [len(scores) for scores in judged] == [2, 0, 1]
    for scores, question, image, documents in zip(judged, questions, images, passages, strict=True):
        prefix = tuned.renderer.question_prefix(question.text, image)
        for score, passage in zip(scores, documents, strict=True):
            expected = softmax_of_two(prefix, prompt(tuned, "srt", passage), ("relevant", "irrelevant"))
            assert score == pytest.approx(expected, abs=1e-5)


def test_a_reply_to_mct_is_decoded_from_the_numbered_documents(
    questions, passages, tuned, reader, images, greedy
) -> None:
    replies = reader.agree(reader.open(questions, images), {2: passages[0]})
    prefix = tuned.renderer.question_prefix(questions[2].text, images[2])
    text, _, tokens = greedy(prefix, prompt(tuned, "mct", *passages[0]), MAX_REPLY)
    assert list(replies) == [2]
    assert (replies[2].text, replies[2].tokens, replies[2].shown) == (text, tokens, 2)
    assert replies[2].finished is (tokens < MAX_REPLY)


def test_answers_are_read_with_and_without_documents(questions, passages, tuned, reader, images, greedy) -> None:
    answers = reader.answer(reader.open(questions, images), dict(enumerate(passages[:2])))
    for i, documents in enumerate(passages[:2]):
        prefix = tuned.renderer.question_prefix(questions[i].text, images[i])
        text, score, tokens = greedy(prefix, prompt(tuned, "vqa", *documents), MAX_NEW)
        assert (answers[i].text, answers[i].tokens, answers[i].passages_read) == (text, tokens, len(documents))
        assert answers[i].score == pytest.approx(score, abs=1e-5)


def test_the_tuned_model_is_asked_as_a_plain_model_is(questions, passages, tuned, reader, images) -> None:
    expected = Reader(PrefixEngine(tuned), MAX_NEW).answer_plainly(questions, images, passages)
    answers = reader.answer(reader.open(questions, images), dict(enumerate(passages)))
    assert [answers[i].text for i in range(3)] == [answer.text for answer in expected]
    assert [answers[i].score for i in range(3)] == pytest.approx([answer.score for answer in expected], abs=1e-5)


@ONE_FAMILY
def test_what_does_not_fit_is_left_out_whole(questions, passages, tuned, images) -> None:
    engine = PrefixEngine(tuned)
    short, long = passages[0]
    length = len(tuned.renderer.question_prefix(questions[0].text, images[0]).ids)

    def opened(room: int):
        engine.max_length = length + room
        reader = PromptedReader(engine, MAX_NEW, MAX_REPLY)
        return reader, reader.open(questions[:1], images[:1])

    reader, state = opened(len(prompt(tuned, "srt", short)) + MAX_NEW)
    (scores,) = reader.judge(state, [[long, short]])
    assert scores[0] is None
    assert 0 < scores[1] < 1
    both, none = (len(prompt(tuned, "vqa", *documents)) + MAX_NEW for documents in ([short, long], []))
    for room, expected in ((both, 2), (both - 1, 1), (none, 0)):
        reader, state = opened(room)
        assert reader.answer(state, {0: [short, long]})[0].passages_read == expected
    both = len(prompt(tuned, "mct", short, long)) + MAX_REPLY
    for room, asked in ((both, [0]), (both - 1, [])):
        reader, state = opened(room)
        assert list(reader.agree(state, {0: [short, long]})) == asked


@ONE_FAMILY
def test_nothing_to_ask_costs_nothing(questions, reader, images) -> None:
    opened = reader.open(questions, images)
    assert reader.judge(opened, [[], [], []]) == [[], [], []]
    assert reader.agree(opened, {}) == reader.answer(opened, {}) == {}
