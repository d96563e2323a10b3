"""A model, a retriever and a knowledge base whose every answer is written down, to test what pipelines make of them."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from reflectune.core.types import Entry, Passage, Question, Section
from reflectune.formats.hits import Hit
from reflectune.formats.knowledge_base import KnowledgeBase, write_knowledge_base
from reflectune.inference.reading.passage_reader import JudgedPassages
from reflectune.inference.reading.prompted_reader import PromptedReply
from reflectune.inference.reading.reader import OpenedQuestions, ReaderAnswer
from reflectune.inference.scoring.scores import TraceScorer
from reflectune.inference.scoring.trajectories import trajectories
from reflectune.inference.trace import Trace
from reflectune.models.schemes.registry import find_scheme
from reflectune.retrieval.retrievers.queries import Query


class ScriptedReader:
    """Says what its script says, and records what it was asked to do.

    Args:
        gates: Gate probability by question id.
        relevance: p([Relevant]) by passage id; 0.1 if not listed. p([Irrelevant]) is the rest.
        answers: (text, S_ans) by passage id, or by `direct` or `plain`.
    """

    scheme = find_scheme("mr2ag")

    def __init__(
        self,
        gates: Mapping[str, float] | None = None,
        relevance: Mapping[str, float] | None = None,
        answers: Mapping[str, tuple[str, float]] | None = None,
        room: int = 100,
    ) -> None:
        self._gates, self._relevance, self._answers = gates or {}, relevance or {}, answers or {}
        self._room = room
        self.read_passages: list[str] = []
        self.contexts: list[list[str]] = []
        self.answered: list[str] = []

    def answer_plainly(self, questions, images, contexts) -> list[ReaderAnswer]:
        kept = [context[: self._room] for context in contexts]
        self.contexts += [[passage.id for passage in context] for context in kept]
        return [dataclasses.replace(self._answer("plain"), passages_read=len(context)) for context in kept]

    def open(self, questions: Sequence[Question], images: Sequence[Image.Image]) -> OpenedQuestions:
        return OpenedQuestions(questions, prefixes=None, lengths=[1] * len(questions))

    def gates(self, opened: OpenedQuestions) -> list[float]:
        return [self._gates[question.id] for question in opened.questions]

    def answer_directly(self, opened: OpenedQuestions, rows: Sequence[int]) -> list[ReaderAnswer]:
        self.answered += [f"{opened.questions[row].id} directly" for row in rows]
        return [self._answer("direct") for _ in rows]

    def judge(self, opened: OpenedQuestions, passages: Sequence[Sequence[Passage]]) -> JudgedPassages:
        kept = [list(row[: self._room]) for row in passages]
        self.read_passages += [passage.id for row in kept for passage in row]
        relevance = [[self._relevance.get(passage.id, 0.1) for passage in row] for row in kept]
        return JudgedPassages(kept, kept, [[(value, 1 - value) for value in row] for row in relevance])

    def answer_from(self, judged: JudgedPassages, rows: Sequence[tuple[int, int]]) -> list[ReaderAnswer]:
        ids = [judged.branches[question][passage].id for question, passage in rows]
        self.answered += ids
        return [self._answer(passage_id) for passage_id in ids]

    def _answer(self, key: str) -> ReaderAnswer:
        text, score = self._answers.get(key, (f"from {key}", 0.5))
        return ReaderAnswer(text, score, tokens=2)


class ScriptedPromptedReader:
    """MMKB-RAG's tuned model, as scripted; records what it was asked.

    Args:
        gates: Score_RET by question id.
        relevance: Score_SRT by passage id; 0.1 if not listed, None for one that is too long.
        reply: What it replies to P_MCT, whatever the documents.
    """

    scheme = find_scheme("mmkb_rag")

    def __init__(
        self,
        gates: Mapping[str, float] | None = None,
        relevance: Mapping[str, float | None] | None = None,
        reply: str = "",
        room: int = 100,
    ) -> None:
        self._gates, self._relevance, self._reply = gates or {}, relevance or {}, reply
        self._room = room
        self.judged: list[list[str]] = []
        self.agreed: list[list[str]] = []
        self.contexts: dict[str, list[str]] = {}

    def open(self, questions: Sequence[Question], images: Sequence[Image.Image]) -> OpenedQuestions:
        return OpenedQuestions(questions, prefixes=None, lengths=[1] * len(questions))

    def gates(self, opened: OpenedQuestions) -> list[float]:
        return [self._gates[question.id] for question in opened.questions]

    def judge(self, opened, documents, found=()) -> list[list[float | None]]:
        self.judged += [[passage.id for passage in row] for row in documents if row]
        return [[self._relevance.get(passage.id, 0.1) for passage in row] for row in documents]

    def agree(self, opened: OpenedQuestions, documents: Mapping[int, Sequence[Passage]]) -> dict[int, PromptedReply]:
        self.agreed += [[passage.id for passage in row] for row in documents.values()]
        reply = PromptedReply(f"{self._reply} [Rel]", self._reply, shown=0, tokens=7, finished=True)
        return {i: dataclasses.replace(reply, shown=len(row)) for i, row in documents.items()}

    def answer(self, opened: OpenedQuestions, documents: Mapping[int, Sequence[Passage]]) -> dict[int, ReaderAnswer]:
        answers = {}
        for i, row in documents.items():
            kept = row[: self._room]
            self.contexts[opened.questions[i].id] = [passage.text for passage in kept]
            answers[i] = ReaderAnswer(f"tuned from {len(kept)}", 0.6, tokens=3, passages_read=len(kept))
        return answers


class FixedRetriever:
    """Finds the same entries for every query, with these scores."""

    def __init__(self, scores: Mapping[str, float]) -> None:
        self._scores = scores
        self.searched = 0

    def search(self, queries: Sequence[Query], top_n: int) -> list[list[Hit]]:
        self.searched += len(queries)
        found = enumerate(self._scores.items(), start=1)
        hits = [Hit(name, score, rank, query="image", kb="kb", parts={}) for rank, (name, score) in found]
        return [hits[:top_n] for _ in queries]


@pytest.fixture
def knowledge(tmp_path: Path) -> KnowledgeBase:
    """Entries a, b, c with two sections of one paragraph each, and `empty` without any."""

    def sections(name: str) -> tuple[Section, ...]:
        return Section("History", f"Founded by {name}."), Section("Diet", f"The owl eats {name}.")

    entries = [Entry(name, f"Title {name}", sections=sections(name)) for name in "abc"]
    return write_knowledge_base(tmp_path, [*entries, Entry("empty", "Nothing")], name="kb")


@pytest.fixture(scope="session")
def scripted() -> SimpleNamespace:
    """The scripted collaborators, and images for n questions."""
    return SimpleNamespace(
        reader=ScriptedReader,
        prompted=ScriptedPromptedReader,
        retriever=FixedRetriever,
        images=lambda count: [Image.new("RGB", (4, 4)) for _ in range(count)],
    )


@pytest.fixture(scope="session")
def share_asked() -> Callable[[Trace], float]:
    """Return a function: the share of a trace's later searches that had a query which the model wrote."""

    def share(trace: Trace) -> float:
        question = Question(trace.question_id, "image.png", "Who built it?", ("Ann Kirk",))
        traces = {trace.pipeline: {question.id: trace}}
        measured = trajectories([question], traces, seed=0, measure=TraceScorer("exact_match"), names={})
        return float(measured[trace.pipeline]["asked"]["value"])

    return share
