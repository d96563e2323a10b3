import copy
import dataclasses
import math
from pathlib import Path

import pytest
import torch
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.core.types import Passage, Question
from reflectune.data_builders.probing.config import GenerationSettings
from reflectune.data_builders.probing.labels import Rule, ret_label, srt_labels
from reflectune.data_builders.probing.probe import Prober
from reflectune.data_builders.probing.records import Probe
from reflectune.data_builders.probing.statistics import probe_statistics
from reflectune.formats.dataset import Dataset
from reflectune.formats.passages import split_passages
from reflectune.metrics.scoring.registry import find_metric
from reflectune.models.loading import Loaded
from reflectune.models.prefix.engine import Generation, PrefixEngine
from reflectune.models.schemes.prompts import PromptScheme
from reflectune.retrieval.contexts import Document

SHORT = GenerationSettings(max_new_tokens=8, summary="none")


def prober(loaded: Loaded, generation: GenerationSettings = SHORT, budget: int = 4096) -> Prober:
    return Prober(PrefixEngine(loaded, budget), find_metric("infoseek"), generation)


@pytest.fixture(scope="module")
def questions(world: Path) -> list[tuple[Question, Image.Image, list[Document]]]:
    """Return knowledge-based questions with the passages of their own entity, and a visual one without any."""
    dataset = Dataset(world)
    every = dataset.questions("train")
    unknown = [q for q in every if q.requires_retrieval and q.meta["famous"] == "no"]  # the base doesn't know them
    chosen = [*unknown[:7], every[0], *[q for q in every if not q.requires_retrieval][:1]]
    prepared = []
    for question in chosen:
        passages = split_passages(dataset.knowledge.get(question.entity_ids[0]), lead="first_sentence")
        documents = [Document(passage, 0.5, rank) for rank, passage in enumerate(passages, start=1)]
        image = load_image(question.image, root=world)
        prepared.append((question, image, documents if question.requires_retrieval else []))
    return prepared


def probes(loaded: Loaded, questions: list, generation: GenerationSettings = SHORT, budget: int = 4096) -> list[Probe]:
    question_prober = prober(loaded, generation, budget)
    return question_prober.probe([question_prober.prepare(*question) for question in questions])


def test_every_answer_is_that_of_the_whole_prompt_read_alone(llava: Loaded, questions: list) -> None:
    """Compare each branch with the prompt of `Renderer.plain`, which naive RAG reads."""
    engine = PrefixEngine(llava)
    for (question, image, documents), probe in zip(questions, probes(llava, questions), strict=True):
        contexts = [[], *([document.passage] for document in documents)]
        style = question.answer_style
        whole = engine.read([llava.renderer.plain(question.text, image, context, style) for context in contexts])
        generations = engine.generate(whole, [(k, 0) for k in range(len(contexts))], max_new_tokens=8)
        assert [reply.text for reply in probe.replies] == [
            llava.renderer.scheme.strip(generation.text) for generation in generations
        ]
        assert [reply.log_prob for reply in probe.replies] == pytest.approx(
            [sum(generation.log_probs) for generation in generations], abs=1e-4
        )
        gold = [llava.renderer.reply_ids(question.answers[0])] * len(contexts)
        scored = engine.score(whole, [(k, 0) for k in range(len(contexts))], gold)
        logs = [probe.gold_log_prob, *(document.gold_log_prob for document in probe.documents)]
        assert logs == pytest.approx([sum(log_probs) for log_probs in scored], abs=1e-3)


