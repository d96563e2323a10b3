"""A remembering engine gives what its engine gives, and asks it for what is new alone."""

import functools

import pytest
import torch

from reflectune.inference.sweeps.caching import CachingEngine, CachingReranker
from reflectune.models.loading import load
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.models.prefix.packed import PackedReader
from reflectune.models.schemes.passages import PassageScheme
from reflectune.retrieval.rerankers.words import WordReranker
from tests.inference.families import ONE_FAMILY

QUESTIONS = ("What is it made of?", "It is made of oak?")


@pytest.fixture
def engines(checkpoints, monkeypatch):
    """A plain engine, and a remembering one over the same model: LLaVA's by levels, Qwen2-VL's on packed rows."""
    loaded = load(checkpoints.tuned)
    plain = PrefixEngine(loaded)
    if checkpoints.family == "qwen2_vl":
        reader = functools.partial(PackedReader, compile_after=None)
        monkeypatch.setattr("reflectune.models.prefix.engine.packed_for", lambda *known, **_: reader(*known))
    return plain, CachingEngine(loaded)


@pytest.fixture
def read(images, make):
    """Reads two questions with their branches, in one engine."""

    def read(engine, branches: tuple[int, ...] = (2, 1)):
        rendered = [engine.renderer.prefix(text, images[i]) for i, text in enumerate(QUESTIONS)]
        prefixes = engine.read(rendered)
        ids = [
            [
                PassageScheme.of(engine.renderer).passage_branch(engine.renderer, make.passage(f"e{i}", k))
                for k in range(count)
            ]
            for i, count in enumerate(branches)
        ]
        return prefixes, engine.branch(prefixes, ids)

    return read


def test_probabilities_and_answers_are_the_engines(engines, read) -> None:
    outputs = []
    for engine in engines:
        prefixes, state = read(engine)
        rows = [(0, 1), (1, 0), (0, 1)]
        outputs.append(
            {
                "gate": prefixes.probabilities([1, 2]),
                "relevance": state.probabilities([1, 2]),
                "said": [g.token_ids for g in engine.generate(state, rows, [3], 4)],
                "direct": [g.token_ids for g in engine.generate(prefixes, [(1, 0)], (), 4)],
            }
        )
    plain, remembering = outputs
    torch.testing.assert_close(remembering["gate"], plain["gate"])
    assert [probabilities.shape for probabilities in remembering["relevance"]] == [(2, 2), (1, 2)]
    for one, other in zip(remembering["relevance"], plain["relevance"], strict=True):
        torch.testing.assert_close(one, other)
    for name in ("said", "direct"):
        assert remembering[name] == plain[name], name


def test_only_what_is_new_is_read(engines, read) -> None:
    engine = engines[1]
    read(engine, (2, 1))
    assert (engine.stats.requested, engine.stats.done) == (5, 5)  # two prefixes, three branches
    _, state = read(engine, (2, 3))
    assert (engine.stats.requested, engine.stats.done) == (12, 7)  # two branches are new
    assert [probabilities.shape for probabilities in state.probabilities([1])] == [(2, 1), (3, 1)]
    engine.generate(state, [(1, 2), (1, 2)])
    assert (engine.stats.requested, engine.stats.done, engine.stats.saved) == (14, 8, 6)


@ONE_FAMILY
def test_another_length_is_another_answer(engines, read) -> None:
    engine = engines[1]
    _, state = read(engine)
    before = engine.stats.done
    short, long = (engine.generate(state, [(0, 0)], (), most)[0] for most in (1, 6))
    assert long.token_ids[:1] == short.token_ids
    assert engine.stats.done == before + 2


@ONE_FAMILY
def test_nothing_is_kept_after_forgetting(engines, read) -> None:
    engine = engines[1]
    read(engine)
    engine.forget()
    read(engine)
    assert engine.stats.saved == 0


@ONE_FAMILY
def test_no_branch_at_all_is_no_row(engines, read) -> None:
    _, state = read(engines[1], (0, 0))
    assert [probabilities.shape for probabilities in state.probabilities([1, 2])] == [(0, 2), (0, 2)]
    assert engines[1].generate(state, []) == []


@ONE_FAMILY
def test_prefixes_of_another_engine_are_refused(engines, read) -> None:
    prefixes, _ = read(engines[0])
    with pytest.raises(ValueError, match="another engine"):
        engines[1].branch(prefixes, [[], []])


def test_a_question_is_ranked_once_for_all_numbers_of_passages(make) -> None:
    class Counting(WordReranker):
        ranked = 0

        def rank(self, questions, passages, top_k=None):
            self.ranked += len(questions)
            return super().rank(questions, passages, top_k)

    questions = [*QUESTIONS, "Who built it?"]
    passages = [[make.passage("e0", k) for k in range(3)], [make.passage("e1", k) for k in range(2)], []]
    counting = Counting()
    caching = CachingReranker(counting)
    for top_k in (2, None, 1):
        assert caching.rank(questions, passages, top_k) == WordReranker().rank(questions, passages, top_k)
    assert counting.ranked == 3
    assert caching.rank(questions[:1], passages[1:2]) == WordReranker().rank(questions[:1], passages[1:2])
    assert counting.ranked == 4
    caching.forget()
    caching.rank(questions[:1], passages[:1])
    assert (counting.ranked, caching.name, caching.fingerprint) == (5, "words", "words")
