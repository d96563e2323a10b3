"""The four prompts over the shared prefix give what independent rows give."""

import math

import pytest
import torch

from reflectune.core.errors import UserError
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
def test_what_a_model_computes_that_is_no_number_is_an_error(make, prompted, pictures) -> None:
    broken = load(prompted.tuned, scheme="mmkb_rag")
    with torch.no_grad():
        broken.model.get_output_embeddings().weight.fill_(math.nan)
    reader = PromptedReader(PrefixEngine(broken), MAX_NEW, MAX_REPLY)
    opened = reader.open([make.question(0)], pictures[:1])
    with pytest.raises(UserError, match="NaN, in float32"):
        reader.gates(opened)
    with pytest.raises(UserError, match="NaN, in float32"):
        reader.answer(opened, {0: [make.passage("e1")]})


def documents(make):
    return [
        [make.passage("e1"), make.passage("e2", text="Long ago, it was made of old grey stone.")],
        [],
        [make.passage("e3", text="Oak.")],
    ]


def questions(make):
    return [make.question(0), make.question(1, text="Who made it?"), make.question(2, text="Where is it?")]


def log_probabilities(loaded: Loaded, rendered, more: list[int]) -> torch.Tensor:
    """Log-softmax of what comes next after one independent row, read from scratch."""
    ids = torch.tensor([rendered.ids + more])
    kinds = (ids == loaded.renderer.image_token_id).int()
    extra = {"mm_token_type_ids": kinds} if loaded.model.config.model_type == "qwen2_vl" else {}
    with torch.no_grad():
        outputs = loaded.model(input_ids=ids, attention_mask=torch.ones_like(ids), **rendered.vision, **extra)
    return outputs.logits[0, -1].float().log_softmax(-1)


def softmax_of_two(loaded: Loaded, rendered, more: list[int], roles: tuple[str, str]) -> float:
    """Equations 4 and 7, from the logits of one independent row."""
    first, second = (float(log_probabilities(loaded, rendered, more)[loaded.renderer.token_id(r)]) for r in roles)
    return math.exp(first) / (math.exp(first) + math.exp(second))


def greedy(loaded: Loaded, rendered, more: list[int], most: int) -> tuple[str, float, int]:
    """Text, S_ans and number of tokens of an answer decoded one independent row at a time."""
    ids: list[int] = []
    logs: list[float] = []
    while len(ids) < most and loaded.renderer.end_token_id not in ids:
        last = log_probabilities(loaded, rendered, more + ids)
        ids.append(int(last.argmax()))
        logs.append(float(last.max()))
    text = loaded.renderer.decode([i for i in ids if i != loaded.renderer.end_token_id])
    return loaded.scheme.strip(text), math.exp(sum(logs) / len(logs)), len(ids)


def test_score_ret_is_the_softmax_of_two_logits(make, tuned, reader, pictures) -> None:
    gates = reader.gates(reader.open(questions(make), pictures))
    for score, question, picture in zip(gates, questions(make), pictures, strict=True):
        prefix, prompt = (
            tuned.renderer.question_prefix(question.text, picture),
            PromptScheme.of(tuned.renderer).prompt_branch(tuned.renderer, "ret"),
        )
        assert score == pytest.approx(softmax_of_two(tuned, prefix, prompt, ("retrieve", "no_retrieve")), abs=1e-5)


def test_score_srt_is_the_softmax_of_two_logits(make, tuned, reader, pictures) -> None:
    scores_by_question = reader.judge(reader.open(questions(make), pictures), documents(make))
    assert [len(question_scores) for question_scores in scores_by_question] == [2, 0, 1]
    for scores, question, picture, question_documents in zip(
        scores_by_question, questions(make), pictures, documents(make), strict=True
    ):
        prefix = tuned.renderer.question_prefix(question.text, picture)
        for score, passage in zip(scores, question_documents, strict=True):
            prompt = PromptScheme.of(tuned.renderer).prompt_branch(tuned.renderer, "srt", [passage])
            assert score == pytest.approx(softmax_of_two(tuned, prefix, prompt, ("relevant", "irrelevant")), abs=1e-5)


