import math

import pytest
import torch

from reflectune.core.errors import UserError
from reflectune.core.types import Passage
from reflectune.inference.reading.passage_reader import PassageReader
from reflectune.inference.reading.reader import Reader
from reflectune.models.loading import Loaded, load
from reflectune.models.prefix.engine import Generation, PrefixEngine
from reflectune.models.schemes.passages import PassageScheme
from tests.inference.families import ONE_FAMILY

MAX_NEW = 5


@pytest.fixture(scope="module")
def tuned(checkpoints) -> Loaded:
    return load(checkpoints.tuned, scheme="mr2ag")


@pytest.fixture(scope="module")
def reader(tuned: Loaded) -> Reader:
    return PassageReader(PrefixEngine(tuned), MAX_NEW)


def test_a_gate_is_the_share_of_retrieval_among_the_two_tokens(
    questions, tuned, reader, images, log_probabilities
) -> None:
    gates = reader.gates(reader.open(questions, images))
    yes, no = tuned.renderer.token_id("retrieve"), tuned.renderer.token_id("no_retrieve")
    for gate, question, image in zip(gates, questions, images, strict=True):
        last = log_probabilities(tuned, tuned.renderer.prefix(question.text, image), []).exp()
        assert gate == pytest.approx(float(last[yes] / (last[yes] + last[no])), abs=1e-5)


@ONE_FAMILY
def test_what_a_model_computes_that_is_no_number_is_an_error(questions, checkpoints, images) -> None:
    """Each gate would be closed and each answer one and the same token, and score 0 in silence."""
    broken = load(checkpoints.tuned, scheme="mr2ag")
    with torch.no_grad():
        broken.model.get_output_embeddings().weight.fill_(math.nan)
    reader = PassageReader(PrefixEngine(broken), MAX_NEW)
    opened = reader.open(questions, images)
    with pytest.raises(UserError, match="NaN in float32"):
        reader.gates(opened)
    with pytest.raises(UserError, match="NaN in float32"):
        reader.answer_directly(opened, [0])


def branch(loaded: Loaded, passage: Passage) -> list[int]:
    return PassageScheme.of(loaded.renderer).passage_branch(loaded.renderer, passage)


def test_s_rel_is_the_full_softmax_of_an_independent_row(
    questions, passages, tuned, reader, images, log_probabilities
) -> None:
    judged = reader.judge(reader.open(questions, images), passages).relevance
    assert [len(pairs) for pairs in judged] == [2, 0, 1]
    ids = [tuned.renderer.token_id(role) for role in ("relevant", "irrelevant")]
    for question, image, documents, pairs in zip(questions, images, passages, judged, strict=True):
        prefix = tuned.renderer.prefix(question.text, image)
        for passage, pair in zip(documents, pairs, strict=True):
            last = log_probabilities(tuned, prefix, branch(tuned, passage)).exp()
            assert list(pair) == pytest.approx([float(last[i]) for i in ids], abs=1e-5)
            assert sum(pair) < 1  # equation 6: not a softmax of two


def test_s_ans_is_the_geometric_mean_after_relevant(
    questions, passages, tuned, reader, images, log_probabilities
) -> None:
    judged = reader.judge(reader.open(questions, images), passages)
    (answer,) = reader.answer_from(judged, [(0, 1)])
    # Decode greedily, one independent row at a time.
    rendered = tuned.renderer.prefix(questions[0].text, images[0])
    forced = [*branch(tuned, passages[0][1]), tuned.renderer.token_id("relevant")]
    generated, logs = [], []
    while len(generated) < MAX_NEW and tuned.renderer.end_token_id not in generated:
        last = log_probabilities(tuned, rendered, forced + generated)
        generated.append(int(last.argmax()))
        logs.append(float(last.max()))
    assert answer.tokens == len(generated)
    assert answer.score == pytest.approx(math.exp(sum(logs) / len(logs)), abs=1e-5)
    words = tuned.renderer.decode([i for i in generated if i != tuned.renderer.end_token_id])
    assert answer.text == tuned.scheme.strip(words)