def test_thoughts_are_removed_from_an_answer(llava: Loaded, questions: list, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = probes(llava, questions[:2])
    generate = PrefixEngine.generate

    def thinking(*args, **kwargs) -> list[Generation]:
        made = generate(*args, **kwargs)
        return [dataclasses.replace(reply, text=f"<think>Is it so?</think> {reply.text}") for reply in made]

    monkeypatch.setattr(PrefixEngine, "generate", thinking)
    assert probes(llava, questions[:2]) == expected


def test_the_miniature_reads_its_documents(llava: Loaded, questions: list) -> None:
    made = probes(llava, questions)
    assert sum(any(label.relevant for label in srt_labels(probe, Rule())) for probe in made) >= 4
    assert made[-1].documents == ()
    assert ret_label(made[-1], Rule()) is not None


@pytest.mark.parametrize("summary", ["sentences", "words"])
def test_batch_order_and_budget_do_not_matter(llava: Loaded, questions: list, summary: str) -> None:
    generation = GenerationSettings(max_new_tokens=8, summary=summary)
    together = probes(llava, questions, generation)
    backwards = probes(llava, questions[::-1], generation, budget=200)[::-1]
    for one, other in zip(together, backwards, strict=True):
        assert one.summary == other.summary
        assert [reply.text for reply in one.replies] == [reply.text for reply in other.replies]
        for probed, again in [(one, other), *zip(one.documents, other.documents, strict=True)]:
            assert probed.gold_log_prob == pytest.approx(again.gold_log_prob, abs=1e-3)
        assert [document.sentence for document in one.documents] == [document.sentence for document in other.documents]


def test_a_document_that_does_not_fit_is_cut_at_a_sentence_or_left_out(llava: Loaded, questions: list) -> None:
    question, image, _ = questions[0]
    long = "It was built in 1874. " + "Guides like to tell the story. " * 40
    endless = "word " * 400
    documents = [
        Document(Passage("e", 0, k, "T", "", "H", text), 0.5, k + 1) for k, text in enumerate([long, endless, "Oak."])
    ]
    engine = PrefixEngine(llava)
    engine.max_length = 200
    short_prober = Prober(engine, find_metric("infoseek"), SHORT)
    ready = short_prober.prepare(question, image, documents)
    (probe,) = short_prober.probe([ready])

    assert [document.cut for document in probe.documents] == [True, False]
    assert [document.rank for document in probe.documents] == [1, 3]
    assert probe.left_out == 1
    assert probe.documents[0].passage.text.startswith("It was built in 1874. Guides")
    assert probe.documents[0].passage.text.endswith("story.")
    room = engine.max_length - len(ready.prefix.ids) - 8
    assert room - 20 < len(ready.branches[1]) <= room
    end = PromptScheme.of(llava.renderer).prompt_branch(llava.renderer, "vqa", [documents[2].passage])[-10:]
    assert ready.branches[1][-10:] == end  # the instruction is whole
    numbers = probe_statistics([probe], Rule())
    assert (numbers["cut"], numbers["left_out"]) == (1, 1)


def test_a_question_that_does_not_fit_alone_is_refused(llava: Loaded, questions: list) -> None:
    question, image, _ = questions[0]
    with pytest.raises(UserError, match="is too long: with an answer"):
        prober(llava).prepare(dataclasses.replace(question, text="why " * 5000), image, [])
    with pytest.raises(UserError, match="has no answers"):
        prober(llava).prepare(dataclasses.replace(question, answers=(), answer_type="string"), image, [])


def test_broken_numbers_are_kept_as_none_and_label_nothing(llava: Loaded, questions: list) -> None:
    broken = dataclasses.replace(llava, model=copy.deepcopy(llava.model))
    with torch.no_grad():
        broken.model.get_output_embeddings().weight.fill_(math.nan)
    made = probes(broken, questions[:2], GenerationSettings(max_new_tokens=3, summary="words"))
    for probe in made:
        assert {reply.log_prob for reply in probe.replies} == {None}
        assert probe.gold_log_prob is None
        assert ret_label(probe, Rule()) is None
        assert all(srt_labels(probe, Rule(rule=name)) == [] for name in ("paper", "margin"))
    assert probe_statistics(made, Rule())["changes"] == {"unclear": sum(len(p.documents) for p in made)}


def test_without_an_accepted_answer_nothing_is_scored(llava: Loaded, questions: list) -> None:
    question, image, documents = questions[0]
    ranged = dataclasses.replace(question, answers=(), range=(1.0, 2.0), answer_type="numerical")
    (made,) = probes(llava, [(ranged, image, documents)])
    assert made.gold == ""
    assert [probed.gold_log_prob for probed in (made, *made.documents)] == [None] * (1 + len(documents))