def test_a_reply_to_mct_is_decoded_from_the_numbered_documents(make, tuned, reader, pictures) -> None:
    first_documents = documents(make)[0]
    replies = reader.agree(reader.open(questions(make), pictures), {2: first_documents})
    prefix = tuned.renderer.question_prefix(questions(make)[2].text, pictures[2])
    text, _, tokens = greedy(
        tuned, prefix, PromptScheme.of(tuned.renderer).prompt_branch(tuned.renderer, "mct", first_documents), MAX_REPLY
    )
    assert list(replies) == [2]
    assert (replies[2].text, replies[2].tokens, replies[2].shown) == (text, tokens, 2)
    assert replies[2].finished is (tokens < MAX_REPLY)


def test_answers_are_read_with_and_without_documents(make, tuned, reader, pictures) -> None:
    first_documents = documents(make)[0]
    answers = reader.answer(reader.open(questions(make), pictures), {0: first_documents, 1: []})
    for i, passages in ((0, first_documents), (1, [])):
        prefix = tuned.renderer.question_prefix(questions(make)[i].text, pictures[i])
        text, score, tokens = greedy(
            tuned, prefix, PromptScheme.of(tuned.renderer).prompt_branch(tuned.renderer, "vqa", passages), MAX_NEW
        )
        assert (answers[i].text, answers[i].tokens, answers[i].passages_read) == (text, tokens, len(passages))
        assert answers[i].score == pytest.approx(score, abs=1e-5)


def test_the_tuned_model_is_asked_as_a_plain_model_is(make, tuned, reader, pictures) -> None:
    plain = Reader(PrefixEngine(tuned), MAX_NEW)
    contexts = [documents(make)[0], [], documents(make)[2]]
    expected = plain.answer_plainly(questions(make), pictures, contexts)
    answers = reader.answer(reader.open(questions(make), pictures), dict(enumerate(contexts)))
    assert [answers[i].text for i in range(3)] == [answer.text for answer in expected]
    assert [answers[i].score for i in range(3)] == pytest.approx([answer.score for answer in expected], abs=1e-5)


@ONE_FAMILY
def test_what_does_not_fit_is_left_out_whole(make, tuned, pictures) -> None:
    engine = PrefixEngine(tuned)
    short, long = documents(make)[0]
    question, renderer = make.question(0), tuned.renderer
    length = len(renderer.question_prefix(question.text, pictures[0]).ids)

    def opened(room: int):
        engine.max_length = length + room
        reader = PromptedReader(engine, MAX_NEW, MAX_REPLY)
        return reader, reader.open([question], pictures[:1])

    reader, state = opened(len(PromptScheme.of(renderer).prompt_branch(renderer, "srt", [short])) + MAX_NEW)
    (scores,) = reader.judge(state, [[long, short]])
    assert scores[0] is None
    assert 0 < scores[1] < 1
    both = len(PromptScheme.of(renderer).prompt_branch(renderer, "vqa", [short, long])) + MAX_NEW
    for room, expected in (
        (both, 2),
        (both - 1, 1),
        (len(PromptScheme.of(renderer).prompt_branch(renderer, "vqa", [])) + MAX_NEW, 0),
    ):
        reader, state = opened(room)
        assert reader.answer(state, {0: [short, long]})[0].passages_read == expected
    both = len(PromptScheme.of(renderer).prompt_branch(renderer, "mct", [short, long])) + MAX_REPLY
    for room, expected in ((both, [0]), (both - 1, [])):
        reader, state = opened(room)
        assert list(reader.agree(state, {0: [short, long]})) == expected


@ONE_FAMILY
def test_nothing_to_ask_costs_nothing(make, reader, pictures) -> None:
    opened = reader.open(questions(make), pictures)
    assert reader.judge(opened, [[], [], []]) == [[], [], []]
    assert reader.agree(opened, {}) == reader.answer(opened, {}) == {}