def test_a_batch_answers_like_its_questions_one_by_one(make, reader, images) -> None:
    questions = [make.question(0), make.question(1, text="Who?"), make.question(2, text="Where is it, and since when?")]
    together = reader.answer_directly(reader.open(questions, images), [0, 2])
    alone = [reader.answer_directly(reader.open([questions[i]], [images[i]]), [0])[0] for i in (0, 2)]
    assert [a.text for a in together] == [a.text for a in alone]
    assert [a.score for a in together] == pytest.approx([a.score for a in alone], abs=1e-5)


@ONE_FAMILY
@pytest.mark.parametrize(
    ("thoughts", "said"),
    [
        pytest.param("", "oak", id="no thoughts"),
        pytest.param("<think>It is red: elm?</think>", "\noak", id="thoughts"),
        pytest.param("<think>It is red: elm?", "", id="thoughts that were cut off"),
    ],
)
def test_what_a_reasoning_model_thinks_is_neither_answered_nor_scored(
    make, checkpoints, images, monkeypatch, thoughts: str, said: str
) -> None:
    """As in iterative pipelines, which are compared with baselines."""
    loaded = load(checkpoints.base)
    engine, tokenizer = PrefixEngine(loaded), loaded.renderer.tokenizer
    before, after = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (thoughts, said))
    ids = [*before, *after, *([loaded.renderer.end_token_id] if said else [])]
    log_probs = [-0.1 * place for place in range(len(ids))]
    made = Generation(ids, thoughts + said, log_probs, bool(said))
    monkeypatch.setattr(engine, "generate", lambda *args, **kwargs: [made])
    (answer,) = Reader(engine, 99).answer_plainly([make.question(0)], images[:1], [[]])
    behind = log_probs[len(before) :]
    assert (answer.text, answer.tokens) == (said.strip(), len(ids))
    assert answer.score == pytest.approx(math.exp(sum(behind) / len(behind)) if behind else 0.0)


@ONE_FAMILY
def test_nothing_to_answer_costs_nothing(questions, reader, images) -> None:
    opened = reader.open(questions[:1], images[:1])
    assert reader.answer_directly(opened, []) == []
    assert reader.answer_from(reader.judge(opened, [[]]), []) == []


@ONE_FAMILY
def test_a_plain_prompt_keeps_as_many_whole_passages_as_fit(make, checkpoints, images) -> None:
    loaded = load(checkpoints.base)
    engine = PrefixEngine(loaded)
    question, context = make.question(0), [make.passage(f"e{i}") for i in range(4)]
    length = len(loaded.renderer.plain(question.text, images[0], context[:2]).ids)
    for room, expected in ((length, 2), (length - 1, 1), (10_000, 4), (1, 0)):
        engine.max_length = room + MAX_NEW if room > 1 else 60  # room for the question alone
        (answer,) = Reader(engine, MAX_NEW).answer_plainly([question], images[:1], [context])
        assert answer.passages_read == expected


@ONE_FAMILY
def test_a_passage_that_does_not_fit_is_not_read(questions, passages, tuned, images) -> None:
    engine = PrefixEngine(tuned)
    short, long = passages[0]
    prefix = tuned.renderer.prefix(questions[0].text, images[0])
    engine.max_length = len(prefix.ids) + len(branch(tuned, short)) + MAX_NEW + 1
    reader = PassageReader(engine, MAX_NEW)
    judged = reader.judge(reader.open(questions[:1], images[:1]), [[short, long]])
    assert judged.passages == [[short]]
    assert len(judged.relevance[0]) == 1


@ONE_FAMILY
def test_a_plain_model_has_no_gate(checkpoints) -> None:
    with pytest.raises(UserError, match="scheme"):
        PassageReader(PrefixEngine(load(checkpoints.base)), MAX_NEW)
