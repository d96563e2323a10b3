import dataclasses
from pathlib import Path

import pytest

from reflectune.core.images import load_image
from reflectune.core.types import Passage, Question
from reflectune.data_builders.probing.config import GenerationSettings
from reflectune.data_builders.probing.labels import Rule, srt_labels
from reflectune.data_builders.probing.probe import Prober
from reflectune.data_builders.probing.records import Probe
from reflectune.formats.dataset import Dataset
from reflectune.formats.passages import split_passages
from reflectune.metrics.scoring.registry import find_metric
from reflectune.models.loading import Loaded
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.retrieval.contexts import Document

ELSEWHERE = "Guides like to tell the story."


@pytest.fixture(scope="module")
def probe(llava: Loaded, world: Path):
    """Return a function that probes a question with its entity's passages twice, each after an unrelated sentence."""
    dataset = Dataset(world)

    def make(question: Question, generation: GenerationSettings) -> Probe:
        entity_passages = split_passages(dataset.knowledge.get(question.entity_ids[0]), lead="first_sentence")
        passages = [dataclasses.replace(p, text=f"{ELSEWHERE} {p.text}") for p in entity_passages]
        passages += [Passage(p.entry_id, p.section, 9, p.title, p.lead, p.heading, p.text) for p in passages]
        prober = Prober(PrefixEngine(llava), find_metric("infoseek"), generation)
        documents = [Document(passage, 0.5, rank) for rank, passage in enumerate(passages, start=1)]
        image = load_image(question.image, root=world)
        return prober.probe([prober.prepare(question, image, documents)])[0]

    return make


@pytest.fixture(scope="module")
def several(probe, world: Path) -> Question:
    """Return a question that two documents turn from wrong to right."""
    for question in Dataset(world).questions("train"):
        if question.requires_retrieval:
            labels = srt_labels(probe(question, GenerationSettings(max_new_tokens=8, summary="none")), Rule())
            if sum(label.relevant for label in labels) > 1:
                return question
    raise AssertionError("the miniature answers no such question from its documents")


def test_the_sentence_with_the_answer_is_chosen(probe, several: Question) -> None:
    probed = probe(several, GenerationSettings(max_new_tokens=8, summary="sentences"))
    right = [document for document in probed.documents if document.reply.correctness == 1]
    assert len(right) >= 2
    assert all(document.sentence and document.sentence in document.passage.text for document in right)
    assert sum(document.sentence != ELSEWHERE for document in right) >= 2
    assert all(document.sentence == "" for document in probed.documents if document.reply.correctness == 0)
    assert probed.summary == ""


def test_the_models_own_words_are_about_the_documents_that_help(probe, several: Question) -> None:
    probed = probe(several, GenerationSettings(max_new_tokens=8, summary="words"))
    relevant = [label.document.passage.id for label in srt_labels(probed, Rule()) if label.relevant]
    assert probed.summarised == tuple(relevant)
    assert all(document.sentence == "" for document in probed.documents)


def test_summaries_change_no_answer(probe, several: Question) -> None:
    plain = probe(several, GenerationSettings(max_new_tokens=8, summary="none"))
    for summary in ("words", "sentences"):
        made = probe(several, GenerationSettings(max_new_tokens=8, summary=summary))
        bare = tuple(dataclasses.replace(document, sentence="") for document in made.documents)
        assert dataclasses.replace(made, summary="", summarised=(), documents=bare) == plain
